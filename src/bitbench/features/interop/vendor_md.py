"""Runs by configuration, as vendors publish such records in Markdown, with what they do not say.

The layout is the one that `bitbench import --from vendor-table` reads. Added are: the machine, memory, quality, the
interval, ties in the ranking, flagged outliers, and the points that have no result with their reason.
"""

from collections.abc import Iterator, Sequence

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import PointSummary, Ranking, Run, StudySummary
from bitbench.api.forms import ReportedStudy
from bitbench.features.interop.quality_column import QualityColumn
from bitbench.records.trial import Outcome
from bitbench.reports.document.markdown import code, phrase_text, section_parts
from bitbench.reports.document.model import Block, Heading, Name, Paragraph, Phrase, Quantity, Section, Table, Unit
from bitbench.reports.document.numbers import percent
from bitbench.reports.document.tables import ColumnOf, number_column, table, words_column
from bitbench.reports.document.text import plain
from bitbench.reports.document.words import Words, bullets, joined, listing, names, paragraph, say, strong
from bitbench.reports.grouping import grouped
from bitbench.reports.quantities import ROUGH, estimated, plus_minus, unit_of
from bitbench.reports.sections.host import host_section
from bitbench.reports.sections.imported import source
from bitbench.reports.sections.ranked import (
    entry_of,
    has_result,
    in_order,
    memory_metric,
    outcomes_of,
    rank,
    rankings_by_model,
    titled,
)
from bitbench.reports.shape import shape
from bitbench.util.units import UNKNOWN

ROUNDING = 1e-9  # what rounding leaves of equal values is below this
DECIMALS = 2  # as in such records
FIGURES = {
    "Latency": ("latency_s", "s"),
    "Output Throughput": ("output_throughput", "tok/s"),
    "Overall Throughput": ("overall_throughput", "tok/s"),
    "Input Throughput": ("input_throughput", "tok/s"),
}


def vendor_markdown(of: ReportedStudy) -> str:
    summary, lock = of.summary, of.records.lock
    origin = say(Name("bitbench run"), " of ", Name(summary.study.name))
    if summary.imported_from is not None:
        origin = say("imported: ", source(summary.imported_from))
    parts = ["# Performance Benchmark Results", phrase_text(say(strong("Generated from:"), " ", origin)), "---"]
    for part, ranking in rankings_by_model(summary):
        parts += _configuration(part, ranking)
    parts.append("---")
    for section in (_ranking(summary), *_not_run(summary), host_section(lock)):
        parts += section_parts(section)
    return "\n\n".join([*parts, phrase_text(_legend(summary))]) + "\n"


def _configuration(summary: StudySummary, ranking: Ranking) -> Iterator[str]:
    points = in_order(summary, ranking)
    blocks: list[Block] = [
        Paragraph(shape(summary.study.workload(ranking.workload))),
        paragraph(strong("Total models tested:"), f" {len(points)}"),
    ]
    if points:
        blocks += [Heading(say("Summary Table")), _summary_table(summary, ranking, points)]
        blocks += bullets(_outliers(summary, point) for point in points if point.outliers)
        blocks += bullets(_causes(point) for point in points if point.failures)
        blocks.append(Heading(say("Detailed Results")))
    yield from section_parts(Section(_title(summary, ranking.workload), tuple(blocks)))
    for point in points:
        yield from _details(point)


def _title(summary: StudySummary, workload: str) -> Phrase:
    asked = summary.study.workload(workload)
    lengths = {
        "batch_size": UNKNOWN if asked.open_loop or "concurrency" in asked.unknown else asked.concurrency,
        "input_len": UNKNOWN if "input_tokens" in asked.unknown else asked.input_tokens,
        "output_len": UNKNOWN if "output_tokens" in asked.unknown else asked.output_tokens,
    }
    shown = ", ".join(f"{name}={value}" for name, value in lengths.items())
    return titled(say(f"Configuration: {shown} (", Name(workload), ")"), summary)


def _summary_table(summary: StudySummary, ranking: Ranking, points: Sequence[PointSummary]) -> Table:
    memory, quality, definition = memory_metric(summary), QualityColumn(summary), summary.definitions[ranking.metric]
    interval = f"{definition.label}, {percent(summary.study.measure.confidence)} interval"

    def runs(point: PointSummary) -> Phrase:
        counted = sum(run.outcome is Outcome.OK for run in point.runs)
        return say(str(counted) if has_result(summary, point) else outcomes_of(point) or "not run")

    def peak(point: PointSummary) -> float | None:
        estimate = point.metrics.get(memory)
        return estimate.value if estimate else None

    def column(title: str) -> ColumnOf[PointSummary]:
        metric, unit = FIGURES[title]
        return number_column(title, unit, lambda point: _mean_and_deviation(point.metrics.get(metric)))

    return table(
        points,
        words_column("Rank", lambda point: rank(entry_of(ranking, point.point.config))),
        words_column("Model", lambda point: Name(point.point.config.name)),
        number_column("Runs", Unit.NONE, runs),
        *map(column, FIGURES),
        number_column(
            interval, unit_of(definition), lambda point: estimated(point.metrics.get(ranking.metric), definition)
        ),
        number_column("Memory peak", Unit.BYTES, peak),
        number_column(quality.title or "Quality", quality.unit, lambda point: quality.of(point.point.config)),
    )


