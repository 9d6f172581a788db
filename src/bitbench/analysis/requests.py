"""Percentiles over the single requests of all trials of a point, and their intervals.

The 99th percentile of eight requests is their slowest, and the mean of many such values estimates
the slowest of eight ever more exactly. So the requests of all trials are pooled, and the interval
comes from shares. The share F_i of start i's requests that are at most the estimate varies around q
by chance and by the luck of the start:

    se = max(sd(F_i) / √I,  √(q·(1 − q) / N))
    low = Q(q − t·se),   high = Q(q + t·se),   t with I − 1 df

If q + t·se > 1 − 1/(2N), the upper end lies beyond all requests. It is then **open**: all that is
known is "more than 412 ms". A lower end beyond all requests is 0, as times are positive. With too
few requests, a high percentile says no more than the slowest request, so that is the value.

**A batch is one event** if its requests are served together, such as in the prefill before the
first token. N then counts batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf, sqrt

import numpy as np
import pyarrow.compute as pc

from bitbench.analysis.intervals import compute_t_reach
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


def estimate_percentile(
    starts: Starts,
    percent: float,
    confidence: float,
    *,
    event: CountedEvent = CountedEvent.REQUEST,
    shared_by: int = 1,
) -> PercentileEstimate | None:
    """Return a percentile over all requests, or None without a request.

    One start does not cover the next, so its interval is open at both ends. `shared_by` is the
    number of requests of a trial that are one event, such as those of a batch. For an endpoint that
    was already running, give its trials as starts.
    """
    of_starts: list[Floats] = []
    events = 0
    for trials in starts:
        if not trials:
            continue
        finite = [times[np.isfinite(times)] for times in trials]
        events += sum(ceil(times.size / shared_by) for times in finite)
        pooled = np.concatenate(finite)
        if pooled.size:
            of_starts.append(pooled)
    if not of_starts:
        return None
    times = np.concatenate(of_starts)
    share = percent / 100
    value = float(np.quantile(times, share))
    reach = _compute_reach(of_starts, value, share, events, confidence)
    low = 0.0
    if share - reach >= 1 / (2 * events):
        low = float(np.quantile(times, share - reach, method="lower"))
    high = None
    if share + reach <= 1 - 1 / (2 * events):
        high = float(np.quantile(times, share + reach, method="higher"))
    is_carried = is_estimate_carried(events, percent)
    is_slowest = high is None and percent > MEDIAN and not is_carried
    if is_slowest:
        value = float(times.max())
    note = "" if is_carried else _describe_extreme(event, events, is_slowest=is_slowest)
    lower_end = low if high is not None or low > 0 else None
    return PercentileEstimate(
        value=value,
        low=lower_end,
        high=high,
        confidence=confidence,
        note=note,
        percent=percent,
        event=event,
        events=events,
        clusters=len(of_starts),
    )


def _describe_extreme(event: CountedEvent, events: int, *, is_slowest: bool) -> str:
    """Return what a value is that has too few events to be a percentile: `slowest of 24`."""
    unit = "" if event is CountedEvent.REQUEST else f" {event.value}"
    counted = f"of {events:,}{unit}"
    return f"slowest {counted}" if is_slowest else counted


def compute_events_needed(percent: float, clusters: int, confidence: float) -> int:
    """Return the fewest events with which chance alone leaves an upper end.

    They satisfy t·√(q(1 − q)/N) ≤ 1 − q − 1/(2N). There must be two clusters or more.
    """
    share = percent / 100
    spread = compute_t_reach(clusters - 1, confidence) * sqrt(share * (1 - share))
    root = sqrt(spread**2 + 2 * (1 - share)) - spread  # of 1/N, at which both sides are equal
    return ceil(1 / root**2)


def _compute_reach(
    of_starts: Sequence[Floats], value: float, share: float, events: int, confidence: float
) -> float:
    """Return how far the interval extends to each side, as a share. Infinite for one start."""
    if len(of_starts) < 2:
        return inf
    shares = [float((times <= value).mean()) for times in of_starts]
    by_start = float(np.std(shares, ddof=1)) / sqrt(len(shares))
    by_chance = sqrt(share * (1 - share) / events)
    return compute_t_reach(len(shares) - 1, confidence) * max(by_start, by_chance)


COLUMNS = (  # all that is read of a row
    "planned_s",
    "first_token_s",
    "last_token_s",
    "end_s",
    "chunk_s",
    "output_tokens",
    "timed_tokens",
    "status",
)
POOLED = [
    metric for metric in METRICS.values() if metric.time is not None and metric.percent is not None
]
_TIMES = tuple(dict.fromkeys(metric.time for metric in POOLED if metric.time is not None))


@dataclass(frozen=True)
class PointRequests:
    """The complete requests of a point's trials that count and have rows. Times are in seconds."""

    trials: list[TrialRecord] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)  # of all answers
    tokens: list[float] = field(default_factory=list)
    times: dict[str, list[Floats]] = field(default_factory=lambda: {time: [] for time in _TIMES})


