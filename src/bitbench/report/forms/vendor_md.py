"""Runs by configuration, as such records are published in Markdown, with what they leave out.

The layout is the one that `bitbench import --from seed` reads. Added are: the machine, memory, quality, the interval,
ties in the ranking, flagged outliers, and the cells that have no result with their reason.
"""

from collections.abc import Mapping, Sequence

from bitbench.core.base import Json
from bitbench.core.found.summary import CellSummary, Estimate, Ranking, Run, StudySummary
from bitbench.core.recorded.trial import Outcome
from bitbench.ground.units import UNKNOWN, significant
from bitbench.report.document.numbers import percent
from bitbench.report.document.text import code, escape, listing, table
from bitbench.report.forms.quality_column import QualityColumn
from bitbench.report.sections.answer import has_result, outcomes_of
from bitbench.report.sections.conditions import host_section
from bitbench.report.sections.imported import source
from bitbench.report.sections.workloads import entry_of, in_order, memory_metric, rank_text
from bitbench.report.shape import shape

ROUNDING = 1e-9
FIGURES = {
    "Latency": ("latency_s", "s"),
    "Output Throughput": ("output_throughput", "tok/s"),
    "Overall Throughput": ("overall_throughput", "tok/s"),
    "Input Throughput": ("input_throughput", "tok/s"),
}


def seed_markdown(summary: StudySummary, lock: Mapping[str, Json]) -> str:
    origin = f"`bitbench run` of {code(summary.study.name)}"
    if summary.imported_from is not None:
        origin = f"imported: {source(summary.imported_from)}"
    parts = ["# Performance Benchmark Results", f"**Generated from:** {origin}", "---"]
    for ranking in summary.rankings:
        parts += _configuration(summary, ranking)
    parts += ["---", *_ranking(summary), *_unranked(summary), host_section(lock), _legend(summary)]
    return "\n\n".join(parts) + "\n"


def _configuration(summary: StudySummary, ranking: Ranking) -> list[str]:
    cells = in_order(summary, ranking)
    parts = [
        f"## {_title(summary, ranking.workload)}",
        shape(summary.study.workload(ranking.workload), code),
        f"**Total models tested:** {len(cells)}",
    ]
    if not cells:
        return parts
    parts += ["### Summary Table", _summary_table(summary, ranking, cells)]
    outliers = [f"- Outlier: {_outlier(summary, cell)}" for cell in cells if cell.outliers]
    causes = [f"- {code(cell.cell.contender.name)}: {_causes(cell)}" for cell in cells if cell.failures]
    parts += ["\n".join(outliers)] if outliers else []
    parts += ["\n".join(causes)] if causes else []
    parts.append("### Detailed Results")
    for cell in cells:
        parts += _details(cell)
    return parts


def _title(summary: StudySummary, workload: str) -> str:
    one = summary.study.workload(workload)
    lengths = {
        "batch_size": UNKNOWN if one.open_loop or "concurrency" in one.unknown else one.concurrency,
        "input_len": UNKNOWN if "input_tokens" in one.unknown else one.input_tokens,
        "output_len": UNKNOWN if "output_tokens" in one.unknown else one.output_tokens,
    }
    shown = ", ".join(f"{name}={value}" for name, value in lengths.items())
    return f"Configuration: {shown} ({code(workload)})"


def _summary_table(summary: StudySummary, ranking: Ranking, cells: Sequence[CellSummary]) -> str:
    memory, quality = memory_metric(summary), QualityColumn(summary)
    confidence = percent(summary.study.measure.confidence)
    header = ["Rank", "Model", "Runs"]
    header += [f"{title} ({unit})" for title, (_, unit) in FIGURES.items()]
    header += [f"{summary.definitions[ranking.metric].label}, {confidence} interval", "Memory peak (MiB)"]
    header += [quality.title or "Quality"]
    rows = []
    for cell in cells:
        contender = cell.cell.contender
        runs = str(sum(run.outcome is Outcome.OK for run in cell.runs))
        found = [cell.metrics.get(metric) for metric, _ in FIGURES.values()]
        rows.append(
            [
                rank_text(entry_of(ranking, cell)),
                code(contender.name),
                runs if has_result(summary, cell) else outcomes_of(cell) or "not run",
                *(_mean_and_sd(one) for one in found),
                _interval(cell.metrics.get(ranking.metric)),
                significant(cell.metrics[memory].mean / 2**20) if memory in cell.metrics else UNKNOWN,
                quality.of(contender),
            ]
        )
    return table(header, rows, left=(0, 1))


