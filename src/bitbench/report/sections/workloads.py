"""One workload: its shape, its tables, its outliers, and why each cell stopped."""

from collections.abc import Sequence

from bitbench.core.found.summary import CellSummary, Estimate, Ranking, RankingEntry, StopReason, StudySummary
from bitbench.core.recorded.trial import Outcome
from bitbench.ground.units import UNKNOWN
from bitbench.report.document.numbers import (
    Scale,
    lone,
    mean_alone,
    mean_and_interval,
    percent,
    plus_minus,
    scale_for,
    times,
)
from bitbench.report.document.text import MAX_NAME, code, listing, table
from bitbench.report.labels import Labels
from bitbench.report.sections.answer import has_result, outcomes_of
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
DEVICE_METRICS = ("device_peak_bytes", "device_bytes")  # shown where a device was used
FLAG = "outlier"


def workload_section(summary: StudySummary, ranking: Ranking) -> str:
    cells, labels = in_order(summary, ranking), Labels.of(summary, MAX_NAME)
    parts = [
        f"## Workload {code(ranking.workload)}",
        shape(summary.study.workload(ranking.workload), code),
        _main_table(summary, ranking, cells, labels),
    ]
    if any(has_result(summary, cell) for cell in cells):
        more = (*_occasional(cells), *MORE_METRICS, *_device_metrics(summary))
        parts += ["The rest, in the same order:", _metric_table(summary, cells, more, labels)]
    if flagged := _outlier_table(summary, cells, labels):
        parts += ["Trials far from the others of their cell. They are flagged, not dropped:", flagged]
    if cells:
        parts.append(_why_stopped(summary, cells, labels))
    return "\n\n".join(parts)


def _occasional(cells: Sequence[CellSummary]) -> list[str]:
    return [metric for metric in OCCASIONAL_METRICS if any(metric in cell.metrics for cell in cells)]


def in_order(summary: StudySummary, ranking: Ranking) -> list[CellSummary]:
    """Best first; those without a result last."""
    place = {entry.contender: number for number, entry in enumerate(ranking.entries)}
    return sorted(summary.cells_of(ranking.workload), key=lambda cell: place.get(cell.cell.contender, len(place)))


def entry_of(ranking: Ranking, cell: CellSummary) -> RankingEntry | None:
    return next((entry for entry in ranking.entries if entry.contender == cell.cell.contender), None)


def versus_baseline(ranking: Ranking, entry: RankingEntry | None) -> str:
    if entry is None:
        return UNKNOWN
    return "baseline" if entry.contender == ranking.baseline else times(entry.ratio_to_baseline)


def rank_text(entry: RankingEntry | None) -> str:
    if entry is None:
        return UNKNOWN
    if entry.rank_low == entry.rank_high:
        return str(entry.rank_low)
    return f"{entry.rank_low}–{entry.rank_high} (tie)"


def column_scale(summary: StudySummary, cells: Sequence[CellSummary], metric: str) -> Scale:
    means = [cell.metrics[metric].mean for cell in cells if metric in cell.metrics]
    return scale_for(summary.definitions[metric], means)


def memory_metric(summary: StudySummary) -> str:
    """The memory that stands beside speed: that of the device where one was used."""
    return next(iter(_device_metrics(summary)), "peak_bytes")


def _device_metrics(summary: StudySummary) -> tuple[str, ...]:
    return tuple(metric for metric in DEVICE_METRICS if any(metric in cell.metrics for cell in summary.cells))


def _main_table(
    summary: StudySummary,
    ranking: Ranking,
    cells: Sequence[CellSummary],
    labels: Labels,
) -> str:
    memory = memory_metric(summary)
    scales = {metric: column_scale(summary, cells, metric) for metric in (*MAIN_METRICS, memory)}
    header = [
        "Rank",
        "Contender",
        f"{summary.definitions[ranking.metric].label} vs. baseline",
        *(f"{summary.definitions[metric].label} ({scale.unit})" for metric, scale in scales.items()),
        "Instances / trials",
    ]
    rows = []
    for cell in cells:
        entry = entry_of(ranking, cell)
        rows.append(
            [
                rank_text(entry),
                code(labels[cell.cell.contender]),
                versus_baseline(ranking, entry),
                *(mean_and_interval(cell.metrics.get(metric), scales[metric]) for metric in MAIN_METRICS),
                mean_alone(cell.metrics.get(memory), scales[memory]),
                _how_many(cell.metrics.get(summary.headline))
                if has_result(summary, cell)
                else outcomes_of(cell) or "not run",
            ]
        )
    tried = {cell.cell.contender for cell in summary.cells}  # what no workload tries is listed once, after the tables
    for refusal in summary.refusals:
        if refusal.cell.workload == ranking.workload and (refusal.cell.contender in tried or refusal.was_tried):
            unknown = [UNKNOWN] * (len(MAIN_METRICS) + 2)
            word = "not made" if refusal.was_tried else "refused"
            rows.append([UNKNOWN, code(labels[refusal.cell.contender]), *unknown, word])
    return table(header, rows, left=(0, 1))


