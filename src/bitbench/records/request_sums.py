"""The sums of a trial's request rows, sufficient for its verdict and its metrics.

Sums of parts add up to the sums of the whole, so no process has to hold all rows.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bitbench.records.request_rows import UNKNOWN_SHARE, Floats, RequestRows
from bitbench.study.base import Json
from bitbench.study.metrics import Metric, Statistic
from bitbench.study.objective import Objective

KEPT = 262_144  # up to this many values, percentiles are exact: 2 MB for each time
RELATIVE_ERROR = 0.01  # of a percentile of more values
# Values outside this range are counted at its edge.
LOWEST_S = 1e-6
HIGHEST_S = 1e5

# Bin i contains (LOWEST_S × RATIO^(i-1), LOWEST_S × RATIO^i]. A value between its edges, in
# proportion to them, is within RELATIVE_ERROR of all values in the bin (the mapping of DDSketch,
# Masson et al., VLDB 2019).
_RATIO = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_BINS = math.ceil(math.log(HIGHEST_S / LOWEST_S) / math.log(_RATIO)) + 1


class TimeSketch:
    """A summary of times of one kind, with exact count and mean.

    Percentiles are exact for up to `kept` values, and within RELATIVE_ERROR for more.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self.count = 0
        self._kept = kept
        self._total_s = 0.0
        self._values: list[Floats] = []
        self._counts: npt.NDArray[np.int64] | None = None

    @property
    def is_exact(self) -> bool:
        return self._counts is None

    def add(self, seconds: Floats) -> None:
        """Add times. NaN is left out."""
        defined = seconds[~np.isnan(seconds)]
        self.count += defined.size
        self._total_s += float(defined.sum())
        self._values.append(defined)
        self._count_values()

    def merge(self, other: Self) -> None:
        self.count += other.count
        self._total_s += other._total_s
        self._values += other._values
        if other._counts is not None:
            if self._counts is None:
                self._counts = np.zeros(_BINS, dtype=np.int64)
            self._counts = self._counts + other._counts
        self._count_values()

    def statistic(self, name: Statistic) -> float | None:
        """Return a statistic, or None without values."""
        if self.count == 0:
            return None
        if name == "mean":
            return self._total_s / self.count
        return self.quantile(float(name.removeprefix("p")) / 100)

    def quantile(self, share: float) -> float | None:
        """Return the value below which this share of all values is. None without values.

        Between two values it interpolates like `numpy.quantile`. If both are within the error, the
        result is too.
        """
        if self.count == 0:
            return None
        if self._counts is None:
            return float(np.quantile(np.concatenate(self._values), share))
        reached = np.cumsum(self._counts)
        rank = share * (self.count - 1)
        below = _compute_bin_value(reached, math.floor(rank))
        above = _compute_bin_value(reached, math.ceil(rank))
        return below + (above - below) * (rank - math.floor(rank))

    def _count_values(self) -> None:
        """Replace single values by counts per bin if there are too many."""
        if self.count <= self._kept:
            return
        if self._counts is None:
            self._counts = np.zeros(_BINS, dtype=np.int64)
        for values in self._values:
            clipped = np.clip(values, LOWEST_S, HIGHEST_S)
            bins = np.ceil(np.log(clipped / LOWEST_S) / math.log(_RATIO))
            self._counts += np.bincount(bins.astype(np.int64), minlength=_BINS)
        self._values = []


def _compute_bin_value(reached: npt.NDArray[np.int64], rank: int) -> float:
    """Return the value of the bin that contains this rank. `reached` are cumulative counts."""
    number = int(np.searchsorted(reached, rank, side="right"))
    return LOWEST_S * 2 * _RATIO**number / (1 + _RATIO)


class WrongTokens(NamedTuple):
    """The number of requests with a wrong count of tokens, and the first of them."""

    requests: int
    first: int
    asked: int
    counted: int | None


