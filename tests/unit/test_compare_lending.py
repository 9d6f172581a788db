"""Two studies with few starts: degrees of freedom that their points lend each other, through what `compare` uses."""

from functools import cache

import numpy as np
import pytest

from bitbench.analysis.changes import Changes, Pair, make_changes_between_studies
from bitbench.analysis.claims import adjust_p_values
from bitbench.analysis.results.comparison import ChangeVerdict, Comparison
from bitbench.analysis.study_comparison import compare_studies
from bitbench.analysis.unpaired import estimate_unpaired_ratio
from bitbench.records.folder import StudyRecords
from bitbench.records.trial import Memory, TrialMetrics
from bitbench.study.study import Count, Measure
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.support.machine_simulation import GALLERY, LUCK, Machine, Schedule, simulate
from tests.support.synthetic import make_plan, make_records, make_trial

PAIRS = 60
CONFIGS = 4
THREE_BY_THREE = Schedule(blocks=3, rounds=3)
MEASURE = Measure(starts=Count(min=3, max=3), trials=Count(min=3, max=3))
CONFIDENCE = MEASURE.confidence
PLAN = make_plan(
    [f"engine-{number}" for number in range(CONFIGS)], [BUILT_IN_WORKLOADS["interactive"]], MEASURE
)


def study(machine: Machine, speed: float, seed: int) -> StudyRecords:
    """All configs of the same true speed."""
    figures = simulate(machine, [speed] * CONFIGS, THREE_BY_THREE, np.random.default_rng(seed))
    trials = [
        make_trial(
            point,
            block,
            index,
            metrics=TrialMetrics(
                output_throughput=float(np.exp(value)), latency_s=float(np.exp(-value))
            ),
            memory=Memory(peak_bytes=1000 + block),
        )
        for point, starts in zip(PLAN.points, figures.values, strict=True)
        for block, start in enumerate(starts)
        for index, value in enumerate(start)
    ]
    return make_records(PLAN, trials)


@cache
def compared(
    machine: Machine, faster: float
) -> list[tuple[Comparison, StudyRecords, StudyRecords]]:
    found = []
    for seed in range(PAIRS):
        before, after = (
            study(machine, 100.0, 2 * seed),
            study(machine, 100.0 * faster, 2 * seed + 1),
        )
        found.append((compare_studies(before, after, conditions=(), allowed=()), before, after))
    return found


@pytest.mark.parametrize("machine", [GALLERY, LUCK], ids=["gallery", "luck"])
def test_a_ratio_is_covered_and_equal_studies_are_seldom_told_apart(machine: Machine) -> None:
    comparisons = [comparison for comparison, _, _ in compared(machine, 1.0)]
    intervals = [
        point.ratio.interval
        for one in comparisons
        for point in one.points
        if point.ratio and point.ratio.interval
    ]
    assert len(intervals) == CONFIGS * PAIRS
    assert np.mean([one.low <= 1.0 <= one.high for one in intervals]) >= 0.94
    assert (
        np.mean(
            [
                any(point.verdict is not ChangeVerdict.UNDECIDED for point in one.points)
                for one in comparisons
            ]
        )
        <= 0.05
    )


def told_by_the_two_samples(before: StudyRecords, after: StudyRecords) -> int:
    """How many of the points, without what others lend."""
    changes = Changes(make_changes_between_studies(before, after).samples)
    found = [changes.find(Pair(point, point), "output_throughput") for point in PLAN.points]
    ratios = [
        estimate_unpaired_ratio(one.after, one.before, CONFIDENCE)
        for one in found
        if one is not None
    ]
    p_values = adjust_p_values(
        [one.p_value for one in ratios if one is not None and one.p_value is not None]
    )
    return sum(p_value < 1 - CONFIDENCE for p_value in p_values)


def test_more_is_found_than_by_the_two_samples_alone() -> None:
    """A study that is 1.5 times as fast, three starts of three trials on either side."""
    lent = sum(
        point.verdict is ChangeVerdict.FASTER
        for one, _, _ in compared(GALLERY, 1.5)
        for point in one.points
    )
    alone = sum(
        told_by_the_two_samples(before, after) for _, before, after in compared(GALLERY, 1.5)
    )
    assert lent >= 1.2 * alone
    assert lent >= 0.7 * CONFIGS * PAIRS


def test_what_lends_and_what_does_not() -> None:
    """A time is the reciprocal of a speed, so its ratio is, too. Memory is compared by itself, and so is one start."""
    before, after = study(GALLERY, 100.0, 1), study(GALLERY, 110.0, 2)
    changes = make_changes_between_studies(before, after)
    pair = Pair(PLAN.points[0], PLAN.points[0])
    speed, time, memory = (
        changes.find(pair, name) for name in ("output_throughput", "latency_s", "peak_bytes")
    )
    assert speed is not None
    assert time is not None
    assert speed.log_ratio is not None
    assert time.log_ratio is not None
    assert time.log_ratio.log_mean == pytest.approx(-speed.log_ratio.log_mean)
    assert time.log_ratio.p_value == pytest.approx(speed.log_ratio.p_value)
    assert speed.log_ratio.degrees_of_freedom > 6
    assert memory is not None
    assert memory.log_ratio is None
    single = make_records(PLAN, [trial for trial in before.trials if trial.block == 0])
    alone = make_changes_between_studies(single, after).find(pair, "output_throughput")
    assert alone is not None
    assert alone.log_ratio is None
    assert alone.ratio(CONFIDENCE) == estimate_unpaired_ratio(alone.after, alone.before, CONFIDENCE)
