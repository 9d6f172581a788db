"""Which trials count."""

import pyarrow as pa
import pytest

from bitbench.loadgen.answer import REQUEST_SCHEMA
from bitbench.loadgen.verdict import MEAN_DELAY_FLOOR_S, load_verdict
from bitbench.records.trial import ClientHealth, Failure, LoadMachine, Outcome
from bitbench.study.base import Json
from bitbench.study.workload import Workload

WORKLOAD = Workload(name="w", concurrency=2, input_tokens=8, output_tokens=3)
WELL = ClientHealth(send_lateness_p99_s=0.0001, loop_lag_p99_s=0.0002, loop_lag_mean_s=0.00005, cpu_share=0.05)


def row(request: int = 0, **changes: Json) -> dict[str, Json]:
    """A request with a first token after 100 ms and one each 20 ms, unless changed."""
    return {
        "request": request,
        "planned_s": 0.0,
        "sent_s": 0.00005,
        "first_token_s": 0.1,
        "last_token_s": 0.14,
        "end_s": 0.14,
        "chunk_s": [0.1, 0.12, 0.14],
        "asked_input_tokens": 8,
        "asked_output_tokens": 3,
        "input_tokens": 8,
        "output_tokens": 3,
        "status": "ok",
        "http_status": 200,
        "error": None,
    } | changes


def verdict(*rows: dict[str, Json], health: ClientHealth = WELL) -> Failure | None:
    return load_verdict(pa.Table.from_pylist(list(rows), schema=REQUEST_SCHEMA), WORKLOAD, health)


def test_a_good_trial_counts() -> None:
    assert verdict(row(0), row(1)) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"output_tokens": 2}, "Requested 3 output tokens, the engine counted 2 (1 of 2 requests)."),
        ({"input_tokens": 9}, "Requested 8 input tokens, the engine counted 9 (1 of 2 requests)."),
    ],
)
def test_a_wrong_token_count_is_invalid_and_says_the_numbers(changes: dict[str, Json], said: str) -> None:
    failure = verdict(row(0), row(1, **changes))
    assert failure is not None
    assert failure.outcome is Outcome.INVALID
    assert said in failure.cause


def test_each_request_is_held_to_what_it_asked_for() -> None:
    longer = row(1, asked_input_tokens=9, input_tokens=9, asked_output_tokens=2, output_tokens=2)
    assert verdict(row(0), longer) is None
    failure = verdict(row(0), {**longer, "output_tokens": 3})
    assert failure is not None
    assert "Requested 2 output tokens, the engine counted 3" in failure.cause


def test_tokens_of_a_text_are_the_servers_to_count() -> None:
    assert verdict(row(0, asked_input_tokens=None), row(1, asked_input_tokens=None, input_tokens=77)) is None


def test_a_part_of_a_trace_has_as_many_requests_as_came() -> None:
    trace = {"kind": "trace", "file": "t.csv"}
    workload = Workload.model_validate(
        {"name": "w", "input_tokens": 8, "output_tokens": 3, "arrival": trace, "duration": "1m"}
    )
    assert load_verdict(pa.Table.from_pylist([row(0), row(1), row(2)], schema=REQUEST_SCHEMA), workload, WELL) is None


@pytest.mark.parametrize(
    ("status", "http_status", "error", "outcome"),
    [
        ("refused", None, "no connection to 127.0.0.1:1", Outcome.CRASHED),
        ("broken", 200, "the server closed the connection", Outcome.CRASHED),
        ("stalled", 200, "no byte for 30 s", Outcome.TIMEOUT),
        ("timeout", 200, "not complete after 600 s", Outcome.TIMEOUT),
        ("http_error", 401, "wrong key", Outcome.INVALID),
        ("rate_limited", 429, "slow down; it says to try again after 7 s", Outcome.OVERLOADED),
        ("http_error", 500, "something", Outcome.INVALID),
        ("http_error", 501, "no", Outcome.UNSUPPORTED),
        ("http_error", 400, "This model's maximum context length is 2048 tokens.", Outcome.UNSUPPORTED),
        ("http_error", 400, "logit bias is not supported", Outcome.UNSUPPORTED),
        ("http_error", 500, "CUDA out of memory. Tried to allocate 2 GiB", Outcome.OOM),
    ],
)
def test_a_failed_request_is_the_outcome(status: str, http_status: int | None, error: str, outcome: Outcome) -> None:
    failure = verdict(row(0), row(1, status=status, http_status=http_status, error=error))
    assert failure is not None
    assert failure.outcome is outcome
    assert error.rstrip(".") in failure.cause
    assert failure.cause.endswith(".")
    assert ("HTTP" in failure.cause) == (status in ("http_error", "rate_limited"))