class _Totals(NamedTuple):
    """Totals over complete requests, unless the name contains `sent`."""

    output_tokens: float = 0.0  # NaN if one is unknown, like the next
    tokens: float = 0.0  # of input and output
    answered_input_tokens: float = 0.0
    sent_input_tokens: float = 0.0
    scheduled: float = 0
    several: float = 0  # answers of more than one token
    unknown: float = 0  # answers of more than one token without a time per token
    good: float = 0  # requests that met all objectives
    reasoned: float = 0


SUMMED_TIMES = ("latency", "ttft", "first_answer", "tpot", "itl")
_EXTENTS = ("planned_s", "end_s", "scheduled_s", "scheduled_end_s")


class RequestSums:
    """The sums of request rows. `objectives` are limits for single requests."""

    def __init__(self, objectives: Sequence[Objective] = ()) -> None:
        self.objectives = tuple(objectives)
        self.statuses: Counter[str] = Counter()
        self.first_failure: dict[str, Json] | None = None
        self.wrong_tokens: dict[str, WrongTokens] = {}  # by kind: output, input
        self.cached_tokens: int | None = None  # None if no answer reports them
        self.delay = TimeSketch()  # of sending
        # per group of neighboring requests: their number, sum of planned times, sum of latencies
        self.course: Floats = np.empty((0, 3))
        self._times = {name: TimeSketch() for name in SUMMED_TIMES}
        self._totals = _Totals()
        self._least = dict.fromkeys(_EXTENTS, math.inf)
        self._most = dict.fromkeys(_EXTENTS, -math.inf)
        # spans in which at least one request waited for its first token
        self._waits: Floats = np.empty((0, 2))

    @classmethod
    def of(cls, table: pa.Table, objectives: Sequence[Objective] = ()) -> Self:
        """Sum up request rows (see `records.tables`)."""
        sums = cls(objectives)
        sums.add(table)
        return sums

    @property
    def requests(self) -> int:
        return self.statuses.total()

    @property
    def completed(self) -> int:
        return self.statuses["ok"]

    @property
    def failed(self) -> int:
        return self.requests - self.completed

    @property
    def is_sketched(self) -> bool:
        return not all(sketch.is_exact for sketch in self._times.values())

    @property
    def is_tpot_unknown(self) -> bool:
        """Return True if more answers lack token times than a p99 leaves out."""
        return self._totals.unknown > UNKNOWN_SHARE * self._totals.several

    @property
    def output_tokens(self) -> float:
        return self._totals.output_tokens

    @property
    def sent_input_tokens(self) -> float:
        """Return the input tokens of all requests, including those that failed."""
        return self._totals.sent_input_tokens

    def add(self, table: pa.Table) -> None:
        counted = table["status"].value_counts().to_pylist()
        self.statuses.update({entry["values"]: entry["counts"] for entry in counted})
        self._note_failure(table)
        for kind in ("output", "input"):
            self._note_wrong_tokens(table, kind)
        cached = pc.sum(table["cached_tokens"]).as_py()
        self._add_cached(cached)
        rows = RequestRows(table).complete()
        self.delay.add(rows.column("sent_s") - rows.planned)
        for name, sketch in self._times.items():
            sketch.add(_get_times(rows, name))
        sent = pc.sum(table["input_tokens"]).as_py() or 0
        self._add_totals(_sum_totals(rows, self.objectives)._replace(sent_input_tokens=sent))
        self._add_extents(rows)
        answered = ~np.isnan(rows.ttft)
        waits = np.column_stack([rows.planned, rows.column("first_token_s")])[answered]
        self._waits = _merge_spans(np.concatenate([self._waits, waits]))
        self._add_course(np.column_stack([np.ones(rows.planned.size), rows.planned, rows.latency]))

    def merge(self, other: Self) -> None:
        self.statuses.update(other.statuses)
        self._keep_first_failure(other.first_failure)
        for kind, wrong in other.wrong_tokens.items():
            self._keep_wrong_tokens(kind, wrong)
        self._add_cached(other.cached_tokens)
        self.delay.merge(other.delay)
        for name, sketch in other._times.items():
            self._times[name].merge(sketch)
        self._add_totals(other._totals)
        for name in _EXTENTS:
            self._least[name] = min(self._least[name], other._least[name])
            self._most[name] = max(self._most[name], other._most[name])
        self._waits = _merge_spans(np.concatenate([self._waits, other._waits]))
        self._add_course(other.course)

    def statistic(self, time: str, name: Statistic) -> float | None:
        """Return a statistic over complete requests. None if the time is undefined or unknown."""
        if time == "tpot" and self.is_tpot_unknown:
            return None
        if time == "first_answer" and not self._totals.reasoned:
            return None
        return self._times[time].statistic(name)

    def metric(self, metric: Metric) -> float | None:
        """Return a metric. None if it is undefined or needs more than request rows."""
        if metric.time is not None and metric.statistic is not None:
            return self.statistic(metric.time, metric.statistic)
        compute = RATES.get(metric.name)
        if compute is None or not self.completed:
            return None
        return compute(self)

    def length(self, name: str) -> float:
        """Return the seconds between the first and the last of these times."""
        return self._most[name] - self._least[name]

    def first(self, name: str) -> float:
        return self._least[name]

    @property
    def makespan_s(self) -> float:
        return self._most["end_s"] - self._least["planned_s"]

    @property
    def good_share(self) -> float | None:
        """Return the share of requests that met the objectives themselves.

        None without objectives, without an answer, or if a promised time is unknown. A request
        meets a percentile or a mean if it is within its limit. Of several limits on one metric
        the loosest counts, because half of all requests may exceed a p50.
        """
        promised = {objective.metric for objective in self.objectives}
        if not promised or not self.completed or ("tpot" in promised and self.is_tpot_unknown):
            return None
        return self._totals.good / self.requests

    def compute_makespan_rate(self, total: float) -> float | None:
        return _compute_rate(total, self.makespan_s)

    def compute_input_rate(self) -> float | None:
        """Return input tokens per second in which a request waited for its first token."""
        waited_s = float((self._waits[:, 1] - self._waits[:, 0]).sum())
        return _compute_rate(self._totals.answered_input_tokens, waited_s)

    def compute_event_rate(self, event: str) -> float | None:
        """Return the rate of scheduled requests between the first and the last event.

        None if all were due at once, as in a batch or a closed loop. The makespan would include
        the last answer, so a server that keeps up would seem to fall behind in a short trial.
        """
        if not self._totals.scheduled or not self.length("scheduled_s"):
            return None
        return _compute_rate(self._totals.scheduled - 1, self.length(event))

    def _note_failure(self, table: pa.Table) -> None:
        failed = table.select(_OF_A_FAILURE).filter(pc.not_equal(table["status"], "ok"))
        if failed.num_rows:
            first = int(np.argmin(RequestRows(failed).end))
            self._keep_first_failure(failed.slice(first, 1).to_pylist()[0])

    def _keep_first_failure(self, row: dict[str, Json] | None) -> None:
        if row is None:
            return
        if self.first_failure is None or row["end_s"] < self.first_failure["end_s"]:
            self.first_failure = row

    def _note_wrong_tokens(self, table: pa.Table, kind: str) -> None:
        """Compare token counts if an exact length was requested. For text the server counts."""
        requested_name = f"asked_{kind}_tokens"
        counted_name = f"{kind}_tokens"
        requested = table[requested_name]
        differs = pc.fill_null(pc.not_equal(requested, table[counted_name]), True)
        is_ok = pc.equal(table["status"], "ok")
        wrong = table.filter(pc.and_(pc.is_valid(requested), pc.and_(differs, is_ok)))
        if not wrong.num_rows:
            return
        names = ["request", requested_name, counted_name]
        (row,) = wrong.select(names).slice(0, 1).to_pylist()
        numbers = [row[name] for name in names]
        self._keep_wrong_tokens(kind, WrongTokens(wrong.num_rows, *numbers))

    def _keep_wrong_tokens(self, kind: str, wrong: WrongTokens) -> None:
        earlier = self.wrong_tokens.get(kind, wrong._replace(requests=0))
        first = min(earlier, wrong, key=attrgetter("first"))
        self.wrong_tokens[kind] = first._replace(requests=earlier.requests + wrong.requests)

    def _add_cached(self, tokens: int | None) -> None:
        if tokens is not None:
            self.cached_tokens = (self.cached_tokens or 0) + tokens

    def _add_totals(self, totals: _Totals) -> None:
        self._totals = _Totals(*map(sum, zip(self._totals, totals, strict=True)))

    def _add_extents(self, rows: RequestRows) -> None:
        scheduled = rows.column("scheduled_s")
        is_scheduled = ~np.isnan(scheduled)
        values = (rows.planned, rows.end, scheduled[is_scheduled], rows.end[is_scheduled])
        for name, times in zip(_EXTENTS, values, strict=True):
            self._least[name] = min(self._least[name], times.min(initial=math.inf))
            self._most[name] = max(self._most[name], times.max(initial=-math.inf))

    def _add_course(self, course: Floats) -> None:
        """Add requests in planned order. Beyond KEPT, neighbors are joined in pairs."""
        joined = np.concatenate([self.course, course])
        while len(joined) > KEPT:
            order = np.argsort(joined[:, 1] / joined[:, 0])
            joined = np.add.reduceat(joined[order], np.arange(0, len(joined), 2))
        self.course = joined


