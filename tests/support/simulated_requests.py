"""Simulated requests whose true percentiles are known: a few are three times as slow, and starts and trials differ."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

from bitbench.analysis.pairs import Floats
from bitbench.analysis.requests import estimate_percentile
from bitbench.analysis.results.estimate import PercentileEstimate, Verdict, check_against_limit

REQUEST_SD, TRIAL_SD, START_SD = 0.5, 0.08, 0.057  # of the logarithm
SLOW_SHARE, SLOW = 0.02, np.log(3)
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Point:
    starts: int
    trials: int  # of each start
    requests: int  # of each trial


def true_percentile(percent: float) -> float:
    """Over starts, trials and requests."""
    sd = np.sqrt(REQUEST_SD**2 + TRIAL_SD**2 + START_SD**2)

    def beyond(log_time: float) -> float:
        share = (1 - SLOW_SHARE) * ndtr(log_time / sd) + SLOW_SHARE * ndtr((log_time - SLOW) / sd)
        return float(share - percent / 100)

    return float(np.exp(brentq(beyond, -5, 5)))


def requests(point: Point, rng: np.random.Generator) -> list[list[Floats]]:
    shape = (point.starts, point.trials, point.requests)
    logs = rng.normal(0, REQUEST_SD, shape) + SLOW * (rng.random(shape) < SLOW_SHARE)
    logs += rng.normal(0, TRIAL_SD, (*shape[:2], 1)) + rng.normal(0, START_SD, (shape[0], 1, 1))
    return [list(start) for start in np.exp(logs)]


def estimates(point: Point, percent: float, studies: int) -> list[PercentileEstimate]:
    found = (
        estimate_percentile(requests(point, np.random.default_rng(seed)), percent, CONFIDENCE)
        for seed in range(studies)
    )
    return [one for one in found if one is not None]


def covers(found: PercentileEstimate, truth: float) -> bool:
    return (found.low or 0.0) <= truth and (found.high is None or truth <= found.high)


def assert_covers(point: Point, percent: float, studies: int) -> None:
    truth = true_percentile(percent)
    assert np.mean([covers(found, truth) for found in estimates(point, percent, studies)]) >= 0.94


def assert_seldom_met(point: Point, studies: int) -> None:
    """A p99 that is 11 % beyond its limit."""
    limit = true_percentile(99) / 1.11
    verdicts = [check_against_limit(found, limit) for found in estimates(point, 99, studies)]
    assert np.mean([said is Verdict.MET for said in verdicts]) <= 0.05


P99_POINTS = [
    Point(starts, trials, requests)
    for starts, trials in ((3, 3), (6, 5))
    for requests in (8, 100, 1000)
]
