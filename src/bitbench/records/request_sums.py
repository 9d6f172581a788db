"""The request rows of a trial, added up: all that its verdict and its metrics need. Sums of parts add up to the sums of
the whole, so that no process has to hold all rows."""

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

KEPT = 262_144  # values of which percentiles are exact: 2 MB for each time
RELATIVE_ERROR = 0.01  # of a percentile of more values
LOWEST_S, HIGHEST_S = 1e-6, 1e5  # what lies outside is counted at the edge

# Bin i holds (LOWEST_S × RATIO^(i-1), LOWEST_S × RATIO^i]; a value between its edges in proportion to them is within
# RELATIVE_ERROR of all that it holds (the mapping of DDSketch, Masson et al., VLDB 2019).
_RATIO = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_BINS = math.ceil(math.log(HIGHEST_S / LOWEST_S) / math.log(_RATIO)) + 1


class TimeSketch:
    """Times of one kind. Their number and mean are exact, percentiles up to `kept` values, then within
    RELATIVE_ERROR."""

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
        """NaN is left out."""
        known = seconds[~np.isnan(seconds)]
        self.count += known.size
        self._total_s += float(known.sum())
        self._values.append(known)
        self._count_values()

    def merge(self, other: Self) -> None:
        self.count += other.count
        self._total_s += other._total_s
        self._values += other._values
        if other._counts is not None:
            self._counts = other._counts + (0 if self._counts is None else self._counts)
        self._count_values()

    def statistic(self, name: Statistic) -> float | None:
        """None where there is no value."""
        if self.count == 0:
            return None
        return (
            self._total_s / self.count
            if name == "mean"
            else self.quantile(float(name.removeprefix("p")) / 100)
        )

    def quantile(self, share: float) -> float | None:
        """Return the value below which this share of all lies, or None where there is none.

        Between two values in proportion, as `numpy.quantile`: where each is within the error, so is what lies between.
        """
        if self.count == 0:
            return None
        if self._counts is None:
            return float(np.quantile(np.concatenate(self._values), share))
        reached = np.cumsum(self._counts)
        rank = share * (self.count - 1)
        below, above = (
            LOWEST_S
            * 2
            * _RATIO ** int(np.searchsorted(reached, place, side="right"))
            / (1 + _RATIO)
            for place in (math.floor(rank), math.ceil(rank))
        )
        return below + (above - below) * (rank - math.floor(rank))

    def _count_values(self) -> None:
        """Give up single values where they are too many."""
        if self.count <= self._kept:
            return
        if self._counts is None:
            self._counts = np.zeros(_BINS, dtype=np.int64)
        for values in self._values:
            places = np.ceil(
                np.log(np.clip(values, LOWEST_S, HIGHEST_S) / LOWEST_S) / math.log(_RATIO)
            )
            self._counts += np.bincount(places.astype(np.int64), minlength=_BINS)
        self._values = []


class WrongTokens(NamedTuple):
    """Requests whose tokens are not those that were asked for, and the first of them."""

    requests: int
    first: int
    asked: int
    counted: int | None


class _Totals(NamedTuple):
    """Over complete requests unless the name says `sent`."""

    output_tokens: float = 0.0  # NaN where one is unknown, as the next
    tokens: float = 0.0  # of input and output
    answered_input_tokens: float = 0.0
    sent_input_tokens: float = 0.0
    scheduled: float = 0
    several: float = 0  # answers of more than one token
    unknown: float = 0  # of those, without a time per token
    good: float = 0  # met all objectives
    reasoned: float = 0


SUMMED_TIMES = ("latency", "ttft", "first_answer", "tpot", "itl")
_EXTENTS = ("planned_s", "end_s", "scheduled_s", "scheduled_end_s")