def pool_requests(records: StudyRecords, trials: Sequence[TrialRecord]) -> PointRequests:
    """Return the complete requests of these trials. Empty if the study was kept without rows."""
    requests = PointRequests()
    for trial in trials:
        if not trial.counts or trial.requests_file is None:
            continue
        try:
            table = records.requests_of(trial, COLUMNS)
        except RowsNotKeptError:
            continue
        complete = RequestRows(table).complete()
        requests.trials.append(trial)
        chunks = pc.sum(pc.list_value_length(complete.table["chunk_s"])).as_py()
        requests.chunks.append(chunks or 0)
        requests.tokens.append(float(np.nansum(complete.output_tokens)))
        for time, parts in requests.times.items():
            values = complete.time(time)
            if time in trial.uncertain:
                values = np.full_like(values, np.nan)
            parts.append(values)
    return requests


def estimate_tails(
    requests: PointRequests, workload: Workload, confidence: float, *, was_running: bool
) -> dict[str, PercentileEstimate]:
    """Return the percentiles over all requests, by the column of the metric.

    For a server that was already running, the trials are the clusters instead of the starts.
    """
    tails = {}
    for metric in POOLED:
        assert metric.time is not None
        assert metric.percent is not None
        clusters = _list_clusters(requests, metric.time, by_trial=was_running)
        event, shared_by = _choose_event(metric.time, workload)
        tail = estimate_percentile(
            clusters, metric.percent, confidence, event=event, shared_by=shared_by
        )
        if tail is not None:
            tails[metric.column] = tail
    return tails


def _list_clusters(requests: PointRequests, time: str, *, by_trial: bool) -> Starts:
    clusters: dict[str, list[Floats]] = {}
    for trial, times in zip(requests.trials, requests.times[time], strict=True):
        cluster = trial.id if by_trial else trial.instance_id
        clusters.setdefault(cluster, []).append(times)
    return list(clusters.values())


def _choose_event(time: str, workload: Workload) -> tuple[CountedEvent, int]:
    """Return the unit of events and its size. A batch is prefilled and decoded together."""
    size = workload.concurrency if workload.arrival.kind is Arrival.BATCH else 1
    if time == "itl":
        return CountedEvent.GAP, size
    event = CountedEvent.BATCH if size > 1 else CountedEvent.REQUEST
    return event, size


def summarize_stream(requests: PointRequests) -> StreamSummary | None:
    """Return how the answers were streamed, or None without an answer."""
    chunks = sum(requests.chunks)
    if not chunks:
        return None
    gaps = np.concatenate(requests.times["itl"])
    median_s = float(np.median(gaps)) if gaps.size else None
    longest_s = float(gaps.max()) if gaps.size else None
    return StreamSummary(
        tokens_per_chunk=sum(requests.tokens) / chunks,
        median_gap_s=median_s,
        longest_gap_s=longest_s,
    )