def _how_many(estimate: Estimate | None) -> str:
    return UNKNOWN if estimate is None else f"{estimate.n_instances} / {estimate.n_trials}"


def _metric_table(summary: StudySummary, cells: Sequence[CellSummary], metrics: Sequence[str], labels: Labels) -> str:
    scales = {metric: column_scale(summary, cells, metric) for metric in metrics}
    header = ["Contender", *(f"{summary.definitions[metric].label} ({scales[metric].unit})" for metric in metrics)]
    rows = [
        [
            code(labels[cell.cell.contender]),
            *(mean_and_interval(cell.metrics.get(metric), scales[metric]) for metric in metrics),
        ]
        for cell in cells
        if has_result(summary, cell)
    ]
    return table(header, rows)


def _outlier_table(summary: StudySummary, cells: Sequence[CellSummary], labels: Labels) -> str:
    rows = []
    for cell in cells:
        for outlier in cell.outliers:
            definition = summary.definitions[outlier.metric]
            scale = scale_for(definition, [outlier.value, outlier.median])
            rows.append(
                [
                    code(outlier.trial_id),
                    code(labels[cell.cell.contender]),
                    f"{definition.label} ({scale.unit})",
                    *(
                        lone(one, scale)
                        for one in (
                            outlier.value,
                            outlier.median,
                            cell.metrics[outlier.metric].mean,
                            outlier.mean_without,
                        )
                    ),
                ]
            )
    header = ["Trial", "Contender", "Figure", "Value", "Median", "Mean", "Mean without such"]
    return table(header, rows, left=(0, 1, 2)) if rows else ""


def _why_stopped(summary: StudySummary, cells: Sequence[CellSummary], labels: Labels) -> str:
    measure = summary.study.measure
    target = percent(measure.target_precision)
    reasons = {
        StopReason.PRECISE: f"precise enough (half width of {target} or less)",
        StopReason.LIMIT: f"limit of {measure.instances.max} instances × {measure.trials.max} trials",
        StopReason.BUDGET: "the budget was spent",
        StopReason.FAILED: "stopped by failures",
        StopReason.UNFINISHED: "not finished",
        StopReason.IMPORTED: "imported, as many as the file holds",
    }
    lines = ["Why no more trials were made:", ""]
    for reason, words in reasons.items():
        names = [
            f"{code(labels[cell.cell.contender])} ({plus_minus(cell.metrics.get(summary.headline))})"
            if has_result(summary, cell)
            else code(labels[cell.cell.contender])
            for cell in cells
            if cell.stop_reason is reason
        ]
        if names:
            lines.append(f"- {words}: {listing(names)}")
    return "\n".join(lines)


def runs_section(summary: StudySummary) -> str:
    """Every measured trial by its own name."""
    parts = ["## Single runs"]
    for ranking in summary.rankings:
        cells = in_order(summary, ranking)
        runs = [(cell, run) for cell in cells for run in cell.runs]
        if not runs:
            continue
        scales = {
            metric: scale_for(
                summary.definitions[metric], [run.metrics[metric] for _, run in runs if metric in run.metrics]
            )
            for metric in MAIN_METRICS
        }
        header = [
            "Trial",
            "Contender",
            "Instance",
            *(f"{summary.definitions[metric].label} ({scales[metric].unit})" for metric in MAIN_METRICS),
            "Outcome",
        ]
        rows = []
        for cell, run in runs:
            flagged = any(outlier.trial_id == run.trial_id for outlier in cell.outliers)
            counts = run.outcome is Outcome.OK
            rows.append(
                [
                    code(run.trial_id),
                    code(cell.cell.contender.name),
                    code(run.instance_id),
                    *(lone(run.metrics.get(metric) if counts else None, scales[metric]) for metric in MAIN_METRICS),
                    f"{run.outcome.value}, {FLAG}" if flagged else run.outcome.value,
                ]
            )
        parts += [f"### {code(ranking.workload)}", table(header, rows, left=(0, 1, 2, 7))]
    return "\n\n".join(parts)
