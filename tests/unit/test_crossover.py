"""Where a config stops being faster: on records whose crossing is known."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from bitbench.analysis.results.crossover import (
    Crossing,
    Crossover,
    CrossoverAxis,
    CrossoverPoint,
    CrossoverSide,
    Stretch,
)
from bitbench.analysis.results.estimate import Estimate
from bitbench.records.trial import TrialMetrics, TrialRecord
from bitbench.reports.sections.sweep import crossover_words
from bitbench.study.plan import Plan
from bitbench.study.study import Count, Measure
from bitbench.study.workload import Workload
from tests.unit.synthetic import make_plan, make_trial, summarize

CASES = 100  # of each of the two designs below
GRIDS = {"octaves": ((1, 2, 4, 8, 16, 32, 64), 0.02), "coarse": ((1, 8, 64), 0.003)}

Seconds = Callable[[str, int], float]  # of a step: config, concurrency


def records(
    places: Sequence[int], seconds: Seconds, noise: float, seed: int, starts: int = 3
) -> tuple[Plan, list[TrialRecord]]:
    """Three trials in each start; half of the noise of a start is shared by all its workloads."""
    rng = np.random.default_rng(seed)
    workloads = [Workload(name=f"c{at}", concurrency=at, input_tokens=256, output_tokens=128) for at in places]
    measure = Measure(starts=Count(min=starts, max=starts), trials=Count(min=3, max=3))
    plan = make_plan(["plain", "quantized"], workloads, measure, baseline="plain", seed=seed)
    luck = {name: noise * rng.normal(size=starts) for name in ("plain", "quantized")}
    trials = []
    for point in plan.points:
        name, at = point.config.engine, plan.study.workload(point.workload).concurrency
        for block in range(starts):
            of_start = luck[name][block] + noise * rng.normal()
            for index in range(3):
                step_s = seconds(name, at) * float(np.exp(of_start + noise / 2 * rng.normal()))
                metrics = TrialMetrics(output_throughput=at / step_s, tpot_s=step_s)
                trials.append(make_trial(point, block, index, metrics=metrics))
    return plan, trials


def memory_then_arithmetic(crossing: float) -> Seconds:
    """10 ms to read, 0.3 ms of work per sequence; the quantized one reads less and works more. Equal at `crossing`."""

    def seconds(name: str, at: int) -> float:
        return 0.010 + 0.0003 * at if name == "plain" else 0.006 + (0.0003 + 0.004 / crossing) * at

    return seconds


def crossover(plan: Plan, trials: Sequence[TrialRecord]) -> Crossover:
    (found,) = summarize(plan, trials, []).crossovers
    return found


@pytest.mark.parametrize("grid", GRIDS)
def test_the_interval_holds_a_known_crossing(grid: str) -> None:
    places, noise = GRIDS[grid]
    rng = np.random.default_rng(5)
    held = sure = 0
    for case in range(CASES):
        truth = float(2 ** rng.uniform(np.log2(places[0]) + 0.5, np.log2(places[-1]) - 0.5))
        found = crossover(*records(places, memory_then_arithmetic(truth), noise, case))
        held += any(one.low <= truth <= one.high for one in found.crossings)
        sure += any(one.is_sure for one in found.crossings)
    assert held >= 0.95 * CASES
    assert sure >= 0.8 * CASES  # an interval of the whole range would hold it too, and say nothing


def test_equals_do_not_surely_cross() -> None:
    found = [crossover(*records((1, 8, 64), lambda _, at: 0.01 + 0.0003 * at, 0.02, case)) for case in range(40)]
    assert sum(any(one.is_sure for one in each.crossings) for each in found) <= 2


def test_none_in_the_range_measured_is_said_with_its_confidence() -> None:
    found = crossover(*records((1, 4, 16), memory_then_arithmetic(500.0), 0.01, seed=1))
    assert found.crossings == ()
    assert [one.standing for one in found.stretches] == [CrossoverSide.FASTER]
    assert found.none_confidence is not None
    assert found.none_confidence > 0.95
    assert crossover_words(found).startswith("none in the range measured: faster from 1 to 16 (")


def test_a_range_that_ends_too_early_is_not_called_sure() -> None:
    found = crossover(*records((1, 4, 16), memory_then_arithmetic(17.0), 0.02, seed=3))
    assert found.stretches[0].standing is CrossoverSide.FASTER
    assert found.stretches[-1].standing is CrossoverSide.UNSURE
    assert not any(one.is_sure for one in found.crossings)


def test_a_point_that_is_sure_alone_is_named() -> None:
    unsure = Stretch(low=1, high=4, standing=CrossoverSide.UNSURE)
    points = (
        CrossoverPoint(at=1, workload="one", speed=Estimate(value=1.49, low=1.12, high=2.07)),
        CrossoverPoint(at=4, workload="four", speed=Estimate(value=1.01, low=0.61, high=1.41)),
    )
    found = crossover(*records((1, 2, 4), memory_then_arithmetic(100), 0.001, seed=1))
    found = found.model_copy(update={"points": points, "stretches": (unsure,), "crossings": (), "none_confidence": 0.4})
    assert (
        crossover_words(found)
        == "inconclusive: no significant difference from 1 to 4, but for single points: faster at 1"
    )
    both = found.model_copy(update={"points": (points[1], points[1])})
    assert crossover_words(both) == "inconclusive: no significant difference from 4 to 4"


def test_the_words_agree_with_the_intervals_beside_them() -> None:
    """Both points below 1, and the band between them unsure: significant at each, and only in between unknown."""
    slower = (
        CrossoverPoint(at=1, workload="one", speed=Estimate(value=0.85, low=0.73, high=0.99)),
        CrossoverPoint(at=8, workload="eight", speed=Estimate(value=0.57, low=0.47, high=0.70)),
    )
    surely = Stretch(low=1, high=2, standing=CrossoverSide.SLOWER)
    unsure = Stretch(low=2, high=8, standing=CrossoverSide.UNSURE)
    found = crossover(*records((1, 2, 4), memory_then_arithmetic(100), 0.001, seed=1))
    found = found.model_copy(update={"points": slower, "stretches": (surely, unsure), "none_confidence": 0.97})
    assert (
        crossover_words(found)
        == "none seen: significantly slower at every point from 1 to 8, inconclusive between them"
    )
    alone = found.model_copy(update={"stretches": (unsure,)})
    assert crossover_words(alone) == crossover_words(found)
    at_8 = slower[1].model_copy(update={"speed": Estimate(value=0.57, low=0.47, high=1.2)})
    doubtful = found.model_copy(update={"points": (slower[0], at_8)})
    assert crossover_words(doubtful) == "none seen: slower at every point from 1 to 8, but not significantly at 8"


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        (((1.35, 1.90), (0.70, 1.14)), "significantly only at 1"),
        (((0.95, 1.90), (0.70, 0.99)), "significantly only at 8"),
        (((0.95, 1.90), (0.70, 1.14)), "neither significantly"),
    ],
)
def test_a_crossing_that_is_not_sure_says_which_side_is(sides: Sequence[tuple[float, float]], said: str) -> None:
    found = crossover(*records((1, 2, 4), memory_then_arithmetic(100), 0.001, seed=1))
    points = tuple(
        CrossoverPoint(at=at, workload=str(at), speed=Estimate(value=speed, low=low, high=high))
        for at, speed, (low, high) in zip((1, 8), (1.6, 0.89), sides, strict=True)
    )
    between = Crossing(at=4, low=1, high=8, after=1, before=8, becomes=CrossoverSide.SLOWER, is_sure=False)
    found = found.model_copy(update={"points": points, "crossings": (between,)})
    assert crossover_words(found) == f"inconclusive: faster at 1 and slower at 8, {said}"
    narrow = found.model_copy(update={"crossings": (between.model_copy(update={"low": 2.0}),)})
    assert f"faster before, slower after, {said}; measured at 1 and 8" in crossover_words(narrow)


def test_several_crossings_are_all_named() -> None:
    def seconds(name: str, at: int) -> float:
        return 0.01 * (1 if name == "plain" else 0.8 if at in (1, 2, 32, 64) else 1.25)

    found = crossover(*records((1, 2, 4, 8, 16, 32, 64), seconds, 0.005, seed=2))
    assert [(one.after, one.before, one.becomes) for one in found.crossings] == [
        (2, 4, CrossoverSide.SLOWER),
        (16, 32, CrossoverSide.FASTER),
    ]
    assert all(one.is_sure for one in found.crossings)
    assert crossover_words(found).count("it crosses in between") == 2


def test_with_two_points_the_interval_is_what_lies_between_them() -> None:
    found = crossover(*records((8, 64), memory_then_arithmetic(20.0), 0.003, seed=4))
    (one,) = found.crossings
    assert (one.low, one.high, one.is_sure) == (pytest.approx(8), pytest.approx(64), True)
    assert one.becomes is CrossoverSide.SLOWER


def test_a_lower_is_better_primary_metric_gives_the_same_answer() -> None:
    plan, trials = records((1, 8, 64), memory_then_arithmetic(20.0), 0.003, seed=4)
    measure = plan.study.measure.model_copy(update={"metric": "tpot"})
    by_time = plan.model_copy(update={"study": plan.study.model_copy(update={"measure": measure})})
    (one,), (other,) = crossover(plan, trials).crossings, crossover(by_time, trials).crossings
    assert one.becomes is other.becomes is CrossoverSide.SLOWER
    assert one.at == pytest.approx(other.at, rel=0.02)


def test_only_what_differs_in_one_number_is_a_series() -> None:
    plan, trials = records((1, 8), memory_then_arithmetic(20.0), 0.003, seed=4)
    second = plan.study.workloads[1].model_copy(update={"output_tokens": 16})
    study = plan.study.model_copy(update={"workloads": (plan.study.workloads[0], second)})
    assert summarize(plan.model_copy(update={"study": study}), trials, []).crossovers == ()


def test_input_length_is_an_axis_too() -> None:
    plan, trials = records((1, 8, 64), memory_then_arithmetic(20.0), 0.003, seed=4)
    longer = {one.name: one.concurrency * 128 for one in plan.study.workloads}
    workloads = tuple(
        one.model_copy(update={"concurrency": 1, "input_tokens": longer[one.name]}) for one in plan.study.workloads
    )
    study = plan.study.model_copy(update={"workloads": workloads})
    found = crossover(plan.model_copy(update={"study": study}), trials)
    assert found.axis is CrossoverAxis.INPUT_TOKENS
    assert [point.at for point in found.points] == [128, 1024, 8192]
    assert "tokens of input" in crossover_words(found)
