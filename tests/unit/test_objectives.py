"""What a service promises, and whether a trial kept it: also beyond the trial's end."""

import pyarrow as pa
import pytest
from pydantic import TypeAdapter, ValidationError

from bitbench.analysis.objectives import GROWTH_LIMIT, check_objectives, judge_objectives
from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import ClientHealth, ObjectiveResult, Outcome, TrialRecord
from bitbench.study.objective import Objective, Objectives
from bitbench.study.plan import Config, Point
from tests.support.queue_simulation import poisson_trial, trial

CAPACITY = 40.0  # of the simulated server, requests/s


def objectives(text: object) -> tuple[Objective, ...]:
    return TypeAdapter[tuple[Objective, ...]](Objectives).validate_python(text)


def test_text_and_mapping_mean_the_same() -> None:
    parsed = objectives("ttft_p99=200ms, tpot_p99=20ms")
    assert parsed == objectives({"ttft_p99": "200ms", "tpot_p99": 0.02})
    assert [(one.name, one.limit) for one in parsed] == [("ttft_p99", 0.2), ("tpot_p99", 0.02)]
    assert objectives("ttft=1s,tpot_p99_s=20ms") == objectives(
        {"ttft_mean": 1.0, "tpot_p99": "20ms"}
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "speed=200ms",
            "one of ttft, tpot, latency, alone .* or with _ and one of p50, p90, p95, p99",
        ),
        ("goodput=1s", "unknown objective 'goodput'"),
        ("ttft=1s,ttft_mean=2s", "ttft is given more than once"),
        ("ttft_p98=200ms", "unknown objective 'ttft_p98'"),
        ("ttft_p99", "expected objectives such as ttft_p99=200ms"),
        ("", "expected objectives such as"),
        ("ttft_p99=fast", "a duration such as"),
        ("ttft_p99=0s", "greater than 0"),
        ("ttft_p99=1s,ttft_p99=2s", "more than once"),
    ],
)
def test_a_mistake_says_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        objectives(text)


def test_a_rate_within_the_capacity_holds() -> None:
    result = judge_objectives(RequestSums.of(trial(0.99 * CAPACITY), objectives("ttft_p99=200ms")))
    assert result is not None
    assert result.holds
    assert abs(result.growth or 0.0) < GROWTH_LIMIT / 10


def test_an_overload_of_three_percent_passes_the_limit_within_the_derived_time() -> None:
    # The unloaded time is 12.5 ms: 100 ms leave d = 87.5 ms, so d / ε = 2.9 s.
    tight = objectives("ttft_p99=100ms")
    longer = judge_objectives(RequestSums.of(trial(1.03 * CAPACITY, duration_s=4.0), tight))
    assert longer is not None
    assert longer.why_not is not None
    assert "ttft_p99 is" in longer.why_not
    shorter = judge_objectives(RequestSums.of(trial(1.03 * CAPACITY, duration_s=2.0), tight))
    assert shorter is not None
    assert "ttft_p99 is" not in (shorter.why_not or "")


def test_a_queue_that_grows_fails_even_while_its_p99_holds() -> None:
    result = judge_objectives(RequestSums.of(trial(1.03 * CAPACITY), objectives("ttft_p99=10s")))
    assert result is not None
    assert result.growth == pytest.approx(0.03, abs=0.003)
    assert not result.holds
    assert "the offered rate exceeds capacity" in (result.why_not or "")


def test_noise_below_the_capacity_is_no_growth() -> None:
    lax = objectives("ttft_p99=10s")
    steady = [
        judge_objectives(RequestSums.of(trial(0.97 * CAPACITY, noise=0.1, seed=seed), lax))
        for seed in range(100)
    ]
    bursts = [
        judge_objectives(
            RequestSums.of(poisson_trial(0.8 * CAPACITY, duration_s=20, seed=seed), lax)
        )
        for seed in range(100)
    ]
    assert sum(result is not None and result.holds for result in steady) >= 97
    assert sum(result is not None and result.holds for result in bursts) >= 97


def test_failed_requests_are_a_failure_of_the_promise() -> None:
    table = trial(10)
    status = ["http_error", *["ok"] * (table.num_rows - 1)]
    broken = table.set_column(table.schema.get_field_index("status"), "status", pa.array(status))
    result = judge_objectives(RequestSums.of(broken, objectives("ttft_p99=10s")))
    assert result is not None
    assert result.why_not == f"1 of {table.num_rows} requests failed"
    assert RequestSums.of(broken, objectives("ttft_p99=10s")).good_share == pytest.approx(
        1 - 1 / table.num_rows
    )


def test_good_share_counts_requests_within_the_loosest_limit() -> None:
    table = trial(2 * CAPACITY, duration_s=2.0)  # waits grow evenly from 0 to 2 s
    assert RequestSums.of(
        table, objectives("ttft_p50=0.5s,ttft_p99=1.0s")
    ).good_share == pytest.approx(0.5, abs=0.05)
    assert RequestSums.of(table, ()).good_share is None
    assert judge_objectives(RequestSums.of(table, ())) is None


def record(outcome: Outcome, result: ObjectiveResult) -> TrialRecord:
    return TrialRecord(
        id="t00001",
        point=Point(config=Config(variant="none", engine="e"), workload="rate-1"),
        block=0,
        index=0,
        instance_id="i0001",
        started_at="2026-01-01T00:00:00Z",
        duration_s=1.0,
        outcome=outcome,
        objectives=result,
        client=ClientHealth(send_lateness_p99_s=0.010, loop_lag_p99_s=0.005, cpu_share=0.1),
    )


def test_a_late_client_can_only_make_a_server_look_worse() -> None:
    ttft, tpot = objectives("ttft_p99=200ms"), objectives("tpot_p99=20ms")
    late = Outcome.CLIENT_BOUND
    assert check_objectives(record(late, ObjectiveResult(holds=True)), ttft) is True
    assert check_objectives(record(late, ObjectiveResult(holds=True)), tpot) is None
    assert (
        check_objectives(record(late, ObjectiveResult(holds=False, excess_s=0.014)), ttft) is None
    )
    assert (
        check_objectives(record(late, ObjectiveResult(holds=False, excess_s=0.016)), ttft) is False
    )
    assert check_objectives(record(Outcome.OVERLOADED, ObjectiveResult(holds=True)), ttft) is False
    assert check_objectives(record(Outcome.OK, ObjectiveResult(holds=True)), tpot) is True
