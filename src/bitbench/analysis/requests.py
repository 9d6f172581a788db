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
    """Return a percentile over all requests with its interval, or None without a request.

    The upper end is None if it would lie beyond all requests. Both ends are None for a single
    start, which does not show how much starts differ. `shared_by` requests are served together and
    count as one event, such as a batch. For an endpoint that was already running, give one entry
    per trial instead of per start.
    """
    times_by_start: list[Floats] = []
    events = 0
    for trials in starts:
        if not trials:
            continue
        finite = [times[np.isfinite(times)] for times in trials]
        events += sum(ceil(times.size / shared_by) for times in finite)
        pooled = np.concatenate(finite)
        if pooled.size:
            times_by_start.append(pooled)
    if not times_by_start:
        return None
    times = np.concatenate(times_by_start)
    share = percent / 100
    value = float(np.quantile(times, share))
    reach = _compute_reach(times_by_start, value, share, events, confidence)
    # The interval is computed in shares of the requests, as the module describes.
    low = 0.0
    if share - reach >= 1 / (2 * events):
        low = float(np.quantile(times, share - reach, method="lower"))
    high = None
    if share + reach <= 1 - 1 / (2 * events):
        high = float(np.quantile(times, share + reach, method="higher"))
    has_enough_events = is_estimate_carried(events, percent)
    is_slowest = high is None and percent > MEDIAN and not has_enough_events
    if is_slowest:
        value = float(times.max())
    note = "" if has_enough_events else _describe_extreme(event, events, is_slowest=is_slowest)
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
        clusters=len(times_by_start),
    )


def _describe_extreme(event: CountedEvent, events: int, *, is_slowest: bool) -> str:
    """Return a note on a value that has too few events to be a percentile: `slowest of 24`."""
    unit = "" if event is CountedEvent.REQUEST else f" {event.value}"
    counted = f"of {events:,}{unit}"
    return f"slowest {counted}" if is_slowest else counted


def compute_events_needed(percent: float, clusters: int, confidence: float) -> int:
    """Return the fewest events with which the interval has an upper end, if starts do not differ.

    They satisfy t·√(q(1 − q)/N) ≤ 1 − q − 1/(2N). There must be two clusters or more.
    """
    share = percent / 100
    spread = compute_t_reach(clusters - 1, confidence) * sqrt(share * (1 - share))
    root = sqrt(spread**2 + 2 * (1 - share)) - spread  # of 1/N, at which both sides are equal
    return ceil(1 / root**2)


def _compute_reach(
    times_by_start: Sequence[Floats], value: float, share: float, events: int, confidence: float
) -> float:
    """Return how far the interval extends to each side, as a share. Infinite for one start."""
    if len(times_by_start) < 2:
        return inf
    shares = [float((times <= value).mean()) for times in times_by_start]
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
    """Return the values of one time of all trials, grouped by start or by trial."""
    clusters: dict[str, list[Floats]] = {}
    for trial, times in zip(requests.trials, requests.times[time], strict=True):
        cluster = trial.id if by_trial else trial.instance_id
        clusters.setdefault(cluster, []).append(times)
    return list(clusters.values())


def _choose_event(time: str, workload: Workload) -> tuple[CountedEvent, int]:
    """Return the unit that counts as one event, and how many requests share it. A batch is one
    event, since it is prefilled and decoded together."""
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
