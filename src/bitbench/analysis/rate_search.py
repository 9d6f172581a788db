"""The highest rate that holds, from few trials that can be wrong.

A trial says yes or no. Far from the edge the answer is certain; within the noise of the server it is a coin. So the
search keeps a probability for each place where the edge may be, and asks where it halves them:

1. From `start` the rate is quadrupled until a trial fails (or quartered until one holds): a server is never asked for
   more than four times what it has shown, and a queue that grows so fast drains within the length of a few trials.
2. From then on each trial is made at the median of the posterior. Near the edge that repeats almost the same rate,
   as often as the noise needs.
3. It stops when the interval is narrow enough, or the trials are used up.

The model of a trial at rate r, with the edge at θ: it holds with probability Φ((ln θ − ln r) / σ), but for a lapse.
A trial below the edge fails with probability `FALSE_FAILURE` all the same (something else ran on the machine), one
above it hardly ever holds. σ is not known: `NOISES` between 0.5 % and 5 % are possible, so that answers which
contradict each other widen the interval. Before the first trial every ln θ is as likely as any other; an overloaded
server also says how many requests it served per second, and half of the prior is moved to the neighbourhood of that.

There is no state but the trials: a search that was interrupted goes on from its records.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import log

import numpy as np
import numpy.typing as npt

from bitbench.analysis.intervals import normal_below
from bitbench.analysis.objectives import objectives_hold
from bitbench.analysis.results.summary import RateAnswer, SearchStop
from bitbench.records.trial import TrialRecord
from bitbench.study.objective import SearchLimits
from bitbench.study.study import Study
from bitbench.study.workload import mean_arrival_rate

Floats = npt.NDArray[np.float64]

GROWTH = 4.0
NOISES = {0.005: 0.3, 0.01: 0.3, 0.02: 0.25, 0.05: 0.15}  # relative, and how likely each is before the first trial
FALSE_FAILURE = 0.01
FALSE_HOLD = 0.001
SERVED_WEIGHT = 0.5
OVERLOAD = 0.9  # served / offered, below which a trial says what the server can do; above it was too slow, not too busy
SERVED_SPREAD = 0.10  # relative: how far the edge of an objective usually is from the capacity
STEP = 0.002  # of the grid, relative: a fifteenth of the precision that is usually asked for
DIGITS = 3  # of the rates that are tried: people read them


@dataclass(frozen=True)
class RateTrial:
    rate: float
    holds: bool
    served_rate: float | None = None


def rate_trials(study: Study, trials: Iterable[TrialRecord]) -> list[RateTrial]:
    """What a search has learnt from the trials of its study."""
    found = []
    for trial in trials:
        holds = objectives_hold(trial, study.objectives)
        if holds is None:
            continue
        rate = mean_arrival_rate(study.workload(trial.point.workload).arrival)
        assert rate is not None, "a search is about rates"
        found.append(RateTrial(rate, holds, trial.metrics.achieved_rate))
    return found


def next_rate(trials: Sequence[RateTrial], limits: SearchLimits) -> float | None:
    """Where to try next; None when there is no more to ask."""
    return None if _stop(trials, limits) else _next(trials, limits)


def rate_search_answer(trials: Sequence[RateTrial], limits: SearchLimits) -> RateAnswer:
    """What is known now, finished or not."""
    stop = _stop(trials, limits)
    held = [trial.rate for trial in trials if trial.holds]
    failed = [trial.rate for trial in trials if not trial.holds]
    low: float | None
    median: float | None
    high: float | None
    if not held or not failed:
        low = median = max(held) if held else None
        high = min(failed) if failed else None
    else:
        low, median, high = _quantiles(trials, limits)
    return RateAnswer(rate=median, low=low, high=high, confidence=limits.confidence, trials=len(trials), stop=stop)


def _stop(trials: Sequence[RateTrial], limits: SearchLimits) -> SearchStop | None:
    held = [trial.rate for trial in trials if trial.holds]
    failed = [trial.rate for trial in trials if not trial.holds]
    if held and not failed and max(held) >= limits.highest:
        return SearchStop.HIGHEST
    if failed.count(limits.lowest) > 1 and not held:  # twice: one may be a lapse
        return SearchStop.LOWEST
    if held and failed:
        low, median, high = _quantiles(trials, limits)
        if (high - low) / 2 <= limits.precision * median:
            return SearchStop.PRECISE
    return SearchStop.TRIALS if len(trials) >= limits.trials else None


def _next(trials: Sequence[RateTrial], limits: SearchLimits) -> float:
    held = [trial.rate for trial in trials if trial.holds]
    failed = [trial.rate for trial in trials if not trial.holds]
    if not trials:
        wanted = limits.start
    elif not failed:
        wanted = max(held) * GROWTH
    elif not held:
        wanted = min(failed) / GROWTH
    else:
        wanted = _quantiles(trials, limits)[1]
    return min(max(_rounded(wanted), limits.lowest), limits.highest)


def _quantiles(trials: Sequence[RateTrial], limits: SearchLimits) -> tuple[float, float, float]:
    """Lower limit, median and upper limit of the edge."""
    return _computed(tuple(trials), limits.confidence)


@cache
def _computed(trials: tuple[RateTrial, ...], confidence: float) -> tuple[float, float, float]:
    rates = np.array([trial.rate for trial in trials])
    # A step of growth on each side: a lapse at the end of the bracket stays possible.
    place = np.arange(log(rates.min() / GROWTH), log(rates.max() * GROWTH), STEP)
    share = np.cumsum(_posterior(trials, place))
    tail = (1 - confidence) / 2
    found = [float(np.exp(np.interp(want, share / share[-1], place))) for want in (tail, 0.5, 1 - tail)]
    return found[0], found[1], found[2]


def _posterior(trials: Sequence[RateTrial], place: Floats) -> Floats:
    noise = np.array(list(NOISES))[:, np.newaxis]
    likelihood = np.repeat(np.array(list(NOISES.values()))[:, np.newaxis], place.size, axis=1)
    for trial in trials:
        below = normal_below((place - log(trial.rate)) / noise)  # how likely the rate is below the edge of its moment
        holds = FALSE_HOLD + (1 - FALSE_HOLD - FALSE_FAILURE) * below
        likelihood *= holds if trial.holds else 1 - holds
    mixed: Floats = likelihood.sum(axis=0) * _prior(trials, place)
    return mixed


def _prior(trials: Sequence[RateTrial], place: Floats) -> Floats:
    flat: Floats = np.full(place.size, 1 / place.size)
    overloaded = [
        trial for trial in trials if not trial.holds and trial.served_rate and trial.served_rate < OVERLOAD * trial.rate
    ]
    if not overloaded:
        return flat
    # The mildest overload says most: the queue of a heavy one may slow the server itself.
    served = min(overloaded, key=lambda trial: trial.rate).served_rate
    assert served is not None
    near = np.exp(-0.5 * ((place - log(served)) / SERVED_SPREAD) ** 2)
    weight = SERVED_WEIGHT if near.sum() > 0 else 0.0
    bump: Floats = near / max(float(near.sum()), 1e-300)
    return (1 - weight) * flat + weight * bump


def _rounded(rate: float) -> float:
    return float(f"{rate:.{DIGITS}g}")
