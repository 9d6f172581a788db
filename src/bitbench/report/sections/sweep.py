"""One contender under growing load: a table with a row per point, and what it says in sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

from bitbench.core.asked.arrival import mean_rate
from bitbench.core.asked.prompts import show_length
from bitbench.core.asked.workload import Workload
from bitbench.core.found.summary import CellSummary, Estimate, RateAnswer, SearchStop, StudySummary
from bitbench.core.recorded.trial import Outcome
from bitbench.ground.units import UNKNOWN, show_percent, show_seconds, significant
from bitbench.report.document.numbers import Scale, mean_and_interval, number, scale_for
from bitbench.report.document.text import code, counted, escape, listing, plain, table
from bitbench.report.sections.headline import Quote

RATE_METRICS = ("offered_rate", "achieved_rate", "output_throughput", "ttft_p50_s", "ttft_p99_s", "tpot_s")
STREAM_METRICS = ("request_throughput", "output_throughput", "ttft_p50_s", "ttft_p99_s", "tpot_s")


@dataclass(frozen=True)
class SweepTable:
    """Cells as text; the last two columns say what came of the trials."""

    header: list[str]
    units: list[str]
    rows: list[list[str]]


def sweep_cells(summary: StudySummary) -> list[CellSummary]:
    """The points by rising load, of a study that asks one contender for the same at several loads; else nothing."""
    workloads = summary.study.workloads
    if summary.refusals or len(summary.contenders) != 1 or len({_shape(workload) for workload in workloads}) != 1:
        return []
    if len(workloads) < 2 and summary.search is None:
        return []
    return points(summary)


def points(summary: StudySummary) -> list[CellSummary]:
    return sorted(summary.cells, key=lambda cell: level(summary.study.workload(cell.cell.workload)))


def level(workload: Workload) -> float:
    """Requests per second, or requests in flight."""
    return mean_rate(workload.arrival) or float(workload.concurrency)


def _shape(workload: Workload) -> str:
    """All but how much of it: the kind of arrival stays."""
    content = workload.model_dump(exclude={"name", "concurrency", "requests", "duration", "arrival"})
    return f"{content} {workload.arrival.kind}"


def sweep_table(summary: StudySummary, *, intervals: bool) -> SweepTable:
    """Without intervals it fits into 80 columns: three digits, and no offered rate beside the one asked for."""
    cells = points(summary)
    by_rate = summary.study.workloads[0].open_loop
    metrics = [*(RATE_METRICS if by_rate else STREAM_METRICS), *(["goodput"] if summary.study.objectives else [])]
    if not intervals and by_rate:
        metrics.remove("offered_rate")
    scales = {metric: _scale(summary, cells, metric) for metric in metrics}
    write = mean_and_interval if intervals else _short
    with_errors = intervals or any(run.failed_requests for cell in cells for run in cell.runs)
    rows = [
        [
            number_of(level(summary.study.workload(cell.cell.workload))),
            *(write(cell.metrics.get(metric), scales[metric]) for metric in metrics),
            *([_errors(cell)] if with_errors else []),
            _outcome(cell),
        ]
        for cell in cells
    ]
    errors = ["Errors"] if with_errors else []
    return SweepTable(
        header=[
            "Rate" if by_rate else "In flight",
            *(summary.definitions[m].label for m in metrics),
            *errors,
            "Outcome",
        ],
        units=["req/s" if by_rate else "", *(scales[m].unit for m in metrics), *("" for _ in errors), ""],
        rows=rows,
    )


def asked(summary: StudySummary) -> str:
    """What all points have in common: `128 tokens in, 64 tokens out, poisson arrivals of 30.0 s, 3 trials each.`"""
    workload = summary.study.workloads[0]
    how = f"{workload.arrival.kind} arrivals" if workload.open_loop else "closed loop"
    length = f" of {show_seconds(workload.duration)}" if workload.duration else ""
    text = f", texts from {plain(workload.text.file)}" if workload.text else ""
    tokens = f"{show_length(workload.input_tokens)} tokens in, {show_length(workload.output_tokens)} tokens out"
    return f"{tokens}, {how}{length}{text}."


def number_of(value: float) -> str:
    return f"{value:,.4g}"


def _scale(summary: StudySummary, cells: Sequence[CellSummary], metric: str) -> Scale:
    return scale_for(summary.definitions[metric], [c.metrics[metric].mean for c in cells if metric in c.metrics])


def _short(estimate: Estimate | None, scale: Scale) -> str:
    return UNKNOWN if estimate is None else significant(estimate.mean / scale.factor)


def _errors(cell: CellSummary) -> str:
    return f"{sum(run.failed_requests for run in cell.runs):,}"


def _outcome(cell: CellSummary) -> str:
    """`holds (3)`, `fails (2), holds`, `ok (3)`, `overloaded`."""
    runs = [run for run in cell.runs if run.outcome is not Outcome.CLIENT_BOUND or run.holds] or cell.runs
    return counted(_word(run.outcome, run.holds) for run in runs) or "not run"


def _word(outcome: Outcome, holds: bool | None) -> str:
    if outcome is Outcome.CLIENT_BOUND and holds is not None:
        return "holds, late client" if holds else "fails, late client"
    if outcome is not Outcome.OK or holds is None:
        return outcome.value
    return "holds" if holds else "fails"


def sweep_answer(summary: StudySummary, quote: Quote) -> list[str]:
    """What the table says."""
    sentences = [_searched(summary, summary.search)] if summary.search else [_most_output(summary)]
    if summary.study.objectives and not summary.search:
        sentences.append(_highest_held(summary))
    flaws = [cell for cell in points(summary) if any(run.failed_requests for run in cell.runs)]
    if flaws:
        names = listing([quote(cell.cell.workload) for cell in flaws])
        cause = flaws[0].failures[0].failure.cause if flaws[0].failures else ""
        sentences.append(f"Requests failed at {names}: {quote(cause)}")
    sentences += sorted({quote(note) for contender in summary.contenders for note in contender.notes})
    return sentences


def promise(summary: StudySummary) -> str:
    """`ttft_p99 ≤ 200 ms and tpot_p99 ≤ 20.0 ms`"""
    return listing([f"{one.name} ≤ {show_seconds(one.limit)}" for one in summary.study.objectives])


def _searched(summary: StudySummary, found: RateAnswer) -> str:
    wanted = promise(summary)
    trials = f"{found.trials} {'trial' if found.trials == 1 else 'trials'}"
    if found.rate is None:
        lowest = number_of(found.high or 0.0)
        return f"{wanted} does not hold, not even at {lowest} requests/s, the lowest rate that was tried."
    if found.high is None:
        advice = "; --max-rate allows more" if found.stop is SearchStop.HIGHEST else ""
        return f"{wanted} holds even at {number_of(found.rate)} requests/s, the highest rate that was tried{advice}."
    assert found.low is not None
    half = (found.high - found.low) / 2
    interval = f"{number(found.rate, half)} requests/s [{number(found.low, half)}, {number(found.high, half)}]"
    why = {
        SearchStop.PRECISE: f"{trials} were enough.",
        SearchStop.TRIALS: f"All {trials} were used, and it is known to ± {show_percent(half / found.rate)}; "
        "more --trials narrow it.",
        None: f"The search was interrupted after {trials}; the same command with --into goes on.",
    }
    confidence = show_percent(found.confidence).replace(".0", "")
    return f"The highest rate that holds {wanted}: {interval}, {confidence} interval. {why.get(found.stop, '')}"


def _most_output(summary: StudySummary) -> str:
    known = [cell for cell in points(summary) if "output_throughput" in cell.metrics]
    if not known:
        return "No point has a result."
    best = max(known, key=lambda cell: cell.metrics["output_throughput"].mean)
    output, ttft = _figure(summary, best, "output_throughput"), _figure(summary, best, "ttft_p99_s")
    return f"The most output: {output}, at {_load(summary, best)}, with a TTFT p99 of {ttft}."


def _load(summary: StudySummary, cell: CellSummary) -> str:
    """`8 in flight`, `40 requests/s`"""
    workload = summary.study.workload(cell.cell.workload)
    return f"{number_of(level(workload))} {'requests/s' if workload.open_loop else 'in flight'}"


def _figure(summary: StudySummary, cell: CellSummary, metric: str) -> str:
    estimate: Estimate | None = cell.metrics.get(metric)
    if estimate is None:
        return UNKNOWN
    scale = scale_for(summary.definitions[metric], [estimate.mean])
    return f"{mean_and_interval(estimate, scale)} {scale.unit}"


def _highest_held(summary: StudySummary) -> str:
    held = [cell for cell in points(summary) if _holds(cell)]
    if not held:
        return f"No point held {promise(summary)} in every trial."
    at, goodput = _load(summary, held[-1]), _figure(summary, held[-1], "goodput")
    return f"The highest point that held {promise(summary)} in every trial: {at}, goodput {goodput}."


def _holds(cell: CellSummary) -> bool:
    judged = [run for run in cell.runs if run.outcome is not Outcome.CLIENT_BOUND]
    return bool(judged) and all(run.holds and run.outcome is Outcome.OK for run in judged)


def sweep_section(summary: StudySummary) -> str:
    """For report.md."""
    shown = sweep_table(summary, intervals=True)
    header = [f"{label} ({unit})" if unit else label for label, unit in zip(shown.header, shown.units, strict=True)]
    contender = summary.contenders[0].contender.name
    return "\n\n".join(
        [
            f"## {code(contender)} under load",
            escape(asked(summary)),
            table(header, shown.rows, left=(len(header) - 1,)),
        ]
    )