def _mean_and_deviation(estimate: Estimate | None) -> Phrase | None:
    if estimate is None:
        return None
    sd = estimate.basis.trial_sd if estimate.basis else None
    return plus_minus(_figure(estimate.value), None if sd is None else _figure(sd))


def _figure(value: float) -> Quantity:
    """Two decimals, as in such records; small ones with three digits. The unit stands in the title, or behind it."""
    if abs(value) < ROUNDING:
        return Quantity(0.0, decimals=0)
    return Quantity(value, decimals=DECIMALS) if abs(value) >= 1 else Quantity(value, digits=ROUGH)


def _outliers(summary: StudySummary, point: PointSummary) -> Phrase:
    said = []
    for outlier in point.outliers:
        definition = summary.definitions[outlier.metric]
        value = say(f"{definition.name} ", _figure(outlier.value), f" {definition.unit} in ", Name(outlier.trial_id))
        said.append(say(value, " against a median of ", _figure(outlier.median)))
    name = Name(point.point.config.name)
    return say("Outlier: ", name, ": ", joined(said, "; "), ". Flagged (still included in the means).")


def _causes(point: PointSummary) -> Phrase:
    causes: list[Words] = [f"{group.failure.outcome.value}: {plain(group.failure.cause)}" for group in point.failures]
    return say(Name(point.point.config.name), ": ", joined(causes, "; "))


def _details(point: PointSummary) -> Iterator[str]:
    """Nested lists, which only this layout has."""
    counted = [run for run in point.runs if run.outcome is Outcome.OK]
    if not counted:
        return
    flagged = {outlier.trial_id for outlier in point.outliers}
    yield f"#### {code(point.point.config.name)}"
    yield f"- **Total runs:** {len(counted)}"
    yield "- **Individual runs:**"
    yield "\n".join(line for run in counted for line in _run(run, is_flagged=run.trial_id in flagged))
    yield "- **Statistics:**"
    yield "\n".join(
        f"  - {title}: {phrase_text(statistics)}"
        for title, (metric, _) in FIGURES.items()
        if (statistics := _mean_and_deviation(point.metrics.get(metric)))
    )


def _run(run: Run, *, is_flagged: bool) -> Iterator[str]:
    yield f"  - {code(run.trial_id)}:"
    for title, (metric, unit) in FIGURES.items():
        value = run.metrics.get(metric)
        shown = UNKNOWN if value is None else phrase_text((_figure(value), "" if unit == "s" else " ", unit))
        yield f"    - {title}: {shown}"
    if is_flagged:
        yield "    - Outlier: far from the other runs"


def _ranking(summary: StudySummary) -> Section:
    definition = summary.definitions[summary.primary_metric]
    blocks: list[Block] = []
    for part, ranking in rankings_by_model(summary):
        figures = {point.point.config: point.metrics for point in part.points_of(ranking.workload)}
        lines = []
        for entry in ranking.entries:
            figure = _figure(figures[entry.config][ranking.metric].value)
            place, name = rank(entry) or UNKNOWN, strong(plain(entry.config.name))
            lines.append(say(place, " ", name, ": ", figure, f" {definition.unit}"))
        blocks.append(Heading(_title(part, ranking.workload)))
        blocks += bullets(lines) or (paragraph("No config has a result."),)
    return Section(say(f"Performance Ranking (by {definition.name})"), tuple(blocks))


def _not_run(summary: StudySummary) -> Iterator[Section]:
    reasons = grouped(summary.refusals, lambda refusal: refusal.reason)
    lines = [
        say(listing(names(dict.fromkeys(refusal.point.config.name for refusal in alike))), f": {plain(reason)}")
        for reason, alike in reasons.items()
    ]
    if lines:
        yield Section(say("Not run"), bullets(lines))


def _legend(summary: StudySummary) -> Phrase:
    quality = "relative to the baseline where it says so" if summary.quality else "not measured"
    return say(
        "± is the standard deviation of the single runs; the interval is that of the mean and covers the variation "
        "between starts of the engine where there were several. Configs whose difference is not significant share a "
        f"range of ranks. {UNKNOWN} is unknown. Quality: {quality}."
    )
