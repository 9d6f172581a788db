"""The figures of one trial, each by its name in the registry of metrics (core.found.metrics)."""

from collections.abc import Callable

import numpy as np

from bitbench.records.request_rows import Floats, RequestRows, statistic
from bitbench.study.metrics import Metric


def figure(metric: Metric, rows: RequestRows) -> float | None:
    """From rows of complete requests; None where it is not defined, or not made from rows alone."""
    if metric.time is not None and metric.statistic is not None:
        return statistic(rows.time(metric.time), metric.statistic)
    compute = RATES.get(metric.name)
    return compute(rows) if compute is not None else None


def _output_throughput(rows: RequestRows) -> float | None:
    return _rate(rows.output_tokens, _makespan(rows))


def _input_throughput(rows: RequestRows) -> float | None:
    answered = ~np.isnan(rows.ttft)
    waiting = _union_length(rows.planned[answered], rows.column("first_token_s")[answered])
    return _rate(rows.column("input_tokens")[answered], waiting)


def _overall_throughput(rows: RequestRows) -> float | None:
    return _rate(rows.column("input_tokens") + rows.output_tokens, _makespan(rows))


def _request_throughput(rows: RequestRows) -> float | None:
    return _rate(np.ones(rows.planned.size), _makespan(rows))


def _offered_rate(rows: RequestRows) -> float | None:
    return _rate_between(rows, rows.column("scheduled_s"))


def _achieved_rate(rows: RequestRows) -> float | None:
    return _rate_between(rows, rows.end)


RATES: dict[str, Callable[[RequestRows], float | None]] = {
    "output_throughput": _output_throughput,
    "input_throughput": _input_throughput,
    "overall_throughput": _overall_throughput,
    "request_throughput": _request_throughput,
    "offered_rate": _offered_rate,
    "achieved_rate": _achieved_rate,
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
