"""One workload: its shape, its tables, its outliers, and why each cell stopped; and every single run."""

from collections.abc import Sequence

from bitbench.core.found.summary import CellSummary, Ranking, Run, StopReason, StudySummary
from bitbench.core.recorded.trial import Outcome
from bitbench.report.charts.figure import Figure
from bitbench.report.document.model import (
    Block,
    Chart,
    Column,
    Details,
    Heading,
    Mark,
    Name,
    Paragraph,
    Quantity,
    Row,
    Section,
    Table,
    TableCell,
    Unit,
)
from bitbench.report.document.text import MAX_NAME
from bitbench.report.document.words import Words, bullets, listing, number_column, paragraph, say, words_column
from bitbench.report.labels import Labels
from bitbench.report.quantities import estimated, half_width, mean_of, unit_of
from bitbench.report.sections.ranked import (
    device_metrics,
    entry_of,
    has_result,
    in_order,
    memory_metric,
    outcomes_of,
    rank,
    versus_baseline,
)
from bitbench.report.shape import shape

MAIN_METRICS = ("output_throughput", "latency_s", "ttft_s", "tpot_s")
MORE_METRICS = (
    "input_throughput",
    "overall_throughput",
    "request_throughput",
    "ttft_p99_s",
    "tpot_p99_s",
    "itl_p99_s",
    "peak_bytes",
    "resident_bytes",
)
# Of an open loop, and of models that reason: a column only where there is a figure for it.
OCCASIONAL_METRICS = ("offered_rate", "achieved_rate", "goodput", "ttft_p50_s", "first_answer_s")
WIDE = 110  # columns of a terminal from which all main figures fit beside a contender's name
FLAG = "outlier"


def workload_section(summary: StudySummary, ranking: Ranking, figures: Sequence[Figure] = ()) -> Section:
    cells, labels = in_order(summary, ranking), Labels.of(summary, MAX_NAME)
    table = _main_table(summary, ranking, cells, labels)
    more: list[Block] = []
    if any(has_result(summary, cell) for cell in cells):
        others = (*_occasional(cells), *MORE_METRICS, *device_metrics(summary))
        more += [paragraph("Further metrics, in the same order:"), _metric_table(summary, cells, others, labels)]
    if outliers := _outlier_rows(cells, summary, labels):
        more.append(paragraph("Trials far from the others of their cell. They are flagged, never dropped:"))
        more.append(Table(tuple(words_column(title) for title in _OUTLIER_WORDS) + _OUTLIER_NUMBERS, outliers))
    if cells:
        more += [paragraph("Why no more trials were run:"), *bullets(_why_stopped(summary, cells, labels))]
    return Section(
        say("Workload ", Name(ranking.workload)),
        (
            Paragraph(shape(summary.study.workload(ranking.workload))),
            *(Chart(figure) for figure in figures),
            table if table.rows else paragraph("Refused for every contender, see below."),
            *([Details(f"More on workload {ranking.workload}", tuple(more))] if more else []),
        ),
        in_terminal=True,
    )


def _occasional(cells: Sequence[CellSummary]) -> list[str]:
    return [metric for metric in OCCASIONAL_METRICS if any(metric in cell.metrics for cell in cells)]


def _main_table(summary: StudySummary, ranking: Ranking, cells: Sequence[CellSummary], labels: Labels) -> Table:
    memory = memory_metric(summary)
    metrics = dict.fromkeys((ranking.metric, *MAIN_METRICS))
    columns = [words_column("Rank"), words_column("Contender")]
    columns.append(number_column("vs. baseline", Unit.RATIO, intervals_from=0))
    columns += [_column(summary, metric, shown_from=0 if metric == ranking.metric else WIDE) for metric in metrics]
    columns += [_column(summary, memory), words_column("Instances / trials")]
    rows = []
    for cell in cells:
        entry = entry_of(ranking, cell.cell.contender)
        figures: list[TableCell] = [
            versus_baseline(ranking, entry),
            *(estimated(cell.metrics.get(metric), summary.definitions[metric]) for metric in metrics),
            mean_of(cell.metrics.get(memory), summary.definitions[memory]),
        ]
        name = say(Name(labels[cell.cell.contender]))
        best = Mark.BEST if entry is not None and entry.rank_low == 1 else None
        rows.append(Row((rank(entry), name, *figures, say(_how_many(summary, cell))), best))
    tried = {cell.cell.contender for cell in summary.cells}  # what no workload tries is listed once, after the tables
    for refusal in summary.refusals:
        if refusal.cell.workload == ranking.workload and (refusal.cell.contender in tried or refusal.was_tried):
            unknown = [None] * (len(metrics) + 2)
            word = "not made" if refusal.was_tried else "refused"
            rows.append(Row((None, say(Name(labels[refusal.cell.contender])), *unknown, say(word))))
    return Table(tuple(columns), tuple(rows))


