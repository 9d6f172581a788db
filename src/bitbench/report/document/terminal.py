"""The same summary for a terminal: fewer columns where it is narrow, nothing but text from names."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bitbench.core.found.summary import CellSummary, Ranking, StudySummary
from bitbench.report.document.numbers import mean, mean_alone, plus_minus
from bitbench.report.document.text import MAX_NAME, plain
from bitbench.report.labels import Labels
from bitbench.report.sections.answer import has_result, outcomes_of, remarks, verdicts
from bitbench.report.sections.causes import failures_by_cause, refusals_by_reason
from bitbench.report.sections.crossover import render_crossovers
from bitbench.report.sections.headline import lead
from bitbench.report.sections.memory import MemoryTable
from bitbench.report.sections.quality import QualityTable, quality_sentences
from bitbench.report.sections.sweep import sweep_cells
from bitbench.report.sections.sweep_terminal import render_sweep
from bitbench.report.sections.workloads import (
    MAIN_METRICS,
    column_scale,
    entry_of,
    in_order,
    memory_metric,
    rank_text,
    versus_baseline,
)
from bitbench.report.shape import shape

WIDE = 110  # columns from which all main figures fit beside a contender's name
MAX_CAUSE = 200


def render(summary: StudySummary, console: Console) -> None:
    """Print the tables, then the answer: what is read last stays on the screen."""
    if sweep_cells(summary):
        render_sweep(summary, console)
        return
    labels = Labels.of(summary, MAX_NAME)
    if labels.shared:
        console.print()
        console.print(Text(f"All are of {labels.shared}.", style="dim"))
    for ranking in summary.rankings:
        console.print()
        console.print(Text(_name(ranking.workload), style="bold"))
        console.print(Text(shape(summary.study.workload(ranking.workload), _name), style="dim"))
        if in_order(summary, ranking):
            console.print(_table(summary, ranking, labels, wide=console.width >= WIDE))
        else:
            console.print("Refused for every contender, see below.")
    render_crossovers(summary, console)
    _render_memory(summary, labels, console)
    _render_quality(summary, labels, console)
    if summary.refusals or any(cell.failures for cell in summary.cells):
        console.print()
    for one in failures_by_cause(summary):
        _line(console, one.failure.outcome.value, one.affected.in_words(_name), one.failure.cause)
    for refused in refusals_by_reason(summary.refusals):
        _line(console, refused.word, refused.affected.in_words(_name), refused.reason)
    console.print()
    one_by_one = verdicts(summary, _name) if len(summary.rankings) == 1 else []  # of several the tables tell
    for sentence in [*one_by_one, *remarks(summary, _name), *quality_sentences(summary, _name)]:
        console.print(Text(f"• {sentence}"))
    if (first := lead(summary, _name)) is not None:
        console.print()
        console.print(Text.assemble((first.verdict, "bold"), f" {' '.join(first.reasons)}"))


def _render_memory(summary: StudySummary, labels: Labels, console: Console) -> None:
    memory = MemoryTable(summary)
    if not memory.columns:
        return
    table = _empty_table()
    table.add_column("Contender", overflow="fold")
    for column in memory.columns:
        table.add_column(f"{column.title}\n{memory.unit(column)}", justify="right")
    for one in memory.contenders:
        table.add_row(Text(labels[one.contender]), *memory.row(one))
    console.print()
    console.print(Text("Memory", style="bold"))
    console.print(table)
    if memory.caveat:
        console.print(Text(memory.caveat, style="dim"))


def _render_quality(summary: StudySummary, labels: Labels, console: Console) -> None:
    if not summary.quality:
        return
    quality = QualityTable(summary, wide=console.width >= WIDE)
    table = _empty_table()
    first, *others = quality.header()
    table.add_column(first, overflow="fold")
    for title in others:
        table.add_column(title.replace(", ", "\n").replace(" (", "\n("), justify="right")
    for row in quality.rows:
        style = "bold red" if row.flagged else None
        table.add_row(Text(labels[row.contender]), *map(Text, quality.cells(row, intervals=False)), style=style)
    console.print()
    console.print(Text("Speed, memory and quality" if quality.wide else "Quality", style="bold"))
    console.print(table)


def _line(console: Console, outcome: str, where: str, why: str) -> None:
    console.print(Text.assemble((outcome, "bold red"), f" {where}: {plain(why, MAX_CAUSE)}"))


def _name(text: str) -> str:
    return plain(text, MAX_NAME)


def _table(summary: StudySummary, ranking: Ranking, labels: Labels, *, wide: bool) -> Table:
    cells = in_order(summary, ranking)
    others = tuple(metric for metric in MAIN_METRICS if metric != ranking.metric) if wide else ()
    metrics = (ranking.metric, *others, memory_metric(summary))
    scales = {metric: column_scale(summary, cells, metric) for metric in metrics}
    table = _empty_table()
    table.add_column("Rank", no_wrap=True)
    table.add_column("Contender", overflow="fold")
    for metric in metrics:
        table.add_column(f"{summary.definitions[metric].label}\n{scales[metric].unit}", justify="right")
        if metric == ranking.metric:
            table.add_column("±", justify="right")
            table.add_column("vs. baseline", justify="right", no_wrap=True)
    for cell in cells:
        entry = entry_of(ranking, cell)
        *means, size = metrics
        figures = [Text(mean(cell.metrics.get(metric), scales[metric])) for metric in means]
        figures.append(Text(mean_alone(cell.metrics.get(size), scales[size])))
        table.add_row(
            Text(rank_text(entry)),
            Text(labels[cell.cell.contender]),
            figures[0],
            Text(plus_minus(cell.metrics.get(ranking.metric)).removeprefix("± ")),
            Text(versus_baseline(ranking, entry) if has_result(summary, cell) else _instead(cell)),
            *figures[1:],
            style="bold" if entry is not None and entry.rank_low == 1 else None,
        )
    return table


def _empty_table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))


def _instead(cell: CellSummary) -> str:
    return outcomes_of(cell) or "not run"
