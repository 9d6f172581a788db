"""One workload: its shape, its tables, its outliers, and why each cell stopped; and every single run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bitbench.analysis.results.summary import (
    CellSummary,
    Estimate,
    Ranking,
    RankingEntry,
    Run,
    StopReason,
    StudySummary,
)
from bitbench.analysis.results.tails import PercentileEstimate
from bitbench.records.trial import Outcome
from bitbench.reports.charts.figure import Figure
from bitbench.reports.document.model import (
    Block,
    Chart,
    Details,
    Heading,
    Mark,
    Name,
    Paragraph,
    Quantity,
    Section,
    Table,
    Unit,
)
from bitbench.reports.document.tables import ColumnOf, number_column, ratio_column, table, words_column
from bitbench.reports.document.text import MAX_NAME
from bitbench.reports.document.words import Words, bullets, listing, paragraph, plural, say
from bitbench.reports.labels import Labels
from bitbench.reports.quantities import estimated, half_width, mean_of, unit_of
from bitbench.reports.sections import ranked
from bitbench.reports.shape import shape
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Contender

MAIN_METRICS = ("output_throughput", "latency_s", "ttft_s", "tpot_s")
MORE_METRICS = (
    "input_throughput", "overall_throughput", "request_throughput", "ttft_p99_s", "tpot_p99_s", "itl_p99_s",
    "peak_bytes", "resident_bytes",
)  # fmt: skip
# Of an open loop, of models that reason and of GPUs: a column only where there is a figure for it.
OCCASIONAL_METRICS = ("offered_rate", "achieved_rate", "goodput", "ttft_p50_s", "first_answer_s", "energy_per_token")
WIDE = 110  # columns of a terminal from which all main figures fit beside a contender's name


def workload_section(summary: StudySummary, ranking: Ranking, figures: Sequence[Figure] = ()) -> Section:
    cells, labels = ranked.in_order(summary, ranking), Labels.of(summary, MAX_NAME)
    main = _main_table(summary, ranking, cells, labels)
    more: list[Block] = []
    if with_result := [cell for cell in cells if ranked.has_result(summary, cell)]:
        occasional = [metric for metric in OCCASIONAL_METRICS if any(metric in cell.metrics for cell in cells)]
        metrics = dict.fromkeys((*occasional, *_with_carried(cells, MORE_METRICS), *ranked.device_metrics(summary)))
        further = table(
            with_result,
            words_column("Contender", lambda cell: Name(labels[cell.cell.contender])),
            *(ranked.metric_column(summary, metric) for metric in metrics),
        )
        more += [paragraph("Further metrics, in the same order:"), further]
    if any(cell.outliers for cell in cells):
        more.append(paragraph("Trials far from the others of their cell. They are flagged, never dropped:"))
        more.append(_outliers(summary, cells, labels))
    if cells:
        more += [paragraph("Why no more trials were run:"), *bullets(_why_stopped(summary, cells, labels))]
    return Section(
        ranked.titled(say("Workload ", Name(ranking.workload)), summary),
        (
            Paragraph(shape(summary.study.workload(ranking.workload))),
            *(Chart(figure) for figure in figures),
            main if main.rows else paragraph("Refused for every contender, see below."),
            *([Details(f"More on workload {ranking.workload}", tuple(more))] if more else []),
        ),
        in_terminal=True,
    )


def _with_carried(cells: Sequence[CellSummary], metrics: Sequence[str]) -> Iterator[str]:
    """Before a p99 for which some cell has too few requests, the highest percentile that these carry."""
    for metric in metrics:
        short = [cell.tails for cell in cells if metric in cell.tails and not cell.tails[metric].is_carried]
        yield from (carried for tails in short if (carried := _highest_carried(tails, metric)) is not None)
        yield metric


def _highest_carried(tails: Mapping[str, PercentileEstimate], metric: str) -> str | None:
    """Of the same time, by its column."""
    time = next(one.time for one in METRICS.values() if one.column == metric)
    carried = {
        tail.percent: one.column
        for one in METRICS.values()
        if one.time == time and (tail := tails.get(one.column)) is not None and tail.is_carried
    }
    return carried[max(carried)] if carried else None


@dataclass(frozen=True)
class _Row:
    contender: Contender
    words: str  # how many trials there are, or why there are none
    cell: CellSummary | None = None  # None: refused
    entry: RankingEntry | None = None

    def metric(self, name: str) -> Estimate | None:
        return self.cell.metrics.get(name) if self.cell else None


def _rows(summary: StudySummary, ranking: Ranking, cells: Sequence[CellSummary]) -> Iterator[_Row]:
    """Best first; then what was refused here although its contender was tried elsewhere."""
    for cell in cells:
        entry = ranked.entry_of(ranking, cell.cell.contender)
        yield _Row(cell.cell.contender, _how_many(summary, cell), cell, entry)
    tried = {cell.cell.contender for cell in summary.cells}  # what no workload tries is listed once, after the tables
    for refusal in summary.refusals:
        if refusal.cell.workload == ranking.workload and (refusal.cell.contender in tried or refusal.was_tried):
            yield _Row(refusal.cell.contender, "not made" if refusal.was_tried else "refused")


def _main_table(summary: StudySummary, ranking: Ranking, cells: Sequence[CellSummary], labels: Labels) -> Table:
    memory = ranked.memory_metric(summary)
    definition = summary.definitions[memory]

    def column(metric: str) -> ColumnOf[_Row]:
        shown, shown_from = summary.definitions[metric], 0 if metric == ranking.metric else WIDE
        return number_column(
            shown.label, unit_of(shown), lambda row: estimated(row.metric(metric), shown), shown_from=shown_from
        )

    return table(
        _rows(summary, ranking, cells),
        words_column("Rank", lambda row: ranked.rank(row.entry)),
        words_column("Contender", lambda row: Name(labels[row.contender])),
        ratio_column("vs. baseline", lambda row: ranked.versus_baseline(ranking, row.entry)),
        *map(column, dict.fromkeys((ranking.metric, *MAIN_METRICS))),
        number_column(definition.label, unit_of(definition), lambda row: mean_of(row.metric(memory), definition)),
        words_column("Instances / trials", lambda row: row.words),
        mark=lambda row: Mark.BEST if row.entry and row.entry.rank_low == 1 else None,
    )


def _how_many(summary: StudySummary, cell: CellSummary) -> str:
    if not ranked.has_result(summary, cell):
        return ranked.outcomes_of(cell) or "not run"
    estimate = cell.metrics[summary.headline]
    return f"{estimate.n_instances} / {estimate.n_trials}"


def _outliers(summary: StudySummary, cells: Sequence[CellSummary], labels: Labels) -> Table:
    """Each value in its own unit."""

    def unit(metric: str) -> str:
        return unit_of(summary.definitions[metric])

    return table(
        [(cell, outlier) for cell in cells for outlier in cell.outliers],
        words_column("Trial", lambda row: Name(row[1].trial_id)),
        words_column("Contender", lambda row: Name(labels[row[0].cell.contender])),
        words_column("Metric", lambda row: summary.definitions[row[1].metric].label),
        number_column("Value", Unit.NONE, lambda row: Quantity(row[1].value, unit(row[1].metric))),
        number_column("Median", Unit.NONE, lambda row: Quantity(row[1].median, unit(row[1].metric))),
        number_column(
            "Mean", Unit.NONE, lambda row: mean_of(row[0].metrics[row[1].metric], summary.definitions[row[1].metric])
        ),
        number_column(
            "Mean without outliers", Unit.NONE, lambda row: Quantity(row[1].mean_without, unit(row[1].metric))
        ),
    )


def _why_stopped(summary: StudySummary, cells: Sequence[CellSummary], labels: Labels) -> list[Words]:
    measure = summary.study.measure
    reasons = {
        StopReason.DECIDED: "every question about it is decided",
        StopReason.LIMIT: f"limit of {plural(measure.instances.max, 'start')}",
        StopReason.BUDGET: "the budget was spent",
        StopReason.FAILED: "stopped by failures",
        StopReason.UNFINISHED: "not finished",
        StopReason.IMPORTED: "imported, as many as the file holds",
    }
    stopped: dict[StopReason, list[Words]] = {reason: [] for reason in reasons}
    for cell in cells:
        width = half_width(cell.metrics.get(summary.headline))
        precision = say(" (± ", width, ")") if width else ()
        stopped[cell.stop_reason].append(say(Name(labels[cell.cell.contender]), precision))
    return [say(f"{words}: ", listing(stopped[reason])) for reason, words in reasons.items() if stopped[reason]]


def runs_section(summary: StudySummary) -> Section | None:
    """Every measured trial by its own name."""
    blocks: list[Block] = []
    for part, ranking in ranked.rankings_by_model(summary):
        runs = [(cell, run) for cell in ranked.in_order(part, ranking) for run in cell.runs]
        if runs:
            blocks += [Heading(ranked.titled(Name(ranking.workload), part)), _runs(summary, runs)]
    return Section(say("Single runs"), (Details("Show single runs", tuple(blocks)),)) if blocks else None


def _runs(summary: StudySummary, runs: Sequence[tuple[CellSummary, Run]]) -> Table:
    def column(metric: str) -> ColumnOf[tuple[CellSummary, Run]]:
        definition = summary.definitions[metric]
        unit = unit_of(definition)

        def figure(row: tuple[CellSummary, Run]) -> Quantity | None:
            value = row[1].metrics.get(metric) if row[1].outcome is Outcome.OK else None
            return None if value is None else Quantity(value, unit)

        return number_column(definition.label, unit, figure)

    def outcome(row: tuple[CellSummary, Run]) -> str:
        cell, run = row
        flagged = any(outlier.trial_id == run.trial_id for outlier in cell.outliers)
        return f"{run.outcome.value}, outlier" if flagged else run.outcome.value

    return table(
        runs,
        words_column("Trial", lambda row: Name(row[1].trial_id)),
        words_column("Contender", lambda row: Name(row[0].cell.contender.name)),
        words_column("Instance", lambda row: Name(row[1].instance_id)),
        *map(column, MAIN_METRICS),
        words_column("Outcome", outcome),
    )