def _column(summary: StudySummary, metric: str, *, shown_from: int = 0) -> Column:
    definition = summary.definitions[metric]
    return number_column(definition.label, unit_of(definition), shown_from=shown_from)


def _how_many(summary: StudySummary, cell: CellSummary) -> str:
    if not has_result(summary, cell):
        return outcomes_of(cell) or "not run"
    estimate = cell.metrics[summary.headline]
    return f"{estimate.n_instances} / {estimate.n_trials}"


def _metric_table(summary: StudySummary, cells: Sequence[CellSummary], metrics: Sequence[str], labels: Labels) -> Table:
    rows = [
        Row(
            (
                say(Name(labels[cell.cell.contender])),
                *(estimated(cell.metrics.get(metric), summary.definitions[metric]) for metric in metrics),
            )
        )
        for cell in cells
        if has_result(summary, cell)
    ]
    return Table((words_column("Contender"), *(_column(summary, metric) for metric in metrics)), tuple(rows))


_OUTLIER_WORDS = ("Trial", "Contender", "Metric")
_OUTLIER_NUMBERS = tuple(number_column(title) for title in ("Value", "Median", "Mean", "Mean without outliers"))


def _outlier_rows(cells: Sequence[CellSummary], summary: StudySummary, labels: Labels) -> tuple[Row, ...]:
    rows = []
    for cell in cells:
        for outlier in cell.outliers:
            definition = summary.definitions[outlier.metric]
            mean = cell.metrics[outlier.metric].mean
            figures = (outlier.value, outlier.median, mean, outlier.mean_without)
            words = (say(Name(outlier.trial_id)), say(Name(labels[cell.cell.contender])), say(definition.label))
            rows.append(Row((*words, *(Quantity(value, unit_of(definition)) for value in figures))))
    return tuple(rows)


def _why_stopped(summary: StudySummary, cells: Sequence[CellSummary], labels: Labels) -> list[Words]:
    measure = summary.study.measure
    reasons = {
        StopReason.DECIDED: "every question about it is decided",
        StopReason.LIMIT: f"limit of {measure.instances.max} starts",
        StopReason.BUDGET: "the budget was spent",
        StopReason.FAILED: "stopped by failures",
        StopReason.UNFINISHED: "not finished",
        StopReason.IMPORTED: "imported, as many as the file holds",
    }
    lines: list[Words] = []
    for reason, words in reasons.items():
        named = []
        for cell in cells:
            if cell.stop_reason is reason:
                width = half_width(cell.metrics.get(summary.headline))
                precision = say(" (± ", width, ")") if width else ()
                named.append(say(Name(labels[cell.cell.contender]), precision))
        if named:
            lines.append(say(f"{words}: ", listing(named)))
    return lines


def runs_section(summary: StudySummary) -> Section | None:
    """Every measured trial by its own name."""
    blocks: list[Block] = []
    for ranking in summary.rankings:
        runs = [(cell, run) for cell in in_order(summary, ranking) for run in cell.runs]
        if not runs:
            continue
        columns = (
            words_column("Trial"),
            words_column("Contender"),
            words_column("Instance"),
            *(_column(summary, metric) for metric in MAIN_METRICS),
            words_column("Outcome"),
        )
        rows = tuple(_run(summary, cell, run) for cell, run in runs)
        blocks += [Heading(say(Name(ranking.workload))), Table(columns, rows)]
    return Section(say("Single runs"), (Details("Show single runs", tuple(blocks)),)) if blocks else None


def _run(summary: StudySummary, cell: CellSummary, run: Run) -> Row:
    flagged = any(outlier.trial_id == run.trial_id for outlier in cell.outliers)
    figures = [
        Quantity(run.metrics[metric], unit_of(summary.definitions[metric]))
        if run.outcome is Outcome.OK and metric in run.metrics
        else None
        for metric in MAIN_METRICS
    ]
    words = (say(Name(run.trial_id)), say(Name(cell.cell.contender.name)), say(Name(run.instance_id)))
    return Row((*words, *figures, say(f"{run.outcome.value}, {FLAG}" if flagged else run.outcome.value)))