def _mean_and_sd(estimate: Estimate | None) -> str:
    if estimate is None:
        return UNKNOWN
    spread = "" if estimate.trial_sd is None else f" ± {_figure(estimate.trial_sd)}"
    return f"{_figure(estimate.mean)}{spread}"


def _interval(estimate: Estimate | None) -> str:
    if estimate is None or estimate.interval is None:
        return UNKNOWN
    return f"[{_figure(estimate.interval.low)}, {_figure(estimate.interval.high)}]"


def _figure(value: float | None) -> str:
    """Two decimals, as in such records; small ones with three digits; what rounding left of equal ones is 0."""
    if value is None:
        return UNKNOWN
    if abs(value) < ROUNDING:
        return "0"
    return f"{value:,.2f}" if abs(value) >= 1 else significant(value)


def _outlier(summary: StudySummary, cell: CellSummary) -> str:
    said = [
        f"{summary.definitions[one.metric].name} {_figure(one.value)} {summary.definitions[one.metric].unit} in "
        f"{code(one.trial_id)} among a median of {_figure(one.median)}"
        for one in cell.outliers
    ]
    return f"{code(cell.cell.contender.name)}: {'; '.join(said)}. Flagged, and counted."


def _causes(cell: CellSummary) -> str:
    return "; ".join(f"{group.failure.outcome.value}: {escape(group.failure.cause)}" for group in cell.failures)


def _details(cell: CellSummary) -> list[str]:
    counted = [run for run in cell.runs if run.outcome is Outcome.OK]
    if not counted:
        return []
    flagged = {outlier.trial_id for outlier in cell.outliers}
    runs = "\n".join(line for run in counted for line in _run(run, is_flagged=run.trial_id in flagged))
    statistics = [
        f"  - {title}: {_mean_and_sd(cell.metrics[metric])}"
        for title, (metric, _) in FIGURES.items()
        if metric in cell.metrics
    ]
    return [
        f"#### {code(cell.cell.contender.name)}",
        f"- **Total runs:** {len(counted)}",
        "- **Individual runs:**",
        runs,
        "- **Statistics:**",
        "\n".join(statistics),
    ]


def _run(run: Run, *, is_flagged: bool) -> list[str]:
    lines = [f"  - {code(run.trial_id)}:"]
    for title, (metric, unit) in FIGURES.items():
        value = run.metrics.get(metric)
        shown = UNKNOWN if value is None else f"{_figure(value)}{'' if unit == 's' else ' '}{unit}"
        lines.append(f"    - {title}: {shown}")
    return [*lines, *(["    - Outlier: far from the other runs"] if is_flagged else [])]


def _ranking(summary: StudySummary) -> list[str]:
    definition = summary.definitions[summary.headline]
    parts = [f"## Performance Ranking (by {definition.name})"]
    for ranking in summary.rankings:
        figures = {cell.cell.contender: cell.metrics for cell in summary.cells_of(ranking.workload)}
        lines = [
            f"- {rank_text(entry)} **{escape(entry.contender.name)}**: "
            f"{_figure(figures[entry.contender][ranking.metric].mean)} {definition.unit}"
            for entry in ranking.entries
        ]
        parts += [f"### {_title(summary, ranking.workload)}", "\n".join(lines) or "No contender has a result."]
    return parts


def _unranked(summary: StudySummary) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for refusal in summary.refusals:
        names = reasons.setdefault(refusal.reason, [])
        if code(refusal.cell.contender.name) not in names:
            names.append(code(refusal.cell.contender.name))
    lines = [f"- {listing(names)}: {escape(reason)}" for reason, names in reasons.items()]
    return ["## Not run", "\n".join(lines)] if lines else []


def _legend(summary: StudySummary) -> str:
    return (
        "± is the standard deviation of the single runs; the interval is that of the mean and covers the variation "
        "between starts of the engine where there were several. Contenders whose difference may be noise share a range "
        "of ranks. `–` is what is not known. "
        + (
            "Quality was not measured."
            if not summary.quality
            else "Quality is relative to the baseline where it says so."
        )
    )
