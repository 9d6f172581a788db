"""Percentiles of single requests over all trials of a cell, and what so many requests can say.

The 99th percentile of eight requests is their slowest, and the mean of many such figures estimates the slowest of
eight, ever more exactly. So the requests of all trials are pooled, and the interval comes from shares: of start i the
share F_i of requests that are at most the estimate varies around q by chance and by the luck of the start,

    se = max(sd(F_i) / √I,  √(q·(1 − q) / N)),   low = Q(q − t·se),   high = Q(q + t·se),   t with I − 1 df

An end beyond the requests there are, q + t·se > 1 − 1/(2N), is **open**: all that is known is "more than 412 ms". Below
it is 0, as times are.

**A batch is one event** where its requests share one fate, such as the prefill before the first token: N then counts
batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, sqrt

import numpy as np
from scipy.special import stdtrit

from bitbench.statistics.log_speeds import Floats

# A percentile has a name from so many requests beyond it on: p99 from 1,000, p90 from 100. The share beyond it is then
# known to about a third of itself (1/√10), from chance alone.
LEAST_BEYOND = 10
NAMED = (50.0, 90.0, 95.0, 99.0, 99.9)

Starts = Sequence[Sequence[Floats]]  # one per start: the times of each of its trials


@dataclass(frozen=True)
class PercentileEstimate:
    """`high` is None where the interval is open: too few requests, or starts too different, to bound it."""

    percent: float
    value: float
    low: float
    high: float | None
    confidence: float
    events: int  # requests, or batches where a batch is one event

    @property
    def is_carried(self) -> bool:
        """Whether there are enough events to call it by its name."""
        return carries(self.events, self.percent)


@dataclass(frozen=True)
class Tail:
    """What can be said of slow requests: the slowest, and the highest percentile that so many events carry."""

    slowest: float
    requests: int
    highest: PercentileEstimate | None


class ObjectiveVerdict(StrEnum):
    MET = "met"  # the whole interval is within the limit, and it has an upper end
    MISSED = "missed"  # the whole interval is beyond the limit
    INCONCLUSIVE = "inconclusive"


def carries(events: int, percent: float) -> bool:
    return round(events * (100 - percent), 6) >= 100 * LEAST_BEYOND


def highest_carried(events: int) -> float | None:
    return max((percent for percent in NAMED if carries(events, percent)), default=None)


def percentile(
    starts: Starts, percent: float, confidence: float, *, batch_is_one_event: bool = False
) -> PercentileEstimate | None:
    """None without a request. One start does not cover the next: both ends are open.

    Where no start is in question, as on an endpoint that runs already, give its trials as starts.
    """
    of_starts = [found for trials in starts if (found := _pooled(trials)).size]
    if not of_starts:
        return None
    times = np.concatenate(of_starts)
    events = _events(starts, batch_is_one_event=batch_is_one_event)
    share = percent / 100
    value = float(np.quantile(times, share))
    reach = _reach(of_starts, value, share, events, confidence)
    has_low = share - reach >= 1 / (2 * events)
    has_high = share + reach <= 1 - 1 / (2 * events)
    return PercentileEstimate(
        percent=percent,
        value=value,
        low=float(np.quantile(times, share - reach, method="lower")) if has_low else 0.0,
        high=float(np.quantile(times, share + reach, method="higher")) if has_high else None,
        confidence=confidence,
        events=events,
    )


def tail(starts: Starts, confidence: float, *, batch_is_one_event: bool = False) -> Tail | None:
    """None without a request."""
    times = _pooled([trial for trials in starts for trial in trials])
    if not times.size:
        return None
    highest = None
    if (percent := highest_carried(_events(starts, batch_is_one_event=batch_is_one_event))) is not None:
        highest = percentile(starts, percent, confidence, batch_is_one_event=batch_is_one_event)
    return Tail(slowest=float(times.max()), requests=times.size, highest=highest)


def judge_limit(found: PercentileEstimate | None, limit: float) -> ObjectiveVerdict:
    if found is None:
        return ObjectiveVerdict.INCONCLUSIVE
    if found.low > limit:
        return ObjectiveVerdict.MISSED
    return ObjectiveVerdict.MET if found.high is not None and found.high <= limit else ObjectiveVerdict.INCONCLUSIVE


def _reach(of_starts: Sequence[Floats], value: float, share: float, events: int, confidence: float) -> float:
    """How far the interval extends to each side, as a share of requests; without end for one start."""
    if len(of_starts) < 2:
        return inf
    shares = [float((times <= value).mean()) for times in of_starts]
    error = max(float(np.std(shares, ddof=1)) / sqrt(len(shares)), sqrt(share * (1 - share) / events))
    return float(stdtrit(len(shares) - 1, (1 + confidence) / 2)) * error


def _events(starts: Starts, *, batch_is_one_event: bool) -> int:
    sizes = [_known(trial).size for trials in starts for trial in trials]
    return sum(size > 0 for size in sizes) if batch_is_one_event else sum(sizes)


def _pooled(trials: Sequence[Floats]) -> Floats:
    return np.concatenate([_known(trial) for trial in trials]) if trials else np.empty(0)


def _known(times: Floats) -> Floats:
    return times[np.isfinite(times)]
