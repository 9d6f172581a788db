"""Which trials count."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from bitbench.loadgen.answer import REQUEST_SCHEMA
from bitbench.loadgen.verdict import MEAN_DELAY_FLOOR_S, list_moved_metrics, load_verdict
from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import ClientHealth, Failure, LoadMachine, Outcome, TrialMetrics
from bitbench.study.base import Json
from bitbench.study.metrics import PRIMARY_METRICS
from bitbench.study.workload import Workload

WORKLOAD = Workload(name="w", concurrency=2, input_tokens=8, output_tokens=3)
WELL = ClientHealth(
    send_lateness_p99_s=0.0001, loop_lag_p99_s=0.0002, loop_lag_mean_s=0.00005, cpu_share=0.05
)


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


def table(*rows: dict[str, Json]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=REQUEST_SCHEMA)


def verdict(
    *rows: dict[str, Json],
    health: ClientHealth = WELL,
    metric: str = "output_throughput",
    known: Sequence[TrialMetrics] = (),
) -> Failure | None:
    return load_verdict(RequestSums.of(table(*rows)), WORKLOAD, health, metric, known)


def test_a_good_trial_counts() -> None:
    assert verdict(row(0), row(1)) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"output_tokens": 2},
            "Requested 3 output tokens, the engine counted 2 (1 of 2 requests).",
        ),
        ({"input_tokens": 9}, "Requested 8 input tokens, the engine counted 9 (1 of 2 requests)."),
    ],
)
def test_a_wrong_token_count_is_invalid_and_says_the_numbers(
    changes: dict[str, Json], said: str
) -> None:
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
    assert (
        verdict(row(0, asked_input_tokens=None), row(1, asked_input_tokens=None, input_tokens=77))
        is None
    )


def test_a_part_of_a_trace_has_as_many_requests_as_came() -> None:
    trace = {"kind": "trace", "file": "t.csv"}
    workload = Workload.model_validate(
        {"name": "w", "input_tokens": 8, "output_tokens": 3, "arrival": trace, "duration": "1m"}
    )
    assert load_verdict(RequestSums.of(table(row(0), row(1), row(2))), workload, WELL) is None


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
        (
            "http_error",
            400,
            "This model's maximum context length is 2048 tokens.",
            Outcome.UNSUPPORTED,
        ),
        ("http_error", 400, "logit bias is not supported", Outcome.UNSUPPORTED),
        ("http_error", 500, "CUDA out of memory. Tried to allocate 2 GiB", Outcome.OOM),
    ],
)
def test_a_failed_request_is_the_outcome(
    status: str, http_status: int | None, error: str, outcome: Outcome
) -> None:
    failure = verdict(row(0), row(1, status=status, http_status=http_status, error=error))
    assert failure is not None
    assert failure.outcome is outcome
    assert error.rstrip(".") in failure.cause
    assert failure.cause.endswith(".")
    assert ("HTTP" in failure.cause) == (status in ("http_error", "rate_limited"))


def test_the_failure_that_came_first_is_the_cause() -> None:
    failure = verdict(
        row(0, status="broken", error="later", end_s=0.3),
        row(1, status="stalled", error="earlier", end_s=0.2),
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
    ("sent_s", "client", "moved"),
    [
        (0.0015, health(), set()),  # 1.5 % of the time to first token
        (0.0025, health(), {"ttft"}),  # 2.5 %, and 1.8 % of the latency
        (0.0015, health(mean_lag_s=0.0010), {"ttft"}),  # together 2.5 %
        (0.0030, health(), {"ttft", "latency", "output_throughput"}),  # 2.1 % of the latency
        (0.0001, health(mean_lag_s=0.003), {"ttft", "latency", "output_throughput", "tpot"}),
        (0.0001, health(p99_lag_s=0.009), set()),  # a scheduler's hiccup
        (
            0.0001,
            health(p99_lag_s=0.015),
            {"ttft", "itl"},
        ),  # three quarters of a gap between tokens
    ],
)
def test_a_late_client_spoils_the_metrics_that_it_may_have_moved(
    sent_s: float, client: ClientHealth, moved: set[str]
) -> None:
    rows = (row(0, sent_s=sent_s), row(1, sent_s=sent_s))
    assert set(list_moved_metrics(RequestSums.of(table(*rows)), WORKLOAD, client)) == moved
    for metric in PRIMARY_METRICS:
        failure = verdict(*rows, health=client, metric=metric)
        assert (failure is not None) == (metric in moved)
        assert failure is None or failure.outcome is Outcome.CLIENT_BOUND


def taking(ttft_s: float, tpot_s: float) -> TrialMetrics:
    return TrialMetrics(ttft_s=ttft_s, ttft_p99_s=ttft_s, tpot_s=tpot_s, itl_p99_s=tpot_s)


def test_the_limit_is_that_of_the_point_and_not_of_the_trial() -> None:
    """A fast and a slow trial, with the same delay of the client, get the same verdict."""

    def timed(ttft_s: float, request: int) -> dict[str, Json]:
        chunks = [ttft_s, ttft_s + 0.02, ttft_s + 0.04]
        times = {
            "first_token_s": chunks[0],
            "last_token_s": chunks[-1],
            "end_s": chunks[-1],
            "chunk_s": chunks,
        }
        return row(request, sent_s=0.0118, **times)

    fast, slow = ([timed(ttft_s, request) for request in range(2)] for ttft_s in (0.470, 0.685))
    assert verdict(*fast, metric="ttft") is not None  # each by its own time
    assert verdict(*slow, metric="ttft") is None
    for typical_s, counts in ((0.470, False), (0.685, True)):
        known = [taking(typical_s, 0.02)] * 3
        assert {verdict(*trial, metric="ttft", known=known) is None for trial in (fast, slow)} == {
            counts
        }


def test_the_median_of_all_attempts_is_what_a_limit_is_a_share_of() -> None:
    rows = (row(0, sent_s=0.0025), row(1, sent_s=0.0025))
    slow, fast, nothing = taking(0.2, 0.02), taking(0.1, 0.02), TrialMetrics()
    assert "ttft" in list_moved_metrics(
        RequestSums.of(table(*rows)), WORKLOAD, WELL, [fast, slow, fast, nothing]
    )
    assert "ttft" not in list_moved_metrics(
        RequestSums.of(table(*rows)), WORKLOAD, WELL, [slow, fast, slow]
    )


def test_a_warm_up_with_fewer_tokens_knows_the_latency_of_a_trial() -> None:
    late = {"sent_s": 0.0030}  # 2.1 % of 140 ms, and 1.7 % of 180 ms
    assert verdict(row(0, **late), row(1, **late), known=[taking(0.1, 0.02)]) is not None
    assert verdict(row(0, **late), row(1, **late), known=[taking(0.1, 0.04)]) is None


def test_an_open_loop_goes_on_however_late_a_request_was() -> None:
    arrival = {"kind": "constant", "rate": 10.0}
    given = {
        "name": "w",
        "input_tokens": 8,
        "output_tokens": 3,
        "arrival": arrival,
        "duration": "10s",
    }
    workload = Workload.model_validate(given)
    rows = []
    for place in range(100):
        began = place / 10
        times = {
            "planned_s": began,
            "sent_s": began + 0.01,
            "first_token_s": began + 0.1,
            "end_s": began + 0.14,
        }
        chunks = [began + after for after in (0.1, 0.12, 0.14)]
        rows.append(row(place, **times, last_token_s=chunks[-1], chunk_s=chunks))
    late = WELL.model_copy(update={"send_lateness_p99_s": 0.012})
    assert set(list_moved_metrics(RequestSums.of(table(*rows)), workload, late)) == {
        "ttft",
        "latency",
    }
    hopeless = WELL.model_copy(update={"send_lateness_p99_s": 1.0})
    assert "output_throughput" in list_moved_metrics(
        RequestSums.of(table(*rows)), workload, hopeless
    )


@pytest.mark.parametrize(
    ("stolen", "said"), [(0.06, "; a hypervisor took 6.0 % of the processors)"), (0.01, "ms)")]
)
def test_a_late_client_on_a_machine_that_lost_its_processors_says_so(
    stolen: float, said: str
) -> None:
    late = health(mean_lag_s=0.003).model_copy(update={"stolen_share": stolen})
    failure = verdict(row(0), row(1), health=late)
    assert failure is not None
    assert failure.cause.endswith(said)


def test_long_gaps_do_not_hide_a_late_first_token() -> None:
    slow = {"chunk_s": [0.1, 0.5, 0.9], "last_token_s": 0.9, "end_s": 0.9}
    late = health(p99_lag_s=0.030)  # a small part of a gap, a large one of the time to first token
    assert set(
        list_moved_metrics(RequestSums.of(table(row(0, **slow), row(1, **slow))), WORKLOAD, late)
    ) == {"ttft"}


@pytest.mark.parametrize(("lag_s", "counts"), [(0.019, True), (0.030, False)])
def test_the_kernels_times_forgive_a_late_reader_until_two_tokens_come_in_one_read(
    lag_s: float, counts: bool
) -> None:
    """Tokens are 20 ms apart."""
    late = health(mean_lag_s=0.010, p99_lag_s=lag_s).model_copy(update={"kernel_times": True})
    failure = verdict(row(0), row(1), health=late)
    assert (failure is None) == counts


def test_a_very_quick_engine_is_not_held_to_microseconds() -> None:
    quick = {
        "first_token_s": 0.001,
        "last_token_s": 0.003,
        "chunk_s": [0.001, 0.002, 0.003],
        "end_s": 0.003,
    }
    late_s = 0.9 * MEAN_DELAY_FLOOR_S
    assert verdict(row(0, **quick, sent_s=late_s), row(1, **quick, sent_s=late_s)) is None


@pytest.mark.parametrize(
    ("status", "late_s", "outcome"),
    [
        ("stalled", 40.8, Outcome.DISTURBED),
        ("timeout", 40.8, Outcome.DISTURBED),
        ("stalled", 0.5, Outcome.TIMEOUT),
        ("broken", 40.8, Outcome.CRASHED),
    ],
)
def test_a_client_that_stood_still_does_not_blame_the_server(
    status: str, late_s: float, outcome: Outcome
) -> None:
    failed = row(1, status=status, error="no byte for 120 s")
    found = verdict(
        row(0),
        failed,
        health=ClientHealth(send_lateness_p99_s=late_s, loop_lag_p99_s=0.0, cpu_share=0.1),
    )
    assert found is not None
    assert found.outcome is outcome


def test_a_clock_that_may_be_too_far_apart_is_named() -> None:
    machines = tuple(
        LoadMachine(name=f"n{place}", requests=1, off_by_s=off_s)
        for place, off_s in enumerate((0.0, 0.1))
    )
    failure = verdict(row(0), row(1), health=WELL.model_copy(update={"nodes": machines}))
    assert failure is not None
    assert failure.outcome is Outcome.DISTURBED
    assert "n1" in failure.cause
    assert verdict(row(0), row(1), health=WELL.model_copy(update={"nodes": machines[:1]})) is None