class RequestSums:
    """`objectives`: those that single requests are held to."""

    def __init__(self, objectives: Sequence[Objective] = ()) -> None:
        self.objectives = tuple(objectives)
        self.statuses: Counter[str] = Counter()
        self.first_failure: dict[str, Json] | None = None
        self.wrong_tokens: dict[str, WrongTokens] = {}  # by kind: output, input
        self.cached_tokens: int | None = None  # None: no answer says so
        self.delay = TimeSketch()  # of sending
        self.course: Floats = np.empty(
            (0, 3)
        )  # of neighbouring requests: number, sum of planned times, of latencies
        self._times = {name: TimeSketch() for name in SUMMED_TIMES}
        self._totals = _Totals()
        self._least = dict.fromkeys(_EXTENTS, math.inf)
        self._most = dict.fromkeys(_EXTENTS, -math.inf)
        self._waits: Floats = np.empty(
            (0, 2)
        )  # when at least one request waited for its first token

    @classmethod
    def of(cls, table: pa.Table, objectives: Sequence[Objective] = ()) -> Self:
        """From request rows (records.tables)."""
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
        """Whether nothing shows when tokens came, in more answers than a p99 leaves out."""
        return self._totals.unknown > UNKNOWN_SHARE * self._totals.several

    @property
    def output_tokens(self) -> float:
        return self._totals.output_tokens

    @property
    def sent_input_tokens(self) -> float:
        """Also of requests that failed."""
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
            sketch.add(_values(rows, name))
        sent = pc.sum(table["input_tokens"]).as_py() or 0
        self._add_totals(_totals_of(rows, self.objectives)._replace(sent_input_tokens=sent))
        self._add_extents(rows)
        answered = ~np.isnan(rows.ttft)
        waits = np.column_stack([rows.planned, rows.column("first_token_s")])[answered]
        self._waits = _unite(np.concatenate([self._waits, waits]))
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
        self._waits = _unite(np.concatenate([self._waits, other._waits]))
        self._add_course(other.course)

    def statistic(self, time: str, name: Statistic) -> float | None:
        """Of complete requests; None where the time is not defined or not known."""
        if (time == "tpot" and self.is_tpot_unknown) or (
            time == "first_answer" and not self._totals.reasoned
        ):
            return None
        return self._times[time].statistic(name)

    def metric(self, metric: Metric) -> float | None:
        """None where it is not defined, or not made from rows alone."""
        if metric.time is not None and metric.statistic is not None:
            return self.statistic(metric.time, metric.statistic)
        compute = RATES.get(metric.name)
        return compute(self) if compute is not None and self.completed else None

    def length(self, name: str) -> float:
        """Between the first and the last of these times."""
        return self._most[name] - self._least[name]

    def first(self, name: str) -> float:
        return self._least[name]

    @property
    def makespan_s(self) -> float:
        return self._most["end_s"] - self._least["planned_s"]

    @property
    def good_share(self) -> float | None:
        """Share of the requests that met the objectives themselves; None without objectives or without an answer, and
        where a time that was promised is unknown.

        A request meets a percentile or a mean when it is within its limit; of several limits on one metric the loosest
        counts (half of all requests may exceed a p50).
        """
        promised = {objective.metric for objective in self.objectives}
        if not promised or not self.completed or ("tpot" in promised and self.is_tpot_unknown):
            return None
        return self._totals.good / self.requests

    def per_makespan(self, total: float) -> float | None:
        return _rate(total, self.makespan_s)

    def per_wait(self) -> float | None:
        """Input tokens per second in which a request waited for its first token."""
        waited_s = float((self._waits[:, 1] - self._waits[:, 0]).sum())
        return _rate(self._totals.answered_input_tokens, waited_s)

    def rate_of(self, event: str) -> float | None:
        """Of requests on a schedule; None where all were due at once, which is a batch or a closed loop.

        Counted between the first and the last event: with the makespan, which also holds the last answer, a server
        that keeps up would seem to fall behind in a short trial.
        """
        if not self._totals.scheduled or not self.length("scheduled_s"):
            return None
        return _rate(self._totals.scheduled - 1, self.length(event))

    def _note_failure(self, table: pa.Table) -> None:
        failed = table.select(_OF_A_FAILURE).filter(pc.not_equal(table["status"], "ok"))
        if failed.num_rows:
            first = int(np.argmin(RequestRows(failed).end))
            self._keep_first_failure(failed.slice(first, 1).to_pylist()[0])

    def _keep_first_failure(self, row: dict[str, Json] | None) -> None:
        if row is not None and (
            self.first_failure is None or row["end_s"] < self.first_failure["end_s"]
        ):
            self.first_failure = row

    def _note_wrong_tokens(self, table: pa.Table, kind: str) -> None:
        """Where an exact length was asked for: the tokens of a text are the server's to count."""
        asked, counted = table[f"asked_{kind}_tokens"], table[f"{kind}_tokens"]
        differs = pc.fill_null(pc.not_equal(asked, counted), True)
        wrong = table.filter(
            pc.and_(pc.is_valid(asked), pc.and_(differs, pc.equal(table["status"], "ok")))
        )
        if wrong.num_rows:
            first = wrong.select(
                ["request", asked_name := f"asked_{kind}_tokens", f"{kind}_tokens"]
            ).slice(0, 1)
            (row,) = first.to_pylist()
            self._keep_wrong_tokens(
                kind,
                WrongTokens(wrong.num_rows, row["request"], row[asked_name], row[f"{kind}_tokens"]),
            )

    def _keep_wrong_tokens(self, kind: str, wrong: WrongTokens) -> None:
        known = self.wrong_tokens.get(kind, wrong._replace(requests=0))
        first = min(known, wrong, key=attrgetter("first"))
        self.wrong_tokens[kind] = first._replace(requests=known.requests + wrong.requests)

    def _add_cached(self, tokens: int | None) -> None:
        if tokens is not None:
            self.cached_tokens = (self.cached_tokens or 0) + tokens

    def _add_totals(self, totals: _Totals) -> None:
        self._totals = _Totals(*map(sum, zip(self._totals, totals, strict=True)))

    def _add_extents(self, rows: RequestRows) -> None:
        scheduled = rows.column("scheduled_s")
        is_scheduled = ~np.isnan(scheduled)
        values = (rows.planned, rows.end, scheduled[is_scheduled], rows.end[is_scheduled])
        for name, found in zip(_EXTENTS, values, strict=True):
            self._least[name] = min(self._least[name], found.min(initial=math.inf))
            self._most[name] = max(self._most[name], found.max(initial=-math.inf))

    def _add_course(self, course: Floats) -> None:
        """In planned order; too many requests become sums of two neighbours."""
        joined = np.concatenate([self.course, course])
        while len(joined) > KEPT:
            order = np.argsort(joined[:, 1] / joined[:, 0])
            joined = np.add.reduceat(joined[order], np.arange(0, len(joined), 2))
        self.course = joined


