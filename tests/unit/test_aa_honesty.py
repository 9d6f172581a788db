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
ADAPTIVE = Measure()  # 3 to 6 instances: more are started until it is precise
FIXED = Measure(instances=Count(min=3, max=3))


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


@pytest.mark.parametrize("measure", [ADAPTIVE, FIXED], ids=["default", "three instances"])
def test_equal_variants_are_seldom_ranked_apart(measure: Measure) -> None:
    assert share_told_apart([1.0, 1.0], measure) <= 0.05


def test_nor_is_any_pair_of_five() -> None:
    assert share_told_apart([1.0] * 5, ADAPTIVE) <= 0.05


@pytest.mark.parametrize("measure", [ADAPTIVE, FIXED], ids=["default", "three instances"])
def test_five_percent_faster_is_seen(measure: Measure) -> None:
    assert share_told_apart([1.0, 1.05], measure) >= 0.80
