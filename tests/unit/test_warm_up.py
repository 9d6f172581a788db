"""Warm-up ends when two rounds agree, on what compiles or tunes for its first requests; a single one elsewhere."""

from pathlib import Path

import pytest

import bitbench
from bitbench.records.trial import TrialMetrics, TrialRecord
from bitbench.running.group import LIMIT_S, MOST_ROUNDS, is_steady, should_run_warm_up_round
from bitbench.study.plan import Config, Point
from bitbench.study.study import Argument
from bitbench.study.workload import Workload
from tests.support.null_instance import running
from tests.support.synthetic import make_trial

POINT = Point(config=Config(variant="none", engine="e"), workload="w")
SHORT = Workload(name="w", concurrency=2, input_tokens=8, output_tokens=16)
WHOLE = Workload.model_validate(
    {
        "name": "w",
        "input_tokens": 8,
        "output_tokens": 16,
        "arrival": {"kind": "poisson", "rate": 2},
        "duration": 10,
    }
)


def rounds(*latencies: float, duration_s: float = 1.0) -> list[TrialRecord]:
    return [
        make_trial(
            POINT,
            0,
            0,
            kind="warmup",
            duration_s=duration_s,
            metrics=TrialMetrics(latency_s=latency),
        )
        for latency in latencies
    ]


@pytest.mark.parametrize(
    ("latencies", "steady"),
    [((1.0,), False), ((1.0, 0.5), False), ((9.0, 1.0, 1.09), True), ((1.0, 1.0, 1.2), False)],
)
def test_the_last_two_rounds_decide(latencies: tuple[float, ...], steady: bool) -> None:
    assert is_steady(rounds(*latencies)) is steady
    assert should_run_warm_up_round(SHORT, rounds(*latencies), until_steady=True) is not steady


def test_it_ends_within_limits() -> None:
    falling = rounds(*(2.0**-number for number in range(MOST_ROUNDS)))
    assert should_run_warm_up_round(SHORT, falling[:-1], until_steady=True)
    assert not should_run_warm_up_round(SHORT, falling, until_steady=True)
    assert not should_run_warm_up_round(
        SHORT, rounds(9.0, 1.0, duration_s=LIMIT_S / 2), until_steady=True
    )


def test_one_round_is_enough_on_a_cpu_and_where_it_is_the_whole_workload() -> None:
    for workload, until_steady in ((SHORT, False), (WHOLE, True)):
        assert should_run_warm_up_round(workload, [], until_steady=until_steady)
        assert not should_run_warm_up_round(workload, rounds(1.0), until_steady=until_steady)


@pytest.mark.alone
@pytest.mark.parametrize(("slow", "needed"), [("", 2), ("5,6,7", 4)])
def test_an_endpoint_whose_first_requests_are_slow(
    slow: str, needed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First contact has four requests; of the next ones all of the first round are slow, and half of the second."""
    steady: dict[str, Argument] = {
        "ttft": "500ms",
        "tpot": "300ms",
        "slow_requests": slow,
        "slow_factor": 4,
    }
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    with running(steady, tmp_path) as null:
        monkeypatch.setenv("OPENAI_API_KEY", null.api_key)
        place, shape = tmp_path / "out", {"requests": 2, "trials": 1, "output_tokens": 2}
        results = bitbench.load_test(null.url, into=place, concurrency=[2], **shape)
    assert len(results.warmups) == needed
    assert len(results.trials) == 1