_OF_A_FAILURE = ["request", "end_s", "status", "http_status", "error"]


def _values(rows: RequestRows, time: str) -> Floats:
    return rows.stated_tpot if time == "tpot" else rows.time(time)


def _totals_of(rows: RequestRows, objectives: Sequence[Objective]) -> _Totals:
    inputs, outputs = rows.column("input_tokens"), rows.output_tokens
    several = outputs > 1
    good = np.ones(outputs.size, dtype=np.bool_)
    for metric in {objective.metric for objective in objectives}:
        loosest = max(objective.limit for objective in objectives if objective.metric == metric)
        with np.errstate(invalid="ignore"):
            good &= ~(
                _values(rows, metric) > loosest
            )  # one token has no time per further token: nothing to miss
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


def _unite(spans: Floats) -> Floats:
    """Return the spans of time that these together cover, in order and apart."""
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0])]
    reached = np.maximum.accumulate(spans[:, 1])
    begins = np.flatnonzero(np.concatenate([[True], spans[1:, 0] > reached[:-1]]))
    ends = np.concatenate([begins[1:] - 1, [len(spans) - 1]])
    return np.column_stack([spans[begins, 0], reached[ends]])


def _rate(total: float, seconds: float) -> float | None:
    """Per second; None where a count is unknown or no time passed."""
    if np.isnan(total) or total == 0 or not seconds > 0:
        return None
    return total / seconds


RATES: dict[str, Callable[[RequestSums], float | None]] = {
    "output_throughput": lambda sums: sums.per_makespan(sums.output_tokens),
    "input_throughput": RequestSums.per_wait,
    "overall_throughput": lambda sums: sums.per_makespan(sums._totals.tokens),
    "request_throughput": lambda sums: sums.per_makespan(sums.completed),
    "offered_rate": lambda sums: sums.rate_of("scheduled_s"),
    "achieved_rate": lambda sums: sums.rate_of("scheduled_end_s"),
}
