"""`bitbench quick` of a server, in a few lines: what one user gets, what eight get, and how sure that is."""

from collections.abc import Iterator, Sequence

from bitbench.analysis.results.summary import CellSummary, Run, StudySummary
from bitbench.records.trial import Outcome
from bitbench.reports.document.model import Document, Name, Phrase, Quantity, Range, Unit
from bitbench.reports.document.words import bullets, plural, say, strong
from bitbench.study.prompts import show_length

ROUGH = 3  # significant digits: it is a first look
FIGURES = (("TTFT", "ttft_s", Unit.SECONDS), ("TPOT", "tpot_s", Unit.SECONDS), ("output", "output_throughput", "tok/s"))


def quick_document(summary: StudySummary) -> Document:
    """Means over trials, with the lowest and the highest of them."""
    shape, server = summary.study.workloads[0], summary.study.engines[0]
    asked = f"{show_length(shape.input_tokens)} tokens in, {show_length(shape.output_tokens)} out"
    return Document(say(Name(server.name), f": {asked}"), bullets(_sentences(summary)))


def _sentences(summary: StudySummary) -> Iterator[Phrase]:
    for cell in summary.cells:
        runs = [run for run in cell.runs if run.outcome is Outcome.OK]
        streams = plural(summary.study.workload(cell.cell.workload).concurrency, "stream")
        if not runs:
            yield say(strong(streams), f": no result ({_why(cell)}).")
            continue
        figures = (say(f"{name} ", figure) for name, column, unit in FIGURES if (figure := _mean(runs, column, unit)))
        counts = f"{plural(len(runs), 'trial')}, {plural(sum(run.requests for run in runs), 'request')}"
        yield say(strong(streams), ": ", *(word for figure in figures for word in (figure, ", ")), f"n = {counts}.")


def _mean(runs: Sequence[Run], column: str, unit: str) -> Quantity | None:
    values = [run.metrics[column] for run in runs if column in run.metrics]
    if not values:
        return None
    low, high = (min(values), max(values)) if len(values) > 1 else (None, None)
    return Quantity(sum(values) / len(values), unit, low, high, range=Range.EXTREMES, digits=ROUGH)


def _why(cell: CellSummary) -> str:
    return cell.failures[0].failure.cause if cell.failures else "no trial was finished"