def test_the_failure_that_came_first_is_the_cause() -> None:
    failure = verdict(
        row(0, status="broken", error="later", end_s=0.3), row(1, status="stalled", error="earlier", end_s=0.2)
    )
    assert failure is not None
    assert failure.outcome is Outcome.TIMEOUT
    assert "Request 1: earlier (2 of 2 requests failed)." in failure.cause


def test_a_trial_with_requests_missing_does_not_count() -> None:
    failure = verdict(row(0))
    assert failure is not None
    assert failure.outcome is Outcome.INVALID


def health(*, mean_lag_s: float = 0.00005, p99_lag_s: float = 0.0002) -> ClientHealth:
    return WELL.model_copy(update={"loop_lag_mean_s": mean_lag_s, "loop_lag_p99_s": p99_lag_s})


@pytest.mark.parametrize(
    ("sent_s", "client", "counts"),
    [
        (0.0015, health(), True),  # 1.55 % of the time to first token
        (0.0025, health(), False),  # 2.55 %
        (0.0015, health(mean_lag_s=0.0010), False),  # together 2.5 %
        (0.0001, health(mean_lag_s=0.003), False),
        (0.0001, health(p99_lag_s=0.009), True),  # a scheduler's hiccup
        (0.0001, health(p99_lag_s=0.015), False),  # three quarters of a gap between tokens
    ],
)
def test_a_late_client_is_client_bound(sent_s: float, client: ClientHealth, counts: bool) -> None:
    failure = verdict(row(0, sent_s=sent_s), row(1, sent_s=sent_s), health=client)
    if counts:
        assert failure is None
    else:
        assert failure is not None
        assert failure.outcome is Outcome.CLIENT_BOUND
        assert "client too slow (+" in failure.cause


@pytest.mark.parametrize(("stolen", "said"), [(0.06, "; a hypervisor took 6.0 % of the processors)"), (0.01, "ms)")])
def test_a_late_client_on_a_machine_that_lost_its_processors_says_so(stolen: float, said: str) -> None:
    late = health(mean_lag_s=0.003).model_copy(update={"stolen_share": stolen})
    failure = verdict(row(0), row(1), health=late)
    assert failure is not None
    assert failure.cause.endswith(said)


def test_long_gaps_do_not_hide_a_late_first_token() -> None:
    slow = {"chunk_s": [0.1, 0.5, 0.9], "last_token_s": 0.9, "end_s": 0.9}
    late = health(p99_lag_s=0.030)  # a small part of a gap, a large one of the time to first token
    failure = verdict(row(0, **slow), row(1, **slow), health=late)
    assert failure is not None
    assert "+30.0 ms on TTFT p99, limit 10.0 ms" in failure.cause


@pytest.mark.parametrize(("lag_s", "counts"), [(0.019, True), (0.030, False)])
def test_the_kernels_times_forgive_a_late_reader_until_two_tokens_come_in_one_read(lag_s: float, counts: bool) -> None:
    """Tokens are 20 ms apart."""
    late = health(mean_lag_s=0.010, p99_lag_s=lag_s).model_copy(update={"kernel_times": True})
    failure = verdict(row(0), row(1), health=late)
    assert (failure is None) == counts


def test_a_very_quick_engine_is_not_held_to_microseconds() -> None:
    quick = {"first_token_s": 0.001, "last_token_s": 0.003, "chunk_s": [0.001, 0.002, 0.003], "end_s": 0.003}
    late_s = 0.9 * MEAN_DELAY_FLOOR_S
    assert verdict(row(0, **quick, sent_s=late_s), row(1, **quick, sent_s=late_s)) is None


def test_a_clock_that_may_be_too_far_apart_is_named() -> None:
    machines = tuple(
        LoadMachine(name=f"n{place}", requests=1, off_by_s=off_s) for place, off_s in enumerate((0.0, 0.1))
    )
    failure = verdict(row(0), row(1), health=WELL.model_copy(update={"nodes": machines}))
    assert failure is not None
    assert failure.outcome is Outcome.DISTURBED
    assert "n1" in failure.cause
    assert verdict(row(0), row(1), health=WELL.model_copy(update={"nodes": machines[:1]})) is None
