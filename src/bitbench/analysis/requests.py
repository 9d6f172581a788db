"""Single requests of a point over all of its trials: their percentiles, and what so many requests can say.

The 99th percentile of eight requests is their slowest, and the mean of many such figures estimates the slowest of
eight, ever more exactly. So the requests of all trials are pooled, and the interval comes from shares: of start i the
share F_i of requests that are at most the estimate varies around q by chance and by the luck of the start,

    se = max(sd(F_i) / √I,  √(q·(1 − q) / N)),   low = Q(q − t·se),   high = Q(q + t·se),   t with I − 1 df

An end beyond the requests there are, q + t·se > 1 − 1/(2N), is **open**: all that is known is "more than 412 ms".
Below it is 0, as times are. Where too few requests say no more of a high percentile than the slowest, that is the
value.

**A batch is one event** where its requests share one fate, such as the prefill before the first token: N then counts
batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf, sqrt

import numpy as np
import pyarrow.compute as pc

from bitbench.analysis.intervals import t_reach
from bitbench.analysis.results.estimate import (
    MEDIAN,
    CountedEvent,
    PercentileEstimate,
    is_estimate_carried,
)
from bitbench.analysis.results.summary import StreamSummary
from bitbench.records.folder import StudyRecords
from bitbench.records.request_rows import Floats, RequestRows
from bitbench.records.trial import TrialRecord
from bitbench.study.metrics import METRICS
from bitbench.study.workload import Arrival, Workload
from bitbench.util.errors import RowsNotKeptError

Starts = Sequence[Sequence[Floats]]  # one per start: the times of each of its trials


def percentile(
    starts: Starts,
    percent: float,
    confidence: float,
    *,
    event: CountedEvent = CountedEvent.REQUEST,
    shared_by: int = 1,
) -> PercentileEstimate | None:
    """None without a request. One start does not cover the next: both ends are open.

    `shared_by`: so many requests of a trial share one fate and are one event, those of a batch. Where no start is in
    question, as on an endpoint that runs already, give its trials as starts.
    """
    known = [[times[np.isfinite(times)] for times in trials] for trials in starts if trials]
    of_starts = [found for trials in known if (found := np.concatenate(trials)).size]
    if not of_starts:
        return None
    times = np.concatenate(of_starts)
    events = sum(ceil(trial.size / shared_by) for trials in known for trial in trials)
    share = percent / 100
    value = float(np.quantile(times, share))
    reach = _reach(of_starts, value, share, events, confidence)
    has_low = share - reach >= 1 / (2 * events)
    has_high = share + reach <= 1 - 1 / (2 * events)
    slowest = float(times.max())
    is_slowest = not has_high and percent > MEDIAN and not is_estimate_carried(events, percent)
    low = float(np.quantile(times, share - reach, method="lower")) if has_low else 0.0
    return PercentileEstimate(
        value=slowest if is_slowest else value,
        low=low if has_high or low > 0 else None,
        high=float(np.quantile(times, share + reach, method="higher")) if has_high else None,
        confidence=confidence,
        note=_note(percent, event, events, is_slowest=is_slowest),
        percent=percent,
        event=event,
        events=events,
        clusters=len(of_starts),
    )


def _note(percent: float, event: CountedEvent, events: int, *, is_slowest: bool) -> str:
    """What the value is, where it does not deserve its name: `slowest of 24`."""
    if is_estimate_carried(events, percent):
        return ""
    counted = f"of {events:,}{'' if event is CountedEvent.REQUEST else f' {event.value}'}"
    return f"slowest {counted}" if is_slowest else counted


def events_needed_for_percentile(percent: float, clusters: int, confidence: float) -> int:
    """The fewest with which chance alone leaves one: t·√(q(1 − q)/N) ≤ 1 − q − 1/(2N). Needs two clusters or more."""
    share = percent / 100
    spread = t_reach(clusters - 1, confidence) * sqrt(share * (1 - share))
    root = sqrt(spread**2 + 2 * (1 - share)) - spread  # of 1/N, where both sides are equal
    return ceil(1 / root**2)


def _reach(
    of_starts: Sequence[Floats], value: float, share: float, events: int, confidence: float
) -> float:
    """How far the interval extends to each side, as a share of requests; without end for one start."""
    if len(of_starts) < 2:
        return inf
    shares = [float((times <= value).mean()) for times in of_starts]
    error = max(
        float(np.std(shares, ddof=1)) / sqrt(len(shares)), sqrt(share * (1 - share) / events)
    )
    return t_reach(len(shares) - 1, confidence) * error


COLUMNS = (  # all that is read of a row
    "planned_s", "first_token_s", "last_token_s", "end_s", "chunk_s", "output_tokens", "timed_tokens", "status",
)  # fmt: skip
POOLED = [
    metric for metric in METRICS.values() if metric.time is not None and metric.percent is not None
]
_TIMES = tuple(dict.fromkeys(metric.time for metric in POOLED if metric.time is not None))


@dataclass(frozen=True)
class PointRequests:
    """The complete requests of the trials of a point that count and have rows; times in seconds, trial by trial."""

    trials: list[TrialRecord] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)  # of all answers
    tokens: list[float] = field(default_factory=list)
    times: dict[str, list[Floats]] = field(default_factory=lambda: {time: [] for time in _TIMES})


def pooled_requests(of: StudyRecords, trials: Sequence[TrialRecord]) -> PointRequests:
    """Those of a study that was kept without its rows are none."""
    found = PointRequests()
    for trial in trials:
        if not trial.counts or trial.requests_file is None:
            continue
        try:
            table = of.requests_of(trial, COLUMNS)
        except RowsNotKeptError:
            continue
        complete = RequestRows(table).complete()
        found.trials.append(trial)
        found.chunks.append(pc.sum(pc.list_value_length(complete.table["chunk_s"])).as_py() or 0)
        found.tokens.append(float(np.nansum(complete.output_tokens)))
        for time, parts in found.times.items():
            values = complete.time(time)
            parts.append(np.full_like(values, np.nan) if time in trial.uncertain else values)
    return found


def request_tails(
    requests: PointRequests, workload: Workload, confidence: float, *, was_running: bool
) -> dict[str, PercentileEstimate]:
    """By the column of the figure. `was_running`: no start is in question, so trials are the clusters."""
    found = {}
    for metric in POOLED:
        assert metric.time is not None
        assert metric.percent is not None
        clusters = _clusters(requests, metric.time, by_trial=was_running)
        event, shared_by = _event(metric.time, workload)
        known = percentile(clusters, metric.percent, confidence, event=event, shared_by=shared_by)
        if known is not None:
            found[metric.column] = known
    return found


def _clusters(requests: PointRequests, time: str, *, by_trial: bool) -> Starts:
    clusters: dict[str, list[Floats]] = {}
    for trial, times in zip(requests.trials, requests.times[time], strict=True):
        clusters.setdefault(trial.id if by_trial else trial.instance_id, []).append(times)
    return list(clusters.values())


def _event(time: str, workload: Workload) -> tuple[CountedEvent, int]:
    """What has a fate of its own, and how many times share it: a batch is prefilled and decoded as one."""
    size = workload.concurrency if workload.arrival.kind is Arrival.BATCH else 1
    if time == "itl":
        return CountedEvent.GAP, size
    return (CountedEvent.BATCH if size > 1 else CountedEvent.REQUEST), size


def stream_summary(requests: PointRequests) -> StreamSummary | None:
    """How the answers came; None without an answer."""
    chunks = sum(requests.chunks)
    if not chunks:
        return None
    gaps = np.concatenate(requests.times["itl"])
    return StreamSummary(
        tokens_per_chunk=sum(requests.tokens) / chunks,
        median_gap_s=float(np.median(gaps)) if gaps.size else None,
        longest_gap_s=float(gaps.max()) if gaps.size else None,
    )
