"""The highest rate that meets objectives, from few trials that can be wrong.

A trial holds or fails. Far from the edge the answer is certain, and near it chance decides. So the
search keeps a probability for each possible value of the edge, and tries the rate that halves it:

1. From `start` the rate is multiplied by four until a trial fails, or divided by four until one
   holds. A server never gets more than four times the rate that it has met. These trials are short.
2. From then on, each trial has as many requests as the percentile needs, and its rate is the median
   of the posterior. Near the edge this repeats almost the same rate, as often as the noise needs.
3. Once the interval is narrow enough, or the trials are used up, a long trial at its lower end must
   meet the objectives. If it fails it counts as a trial, the interval moves down, and its new lower
   end is verified.

The model of a trial at rate r, with the edge at θ: it holds with probability Φ((ln θ − ln r) / σ +
`EDGE_SHIFT`), except for a lapse. A trial below the edge may fail for another reason
(`FALSE_FAILURE`: something else ran on the machine). A trial above it hardly ever holds. σ is
unknown: `NOISES` between 2 % and 20 % are possible, so contradicting answers widen the interval. In
a trial with fewer requests than the percentile needs, σ is larger by the square root of the ratio.

`EDGE_SHIFT`: with Poisson arrivals, a long queue is rare and lasts long. The p99 of most trials is
therefore below the p99 of the server, and at the edge itself 6 to 8 trials of 10 hold.
`scripts/search_coverage` shows how often the interval contains the truth.

The trials are the only state, so an interrupted search continues from its records.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import floor, log, log10, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bitbench.analysis.intervals import compute_normal_share_below
from bitbench.analysis.objectives import check_objectives
from bitbench.analysis.results.summary import RateAnswer, SearchStop
from bitbench.records.trial import TrialRecord
from bitbench.study.objective import RateTrialKind, SearchLimits
from bitbench.study.study import Study
from bitbench.study.workload import find_mean_rate

Floats = npt.NDArray[np.float64]

GROWTH = 4.0
NOISES = (0.02, 0.05, 0.1, 0.2)  # relative, equally likely before the first trial
EDGE_SHIFT = 0.25
FALSE_FAILURE = 0.01
FALSE_HOLD = 0.001
STEP = 0.005  # of the grid, relative: a tenth of the usual precision
DIGITS = 3  # of the rates that are tried: people read them
VERIFICATIONS = 3  # at most; each that fails moves the answer down


@dataclass(frozen=True)
class RateTrial:
    """A trial of a search, and whether it met the objectives."""

    rate: float
    holds: bool
    requests: int | None = None  # None: as many as the percentile needs
    is_verifying: bool = False


@dataclass(frozen=True)
class NextRate:
    """The next trial of a search."""

    rate: float
    kind: RateTrialKind


class RateInterval(NamedTuple):
    """The posterior median of the edge, with its central interval."""

    low: float
    median: float
    high: float


def list_rate_trials(study: Study, trials: Iterable[TrialRecord]) -> list[RateTrial]:
    """Return the trials of a search that say whether the server met its objectives."""
    counted = []
    for trial in trials:
        holds = check_objectives(trial, study.objectives)
        if holds is None:
            continue
        rate = find_mean_rate(study.workload(trial.point.workload).arrival)
        assert rate is not None, "a search is about rates"
        is_verifying = trial.point.workload.startswith(RateTrialKind.VERIFYING)
        counted.append(RateTrial(rate, holds, trial.requests, is_verifying))
    return counted


def find_next_rate(trials: Sequence[RateTrial], limits: SearchLimits) -> NextRate | None:
    """Return the next trial, or None if the search is finished."""
    searched = _list_searching_trials(trials)
    if _find_stop(searched, limits) is None:
        return _choose_next_rate(searched, limits)
    low = _find_low(searched, limits)
    refuted = [trial for trial in searched if trial.is_verifying]
    if low is None or len(refuted) >= VERIFICATIONS or _find_verifying(trials, low) is not None:
        return None
    return NextRate(low, RateTrialKind.VERIFYING)


def summarize_rate_search(trials: Sequence[RateTrial], limits: SearchLimits) -> RateAnswer:
    """Return the current answer, whether the search is finished or not."""
    searched = _list_searching_trials(trials)
    held, failed = _split_rates(searched)
    low = max(held, default=None)
    median = low
    high = min(failed, default=None)
    if held and failed:
        low, median, high = _estimate_edge(tuple(searched), limits.needed, limits.confidence)
    stop = None
    verified = None
    if find_next_rate(trials, limits) is None:
        stop = _find_stop(searched, limits)
        verified = _find_verifying(trials, _find_low(searched, limits)) if stop else None
    verified_rate = verified.rate if verified else None
    verified_requests = verified.requests if verified else None
    return RateAnswer(
        rate=median,
        low=low,
        high=high,
        confidence=limits.confidence,
        trials=len(trials),
        stop=stop,
        verified=verified_rate,
        verified_requests=verified_requests,
        refuted=tuple(trial.rate for trial in searched if trial.is_verifying),
    )


def _list_searching_trials(trials: Sequence[RateTrial]) -> list[RateTrial]:
    """Return the trials for the interval: without those that verified its lower end."""
    return [trial for trial in trials if not (trial.is_verifying and trial.holds)]


def _split_rates(trials: Sequence[RateTrial]) -> tuple[list[float], list[float]]:
    """Return the rates that held and those that failed."""
    held = [trial.rate for trial in trials if trial.holds]
    failed = [trial.rate for trial in trials if not trial.holds]
    return held, failed


def _find_stop(trials: Sequence[RateTrial], limits: SearchLimits) -> SearchStop | None:
    held, failed = _split_rates(trials)
    if held and not failed and max(held) >= limits.highest:
        return SearchStop.HIGHEST
    if failed.count(limits.lowest) > 1 and not held:  # twice: one may be a lapse
        return SearchStop.LOWEST
    if held and failed:
        low, median, high = _estimate_edge(tuple(trials), limits.needed, limits.confidence)
        if (high - low) / 2 <= limits.precision * median:
            return SearchStop.PRECISE
    searching = [trial for trial in trials if not trial.is_verifying]
    return SearchStop.TRIALS if len(searching) >= limits.trials else None


def _choose_next_rate(trials: Sequence[RateTrial], limits: SearchLimits) -> NextRate:
    held, failed = _split_rates(trials)
    kind = RateTrialKind.SHORT
    if not trials:
        target = limits.start
    elif not failed:
        target = max(held) * GROWTH
    elif not held:
        target = min(failed) / GROWTH
    else:
        target = _estimate_edge(tuple(trials), limits.needed, limits.confidence).median
        kind = RateTrialKind.FULL
    rate = float(f"{target:.{DIGITS}g}")
    return NextRate(min(max(rate, limits.lowest), limits.highest), kind)


def _find_verifying(trials: Sequence[RateTrial], low: float | None) -> RateTrial | None:
    """Return the long trial that met the objectives at the lower end of the answer, or above it."""
    verifying = [trial for trial in trials if trial.is_verifying]
    if not verifying or low is None:
        return None
    last = verifying[-1]
    return last if last.holds and last.rate >= low else None


def _find_low(trials: Sequence[RateTrial], limits: SearchLimits) -> float | None:
    """Return the rate to verify, which is the lower end of the answer. None if no trial held."""
    held, failed = _split_rates(trials)
    if not held:
        return None
    if not failed:
        return max(held)
    low = _estimate_edge(tuple(trials), limits.needed, limits.confidence).low
    return min(max(_round_down(low), limits.lowest), limits.highest)


@cache
def _estimate_edge(trials: tuple[RateTrial, ...], needed: int, confidence: float) -> RateInterval:
    """Return the posterior median and the central interval of the edge."""
    rates = np.array([trial.rate for trial in trials])
    # A step of growth on each side: a lapse at the end of the bracket stays possible.
    grid = np.arange(log(rates.min() / GROWTH), log(rates.max() * GROWTH), STEP)
    cumulative = np.cumsum(_compute_posterior_density(trials, needed, grid))
    tail = (1 - confidence) / 2
    quantiles = np.interp([tail, 0.5, 1 - tail], cumulative / cumulative[-1], grid)
    return RateInterval(*np.exp(quantiles).tolist())


def _compute_posterior_density(trials: Sequence[RateTrial], needed: int, grid: Floats) -> Floats:
    """Return the likelihood of each rate of the grid as the edge, averaged over the noises.

    Before the first trial, each logarithm of a rate is as likely as any other.
    """
    noises = np.array(NOISES)[:, np.newaxis]
    likelihood = np.ones((len(NOISES), grid.size))
    for trial in trials:
        scale = sqrt(max(needed / (trial.requests or needed), 1.0))
        below = compute_normal_share_below((grid - log(trial.rate)) / (noises * scale) + EDGE_SHIFT)
        holds = FALSE_HOLD + (1 - FALSE_HOLD - FALSE_FAILURE) * below
        likelihood *= holds if trial.holds else 1 - holds
    density: Floats = likelihood.sum(axis=0)
    return density


def _round_down(rate: float) -> float:
    unit = 10.0 ** (floor(log10(rate)) + 1 - DIGITS)
    return float(f"{floor(rate / unit + 1e-9) * unit:.{DIGITS}g}")
