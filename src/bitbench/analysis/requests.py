"""Single requests of a point, over all of its trials: how their times are spread, and what their tail is."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bitbench.analysis.percentiles import Starts, percentile
from bitbench.analysis.results.estimate import CountedEvent, PercentileEstimate
from bitbench.analysis.results.summary import RequestSpread
from bitbench.records.request_rows import Floats, RequestRows
from bitbench.records.study_records import StudyRecords
from bitbench.records.trial import TrialRecord
from bitbench.study.arrival import Arrival
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Point
from bitbench.study.workload import Workload
from bitbench.util.errors import RowsNotKeptError

COLUMNS = (  # all that is read of a row
    "request", "planned_s", "first_token_s", "last_token_s", "end_s", "chunk_s", "output_tokens", "status",
)  # fmt: skip
MIN_REQUESTS = 20  # of a point: the 5th and the 95th percentile of fewer are single requests
POOLED = [metric for metric in METRICS.values() if metric.time is not None and metric.percent is not None]
_TIMES = tuple(dict.fromkeys(metric.time for metric in POOLED if metric.time is not None))
_SPREAD = {METRICS[name].column: name for name in ("ttft", "latency")}
_PERCENTILES = (5, 50, 95, 99)


@dataclass(frozen=True)
class PointRequests:
    """The complete requests of the trials of a point that count and have rows; times in seconds, trial by trial."""

    point: Point
    trials: list[TrialRecord] = field(default_factory=list)
    numbers: list[npt.NDArray[np.int32]] = field(default_factory=list)
    times: dict[str, list[Floats]] = field(default_factory=lambda: {time: [] for time in _TIMES})


def read_requests(of: StudyRecords, point: Point, trials: Sequence[TrialRecord]) -> PointRequests:
    """Those of a study that was kept without its rows are none."""
    found = PointRequests(point)
    for trial in trials:
        if not trial.counts or trial.requests_file is None:
            continue
        try:
            table = of.requests_of(trial, COLUMNS)
        except RowsNotKeptError:
            continue
        complete = RequestRows(table).complete()
        found.trials.append(trial)
        found.numbers.append(complete.column("request").astype(np.int32))
        for time, parts in found.times.items():
            parts.append(complete.time(time))
    return found


def tails(
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


def spreads(requests: PointRequests) -> tuple[RequestSpread, ...]:
    """Times count from the planned send; none of those with few requests."""
    found = (_spread(requests, column, requests.times[time]) for column, time in _SPREAD.items())
    return tuple(spread for spread in found if spread is not None)


def _spread(requests: PointRequests, column: str, parts: Sequence[Floats]) -> RequestSpread | None:
    values = np.concatenate(parts) if parts else np.empty(0)
    known = values[~np.isnan(values)]
    if known.size < MIN_REQUESTS:
        return None
    place = int(np.nanargmax(values))
    trial = int(np.searchsorted(np.cumsum([part.size for part in parts]), place, side="right"))
    p5, p50, p95, p99 = np.percentile(known, _PERCENTILES).tolist()
    return RequestSpread(
        point=requests.point,
        metric=column,
        requests=int(known.size),
        p5=p5,
        p50=p50,
        p95=p95,
        p99=p99,
        highest=float(values[place]),
        highest_trial=requests.trials[trial].id,
        highest_request=int(np.concatenate(requests.numbers)[place]),
    )
