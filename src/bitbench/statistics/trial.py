"""One trial in numbers. This is the one place where each figure is defined; the report prints it."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bitbench.core.found.summary import MetricDefinition
from bitbench.core.recorded.trial import TrialMetrics

Floats = npt.NDArray[np.float64]


def _less(label: str, name: str, unit: str, definition: str) -> MetricDefinition:
    return MetricDefinition(label=label, name=name, unit=unit, higher_is_better=False, definition=definition)


def _more(label: str, name: str, unit: str, definition: str) -> MetricDefinition:
    return MetricDefinition(label=label, name=name, unit=unit, higher_is_better=True, definition=definition)


DEFINITIONS = {
    "output_throughput": _more(
        "Output",
        "output throughput",
        "tok/s",
        "Output tokens of all requests / makespan (last end − first planned send).",
    ),
    "latency_s": _less("Latency", "latency", "s", "Mean over requests of the end of the stream − the planned send."),
    "ttft_s": _less("TTFT", "time to first token", "s", "Mean over requests of the first token − the planned send."),
    "ttft_p50_s": _less(
        "TTFT p50",
        "time to first token, median",
        "s",
        "Median over requests of the first token − the planned send.",
    ),
    "ttft_p99_s": _less(
        "TTFT p99",
        "time to first token, 99th percentile",
        "s",
        "99th percentile over requests of the first token − the planned send.",
    ),
    "first_answer_s": _less(
        "First answer",
        "time to first answer token",
        "s",
        "Mean over requests of the first token of the answer, after any reasoning, − the planned send; "
        "only where reasoning came.",
    ),
    "tpot_s": _less(
        "TPOT",
        "time per output token",
        "s",
        "Mean over requests of (last token − first token) / (output tokens − 1); not defined for one token.",
    ),
    "tpot_p99_s": _less(
        "TPOT p99",
        "time per output token, 99th percentile",
        "s",
        "99th percentile over requests of (last token − first token) / (output tokens − 1).",
    ),
    "input_throughput": _more(
        "Input",
        "input throughput",
        "tok/s",
        "Input tokens / time during which at least one request was waiting for its first token; "
        "for a batch this is the prefill.",
    ),
    "overall_throughput": _more(
        "Overall", "overall throughput", "tok/s", "Input and output tokens of all requests / makespan."
    ),
    "request_throughput": _more("Requests", "request throughput", "req/s", "Requests / makespan."),
    "offered_rate": _more(
        "Offered",
        "offered request rate",
        "req/s",
        "In open loop: requests on the schedule, less one, / time from the first planned send to the last.",
    ),
    "achieved_rate": _more(
        "Achieved",
        "achieved request rate",
        "req/s",
        "In open loop: the same requests, less one, / time from the first end to the last; "
        "less than offered: the server fell behind.",
    ),
    "goodput": _more(
        "Goodput",
        "goodput",
        "req/s",
        "Achieved rate (in a closed loop request throughput) × share of the requests that met the study's objectives "
        "themselves; of several limits on one time the loosest counts.",
    ),
    "itl_p99_s": _less(
        "ITL p99",
        "inter-token latency, 99th percentile",
        "s",
        "99th percentile of the gaps between successive chunks of a stream, all requests pooled; "
        "a chunk may carry several tokens.",
    ),
    "peak_bytes": _less(
        "Memory peak",
        "peak memory",
        "bytes",
        "Largest resident memory of the engine's processes since their instance started (other workloads included): "
        "the sum of each process's own high-water mark, so an upper bound; one value per instance.",
    ),
    "resident_bytes": _less(
        "Memory resident",
        "resident memory",
        "bytes",
        "Proportional set size of the engine's processes at the end of a trial.",
    ),
    "device_peak_bytes": _less(
        "Device peak",
        "peak device memory",
        "bytes",
        "Most memory that the engine's processes were seen to hold on all devices since their instance started (other "
        "workloads included); one value per instance.",
    ),
    "device_bytes": _less(
        "Device memory",
        "device memory",
        "bytes",
        "Memory that the engine's processes hold on all devices at the end of a trial.",
    ),
}


def measure(table: pa.Table) -> TrialMetrics:
    """The figures of one trial from its request rows (core.recorded.requests); only complete requests count."""
    rows = table.filter(pc.equal(table["status"], "ok"))
    if rows.num_rows == 0:
        return TrialMetrics()
    planned, first, answer, last, end, tokens_in, tokens_out = (
        _column(rows, name)
        for name in (
            "planned_s",
            "first_token_s",
            "first_answer_s",
            "last_token_s",
            "end_s",
            "input_tokens",
            "output_tokens",
        )
    )
    makespan = float(end.max() - planned.min())
    several = tokens_out > 1
    answered = ~np.isnan(first)
    waiting = _union_length(planned[answered], first[answered])
    tpot = (last - first)[several] / (tokens_out[several] - 1)
    offered, achieved = _rates(_column(rows, "scheduled_s"), end)
    return TrialMetrics(
        latency_s=_mean(end - planned),
        ttft_s=_mean(first - planned),
        ttft_p50_s=_percentile((first - planned)[answered], 50),
        ttft_p99_s=_percentile((first - planned)[answered], 99),
        first_answer_s=_mean(answer - planned) if bool(np.any(answer > first)) else None,
        tpot_s=_mean(tpot),
        tpot_p99_s=_percentile(tpot[~np.isnan(tpot)], 99),
        itl_p99_s=_percentile(_gaps(rows["chunk_s"]), 99),
        output_throughput=_rate(tokens_out, makespan),
        input_throughput=_rate(tokens_in[answered], waiting),
        overall_throughput=_rate(tokens_in + tokens_out, makespan),
        request_throughput=_rate(np.ones(rows.num_rows), makespan),
        offered_rate=offered,
        achieved_rate=achieved,
    )


def _column(rows: pa.Table, name: str) -> Floats:
    """As floats, null as NaN."""
    return np.asarray(rows[name].cast(pa.float64()).to_numpy(), dtype=np.float64)


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


def _percentile(values: Floats, percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values.size else None


def _rate(counts: Floats, seconds: float) -> float | None:
    """Per second; None where a count is unknown or no time passed."""
    total = float(counts.sum())
    if np.isnan(total) or total == 0 or not seconds > 0:
        return None
    return total / seconds


def _rates(scheduled: Floats, end: Floats) -> tuple[float | None, float | None]:
    """Offered and achieved; None where all requests were due at once, which is a batch or a closed loop.

    Both are counted between the first and the last event of their kind: with the makespan, which also holds the last
    answer, a server that keeps up would seem to fall behind in a short trial.
    """
    on_schedule = ~np.isnan(scheduled)
    if not on_schedule.any() or np.ptp(scheduled[on_schedule]) == 0:
        return None, None
    gaps = np.ones(int(on_schedule.sum()) - 1)
    return _rate(gaps, float(np.ptp(scheduled[on_schedule]))), _rate(gaps, float(np.ptp(end[on_schedule])))


def _union_length(starts: Floats, ends: Floats) -> float:
    """How long at least one of these intervals was open."""
    order = np.argsort(starts)
    starts, ends = starts[order], ends[order]
    reached = np.concatenate([starts[:1], np.maximum.accumulate(ends)[:-1]])
    return float(np.maximum(ends - np.maximum(starts, reached), 0.0).sum())


def _gaps(chunks: pa.ChunkedArray) -> Floats:
    """Differences between neighbours within each list, pooled."""
    lengths = pc.fill_null(pc.list_value_length(chunks), 0).to_numpy()
    times = np.asarray(pc.list_flatten(chunks).to_numpy(), dtype=np.float64)
    stream = np.repeat(np.arange(len(lengths)), lengths)
    same_stream: npt.NDArray[np.bool_] = stream[1:] == stream[:-1]
    return np.diff(times)[same_stream]
