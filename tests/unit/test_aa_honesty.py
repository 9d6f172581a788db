"""Would the ranking be the same tomorrow? Simulated studies whose truth is known, through the real rules:
stopping, summary, comparison, ranking."""

from typing import NamedTuple

import numpy as np
import pytest

from bitbench.study.study import Count, Measure
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.length import by_length
from tests.support.synthetic import make_plan, measured_trials, summarize

STUDIES = by_length(100, 400)
WORKLOAD = BUILT_IN_WORKLOADS["interactive"]


class Noise(NamedTuple):
    """Relative standard deviations from one start to the next, and from one trial to the next within a start."""

    between: float
    within: float


STEADY = Noise(0.010, 0.015)
# Output throughput of examples/first-look.yaml on two cores of a cloud machine with neighbours: variance components
# pooled over the four points of three runs, two to four instances of four trials each.
CLOUD = Noise(0.07, 0.125)


def starts(count: int) -> Measure:
    return Measure(starts=Count(min=count, max=count), trials=Count(min=3, max=3))


DESIGNS = pytest.mark.parametrize(
    ("noise", "measure", "gain"),
    [(STEADY, starts(6), 1.05), (STEADY, starts(3), 1.10), (CLOUD, starts(10), 1.30)],
    ids=["steady, six starts", "steady, three starts", "cloud, ten starts"],
)


def told_apart(speeds: list[float], noise: Noise, measure: Measure, seed: int) -> bool:
    """Simulate one study; is any pair of its configs ranked apart?"""
    rng = np.random.default_rng(seed)
    plan = make_plan(
        [f"config-{number}" for number in range(len(speeds))], [WORKLOAD], measure, seed=seed
    )
    trials = [
        trial
        for point, speed in zip(plan.points, speeds, strict=True)
        for trial in measured_trials(
            point, measure, 1000 * speed, rng, between=noise.between, within=noise.within
        )
    ]
    (ranking,) = summarize(plan, trials, []).rankings
    return any(len(entry.undecided_with) < len(speeds) - 1 for entry in ranking.entries)


def share_told_apart(speeds: list[float], noise: Noise, measure: Measure) -> float:
    return sum(told_apart(speeds, noise, measure, seed) for seed in range(STUDIES)) / STUDIES


# A share of 5 % is known to 1.5 points from so many studies: two standard errors are allowed for.
MOST_FALSE = 0.05 + 2 * (0.05 * 0.95 / STUDIES) ** 0.5


@DESIGNS
def test_equal_variants_are_seldom_ranked_apart(
    noise: Noise, measure: Measure, gain: float
) -> None:
    assert share_told_apart([1.0, 1.0], noise, measure) <= MOST_FALSE


@DESIGNS
def test_a_gain_is_seen(noise: Noise, measure: Measure, gain: float) -> None:
    assert share_told_apart([1.0, gain], noise, measure) >= 0.80


def test_nor_is_any_pair_of_five_equal_ones_ranked_apart() -> None:
    assert share_told_apart([1.0] * 5, STEADY, starts(3)) <= MOST_FALSE
