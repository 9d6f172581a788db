"""The two trials in a row of a turn, and which of them counts."""

import pytest

from bitbench.analysis.summarize import collect_samples, summarize
from bitbench.analysis.turns import settle_turns
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.study.plan import Plan, Point
from bitbench.study.workload import Workload
from tests.support.synthetic import make_plan, make_records, make_trial, speed_metrics

WORKLOAD = Workload(name="w", concurrency=1, input_tokens=8, output_tokens=10)
PLAN = make_plan(["calm", "cold"], [WORKLOAD])
CALM, COLD = PLAN.points
JITTER = (0.99, 1.02, 1.0, 0.98)


def trials(slower: float, blocks: int = 4) -> list[TrialRecord]:
    """In each block a turn of two trials and one of a single trial. The engine `cold` has slow first ones."""
    found = []
    for block in range(blocks):
        for point in (CALM, COLD):
            first = slower if point == COLD else 1.0
            found += [
                trial(point, block, 0, 100 * first * JITTER[block]),
                trial(point, block, 1, 100, turn=1),
                trial(point, block, 2, 100, round_=1),
            ]
    return found


def trial(
    point: Point, block: int, index: int, speed: float, *, round_: int = 0, turn: int = 0
) -> TrialRecord:
    metrics = speed_metrics(WORKLOAD, speed)
    return make_trial(point, block, index, round=round_, turn=turn, metrics=metrics)


def counted(plan: Plan, of: list[TrialRecord], point: Point) -> list[int]:
    return [
        trial.index for trial in settle_turns(plan, of) if trial.counts and trial.point == point
    ]


def test_the_second_trial_counts_where_the_first_is_slower_by_more_than_chance() -> None:
    assert counted(PLAN, trials(0.8), CALM) == [0, 2] * 4
    assert counted(PLAN, trials(0.8), COLD) == [1, 2] * 4
    assert counted(PLAN, trials(1.0), COLD) == [0, 2] * 4


def test_it_follows_the_metric_of_the_study() -> None:
    latency = make_plan(["calm", "cold"], [WORKLOAD])
    measure = latency.study.measure.model_copy(update={"metric": "latency"})
    latency = latency.model_copy(
        update={"study": latency.study.model_copy(update={"measure": measure})}
    )
    assert counted(latency, trials(0.8), CALM) == [0, 2] * 4
    assert counted(latency, trials(0.8), COLD) == [1, 2] * 4


def test_settling_twice_is_settling_once() -> None:
    once = settle_turns(PLAN, trials(0.8))
    assert settle_turns(PLAN, once) == once


def test_one_start_says_nothing_of_a_thaw() -> None:
    assert counted(PLAN, trials(0.5, blocks=1), COLD) == [0, 2]


def test_a_rejected_second_trial_is_no_pair() -> None:
    of = trials(0.8, blocks=2)
    assert counted(PLAN, of, COLD) == [1, 2] * 2
    place = next(place for place, trial in enumerate(of) if trial.point == COLD and trial.turn)
    of[place] = of[place].model_copy(update={"outcome": Outcome.CLIENT_BOUND})
    assert counted(PLAN, of, COLD) == [0, 2] * 2


def test_figures_hold_the_trials_that_count() -> None:
    records = make_records(PLAN, trials(0.8))
    assert collect_samples(records)[COLD]["output_throughput"].n_trials == 8
    found = summarize(records)
    (cold,) = [point for point in found.points if point.point == COLD]
    assert cold.metrics["output_throughput"].value == pytest.approx(100)
    assert sum(run.outcome is Outcome.OK for run in cold.runs) == 8