_OF_A_FAILURE = ["request", "end_s", "status", "http_status", "error"]


def _get_times(rows: RequestRows, time: str) -> Floats:
    if time == "tpot":
        return rows.stated_tpot
    return rows.time(time)


def _sum_totals(rows: RequestRows, objectives: Sequence[Objective]) -> _Totals:
    inputs = rows.column("input_tokens")
    outputs = rows.output_tokens
    several = outputs > 1
    good = np.ones(outputs.size, dtype=np.bool_)
    loosest: dict[str, float] = {}
    for objective in objectives:
        loosest[objective.metric] = max(objective.limit, loosest.get(objective.metric, 0.0))
    for metric, limit in loosest.items():
        with np.errstate(invalid="ignore"):
            # NaN passes: an answer of one token has no time per further token that could be late.
            good &= ~(_get_times(rows, metric) > limit)
    return _Totals(
        output_tokens=float(outputs.sum()),
        tokens=float((inputs + outputs).sum()),
        answered_input_tokens=float(inputs[~np.isnan(rows.ttft)].sum()),
        scheduled=int((~np.isnan(rows.column("scheduled_s"))).sum()),
        several=int(several.sum()),
        unknown=int(np.isnan(rows.stated_tpot[several]).sum()),
        good=int(good.sum()),
        reasoned=int((rows.column("first_answer_s") > rows.column("first_token_s")).sum()),
    )


def _merge_spans(spans: Floats) -> Floats:
    """Return the spans of time that these spans cover together, in order and without overlap."""
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0])]
    reached = np.maximum.accumulate(spans[:, 1])
    begins = np.flatnonzero(np.concatenate([[True], spans[1:, 0] > reached[:-1]]))
    ends = np.concatenate([begins[1:] - 1, [len(spans) - 1]])
    return np.column_stack([spans[begins, 0], reached[ends]])


def _compute_rate(total: float, seconds: float) -> float | None:
    """Return a rate per second. None if a count is unknown or no time passed."""
    if np.isnan(total) or total == 0 or not seconds > 0:
        return None
    return total / seconds


RATES: dict[str, Callable[[RequestSums], float | None]] = {
    "output_throughput": lambda sums: sums.compute_makespan_rate(sums.output_tokens),
    "input_throughput": RequestSums.compute_input_rate,
    "overall_throughput": lambda sums: sums.compute_makespan_rate(sums._totals.tokens),
    "request_throughput": lambda sums: sums.compute_makespan_rate(sums.completed),
    "offered_rate": lambda sums: sums.compute_event_rate("scheduled_s"),
    "achieved_rate": lambda sums: sums.compute_event_rate("scheduled_end_s"),
}
