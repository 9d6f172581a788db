"""The request rows of one trial as arrays: what is timed of each request, and the figures of the trial that follow."""

from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bitbench.study.metrics import Metric, Statistic

Floats = npt.NDArray[np.float64]

UNKNOWN_SHARE = 0.01  # of the answers of a trial that may lack a time per token


class RequestRows:
    """Columns are read when they are asked for, so that a table may lack unused ones. Seconds; what is not
    defined is NaN."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def complete(self) -> "RequestRows":
        """The requests that were answered as a whole: only these enter a figure."""
        return RequestRows(self.table.filter(pc.equal(self.table["status"], "ok")))

    def column(self, name: str) -> Floats:
        return np.asarray(self.table[name].cast(pa.float64()).to_numpy(), dtype=np.float64)

    @cached_property
    def is_ok(self) -> npt.NDArray[np.bool_]:
        return np.asarray(pc.fill_null(pc.equal(self.table["status"], "ok"), False).to_numpy(), dtype=np.bool_)

    @cached_property
    def planned(self) -> Floats:
        return self.column("planned_s")

    @cached_property
    def end(self) -> Floats:
        return self.column("end_s")

    @cached_property
    def output_tokens(self) -> Floats:
        return self.column("output_tokens")

    @cached_property
    def latency(self) -> Floats:
        return self.end - self.planned

    @cached_property
    def ttft(self) -> Floats:
        return self.column("first_token_s") - self.planned

    @cached_property
    def first_answer(self) -> Floats:
        """All NaN where no request reasoned: the first token is that of the answer then."""
        answer = self.column("first_answer_s")
        reasoned = bool(np.any(answer > self.column("first_token_s")))
        return answer - self.planned if reasoned else np.full_like(answer, np.nan)

    @cached_property
    def tpot(self) -> Floats:
        """An answer of one token has no time per further token. All NaN where too many are unknown: those that remain
        would not speak for the rest."""
        return np.full_like(self._tpot, np.nan) if self.is_tpot_unknown else self._tpot

    @cached_property
    def is_tpot_unknown(self) -> bool:
        """Whether nothing shows when tokens came, in more answers than a p99 leaves out."""
        several = self.is_ok & (self.output_tokens > 1)
        unknown = int(np.isnan(self._tpot[several]).sum())
        return unknown > UNKNOWN_SHARE * int(several.sum())

    @cached_property
    def _tpot(self) -> Floats:
        timed = self.output_tokens - 1
        if "timed_tokens" in self.table.column_names:  # a card that was made before it existed lacks it
            stated = self.column("timed_tokens")
            timed = np.where(np.isnan(stated), timed, stated)
        decoding = self.column("last_token_s") - self.column("first_token_s")
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where((timed > 0) & (decoding > 0), decoding / timed, np.nan)

    @cached_property
    def itl(self) -> Floats:
        """The gaps between neighbouring chunks of each stream, pooled: not one per request."""
        chunks = self.table["chunk_s"]
        lengths = pc.fill_null(pc.list_value_length(chunks), 0).to_numpy()
        times = np.asarray(pc.list_flatten(chunks).to_numpy(), dtype=np.float64)
        stream = np.repeat(np.arange(len(lengths)), lengths)
        same_stream: npt.NDArray[np.bool_] = stream[1:] == stream[:-1]
        return np.diff(times)[same_stream]

    def time(self, name: str) -> Floats:
        """By the name that the registry of metrics has for it."""
        values: Floats = getattr(self, name)
        return values


def request_rows_statistic(values: Floats, name: Statistic) -> float | None:
    """Over what is defined; None where nothing is."""
    known = values[~np.isnan(values)]
    if known.size == 0:
        return None
    return float(known.mean()) if name == "mean" else float(np.percentile(known, float(name.removeprefix("p"))))


def request_rows_metric(metric: Metric, rows: RequestRows) -> float | None:
    """From rows of complete requests; None where it is not defined, or not made from rows alone."""
    if metric.time is not None and metric.statistic is not None:
        return request_rows_statistic(rows.time(metric.time), metric.statistic)
    compute = RATES.get(metric.name)
    return compute(rows) if compute is not None else None


def _input_throughput(rows: RequestRows) -> float | None:
    answered = ~np.isnan(rows.ttft)
    waiting = _union_length(rows.planned[answered], rows.column("first_token_s")[answered])
    return _rate(rows.column("input_tokens")[answered], waiting)


RATES: dict[str, Callable[[RequestRows], float | None]] = {
    "output_throughput": lambda rows: _rate(rows.output_tokens, _makespan(rows)),
    "input_throughput": _input_throughput,
    "overall_throughput": lambda rows: _rate(rows.column("input_tokens") + rows.output_tokens, _makespan(rows)),
    "request_throughput": lambda rows: _rate(np.ones(rows.planned.size), _makespan(rows)),
    "offered_rate": lambda rows: _rate_between(rows, rows.column("scheduled_s")),
    "achieved_rate": lambda rows: _rate_between(rows, rows.end),
}


def _makespan(rows: RequestRows) -> float:
    return float(rows.end.max() - rows.planned.min()) if rows.end.size else 0.0


def _rate(counts: Floats, seconds: float) -> float | None:
    """Per second; None where a count is unknown or no time passed."""
    total = float(counts.sum())
    if np.isnan(total) or total == 0 or not seconds > 0:
        return None
    return total / seconds


def _rate_between(rows: RequestRows, events: Floats) -> float | None:
    """Of requests on a schedule; None where all were due at once, which is a batch or a closed loop.

    Counted between the first and the last event: with the makespan, which also holds the last answer, a server that
    keeps up would seem to fall behind in a short trial.
    """
    scheduled = rows.column("scheduled_s")
    on_schedule = ~np.isnan(scheduled)
    if not on_schedule.any() or np.ptp(scheduled[on_schedule]) == 0:
        return None
    return _rate(np.ones(int(on_schedule.sum()) - 1), float(np.ptp(events[on_schedule])))


def _union_length(starts: Floats, ends: Floats) -> float:
    """How long at least one of these intervals was open."""
    order = np.argsort(starts)
    starts, ends = starts[order], ends[order]
    reached = np.concatenate([starts[:1], np.maximum.accumulate(ends)[:-1]])
    return float(np.maximum(ends - np.maximum(starts, reached), 0.0).sum())
