"""Percentiles of single requests over all trials of a point, and what so many requests can say.

The 99th percentile of eight requests is their slowest, and the mean of many such figures estimates the slowest of
eight, ever more exactly. So the requests of all trials are pooled, and the interval comes from shares: of start i the
share F_i of requests that are at most the estimate varies around q by chance and by the luck of the start,

    se = max(sd(F_i) / √I,  √(q·(1 − q) / N)),   low = Q(q − t·se),   high = Q(q + t·se),   t with I − 1 df

An end beyond the requests there are, q + t·se > 1 − 1/(2N), is **open**: all that is known is "more than 412 ms". Below
it is 0, as times are. Where too few requests say no more of a high percentile than the slowest, that is the value.

**A batch is one event** where its requests share one fate, such as the prefill before the first token: N then counts
batches.
"""

from collections.abc import Sequence
from math import ceil, inf, sqrt

import numpy as np

from bitbench.analysis.distributions import t_reach
from bitbench.analysis.log_speeds import Floats
from bitbench.analysis.results.estimate import MEDIAN, CountedEvent, PercentileEstimate, carries

Starts = Sequence[Sequence[Floats]]  # one per start: the times of each of its trials


def percentile(
    starts: Starts, percent: float, confidence: float, *, event: CountedEvent = CountedEvent.REQUEST, shared_by: int = 1
) -> PercentileEstimate | None:
    """None without a request. One start does not cover the next: both ends are open.

    `shared_by`: so many requests of a trial share one fate and are one event, those of a batch. Where no start is in
    question, as on an endpoint that runs already, give its trials as starts.
    """
    of_starts = [found for trials in starts if (found := _pooled(trials)).size]
    if not of_starts:
        return None
    times = np.concatenate(of_starts)
    events = sum(ceil(_known(trial).size / shared_by) for trials in starts for trial in trials)
    share = percent / 100
    value = float(np.quantile(times, share))
    reach = _reach(of_starts, value, share, events, confidence)
    has_low = share - reach >= 1 / (2 * events)
    has_high = share + reach <= 1 - 1 / (2 * events)
    slowest = float(times.max())
    is_slowest = not has_high and percent > MEDIAN and not carries(events, percent)
    low = float(np.quantile(times, share - reach, method="lower")) if has_low else 0.0
    return PercentileEstimate(
        value=slowest if is_slowest else value,
        low=low if has_high or low > 0 else None,
        high=float(np.quantile(times, share + reach, method="higher")) if has_high else None,
        confidence=confidence,
        note=_note(percent, event, events, is_slowest=is_slowest),
        percent=percent,
        slowest=slowest,
        event=event,
        events=events,
        clusters=len(of_starts),
    )


def _note(percent: float, event: CountedEvent, events: int, *, is_slowest: bool) -> str:
    """What the value is, where it does not deserve its name: `slowest of 24`."""
    if carries(events, percent):
        return ""
    counted = f"of {events:,}{'' if event is CountedEvent.REQUEST else f' {event.value}'}"
    return f"slowest {counted}" if is_slowest else counted


def events_for_an_upper_end(percent: float, clusters: int, confidence: float) -> int:
    """The fewest with which chance alone leaves one: t·√(q(1 − q)/N) ≤ 1 − q − 1/(2N). Needs two clusters or more."""
    share = percent / 100
    spread = t_reach(clusters - 1, confidence) * sqrt(share * (1 - share))
    root = sqrt(spread**2 + 2 * (1 - share)) - spread  # of 1/N, where both sides are equal
    return ceil(1 / root**2)


def _reach(of_starts: Sequence[Floats], value: float, share: float, events: int, confidence: float) -> float:
    """How far the interval extends to each side, as a share of requests; without end for one start."""
    if len(of_starts) < 2:
        return inf
    shares = [float((times <= value).mean()) for times in of_starts]
    error = max(float(np.std(shares, ddof=1)) / sqrt(len(shares)), sqrt(share * (1 - share) / events))
    return t_reach(len(shares) - 1, confidence) * error


def _pooled(trials: Sequence[Floats]) -> Floats:
    return np.concatenate([_known(trial) for trial in trials]) if trials else np.empty(0)


def _known(times: Floats) -> Floats:
    return times[np.isfinite(times)]
