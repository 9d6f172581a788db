"""Would the ranking be the same tomorrow? Simulated studies whose truth is known, through the real rules:
stopping, summary, comparison, ranking."""

import numpy as np
import pytest

from bitbench.core.study import Count, Measure
from bitbench.core.workload import BUILT_IN_WORKLOADS
from bitbench.statistics.summarize import summarize
from tests.unit.synthetic import make_plan, measured_trials

# Relative standard deviations from one start to the next, and from one trial to the next within a start.
BETWEEN_INSTANCES = 0.010
WITHIN_INSTANCE = 0.015

STUDIES = 200
WORKLOAD = BUILT_IN_WORKLOADS["interactive"]
ADAPTIVE = Measure(instances=Count(min=3, max=6))


def told_apart(speeds: list[float], measure: Measure, seed: int) -> bool:
    """Simulate one study; is any pair of its contenders ranked apart?"""
    rng = np.random.default_rng(seed)
    plan = make_plan([f"contender-{number}" for number in range(len(speeds))], [WORKLOAD], measure, seed=seed)
    trials = [
        trial
        for cell, speed in zip(plan.cells, speeds, strict=True)
        for trial in measured_trials(
            cell, measure, 1000 * speed, rng, between=BETWEEN_INSTANCES, within=WITHIN_INSTANCE
        )
    ]
    (ranking,) = summarize(plan, trials, []).rankings
    return any(len(entry.tied_with) < len(speeds) - 1 for entry in ranking.entries)


def share_told_apart(speeds: list[float], measure: Measure) -> float:
    return sum(told_apart(speeds, measure, seed) for seed in range(STUDIES)) / STUDIES


def test_equal_variants_are_seldom_ranked_apart() -> None:
    assert share_told_apart([1.0, 1.0], Measure()) <= 0.05


def test_nor_when_more_instances_are_started_until_it_is_precise() -> None:
    """This design uses its 5 % up (4.9 % of 2,000 studies), so 200 of them may show two standard errors more."""
    assert share_told_apart([1.0, 1.0], ADAPTIVE) <= 0.05 + 2 * (0.05 * 0.95 / STUDIES) ** 0.5


def test_nor_is_any_pair_of_five() -> None:
    assert share_told_apart([1.0] * 5, Measure()) <= 0.05


@pytest.mark.parametrize("measure", [Measure(), ADAPTIVE], ids=["default", "adaptive instances"])
def test_five_percent_faster_is_seen(measure: Measure) -> None:
    assert share_told_apart([1.0, 1.05], measure) >= 0.80
