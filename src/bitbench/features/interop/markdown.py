"""`vendor-md` and `backend-md`: runs by configuration, and a column per backend, as such records are published in
Markdown.

The layout is the one that `bitbench import --from vendor-table` reads. Added are: the machine, memory, quality, the
interval, what is undecided, flagged outliers, and the points that have no result with their reason.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import MetricDefinition, PointSummary, Ranking, Run, StudySummary
from bitbench.records.trial import Outcome
from bitbench.reports.document.markdown import markdown, markdown_code, markdown_phrase, markdown_section_parts
from bitbench.reports.document.model import (
    Block,
    Document,
    Heading,
    Name,
    Paragraph,
    Phrase,
    Quantity,
    Section,
    Table,
    Unit,
)
from bitbench.reports.document.numbers import ROUGH, estimated, percent, plus_minus, quantity_unit, starts_and_trials
from bitbench.reports.document.words import (
    MAX_NAME,
    ColumnOf,
    Words,
    bullets,
    joined,
    listing,
    name_phrases,
    number_column,
    paragraph,
    plain_words,
    say,
    strong,
    table,
    words_column,
)
from bitbench.reports.labels import grouped
from bitbench.reports.sections.conditions import conditions_source_phrase, host_section
from bitbench.reports.sections.ranked import (
    has_ranked_result,
    rank_text,
    ranked_entry,
    ranked_memory_metric,
    ranked_parts_by_model,
    ranked_point_outcomes,
    ranked_points,
    ranked_section_title,
)
from bitbench.reports.sections.workloads import workload_shape
from bitbench.reports.write import StudyReport
from bitbench.study.plan import Config
from bitbench.util.units import UNKNOWN

PREFERRED = ("perplexity_rise", "kl_mean", "perplexity")  # keys of a config's quality estimates


class QualityColumn:
    """The first of PREFERRED that any config has; `title` is None where none has any."""

    def __init__(self, summary: StudySummary) -> None:
        self._estimates = {row.config: row.estimates for row in summary.quality}
        keys = dict.fromkeys((*PREFERRED, *summary.quality_definitions))
        self._key = next((key for key in keys if any(key in known for known in self._estimates.values())), None)
        self._definition = summary.quality_definitions[self._key] if self._key else None
        self.title = self._definition.label if self._definition else None
        self.unit = quantity_unit(self._definition) if self._definition else Unit.NONE

    def of(self, config: Config) -> Quantity | None:
        if self._key is None or self._definition is None:
            return None
        return estimated(self._estimates.get(config, {}).get(self._key), self._definition)


TIMES = {"TTFT": "ttft_s", "TPOT": "tpot_s"}
LEGEND = (
    "Times are mean ± standard deviation of the runs [interval of the mean]. TTFT counts from the planned send to the "
    "first token, TPOT is the time per further token. Kernels are in the engine's own words; – is unknown."
)


def markdown_by_backend(of: StudyReport) -> str:
    sections = [
        Section(
            ranked_section_title(Name(ranking.workload), part),
            (Paragraph(workload_shape(part.study.workload(ranking.workload))), _backends(part, ranking, points)),
        )
        for part in of.summary.by_model
        for ranking in part.rankings
        if (points := ranked_points(part, ranking))
    ]
    return markdown(Document(say(f"{of.summary.study.name}: backends"), (paragraph(LEGEND),), tuple(sections)))


def _backends(summary: StudySummary, ranking: Ranking, points: Sequence[PointSummary]) -> Table:
    """A column per point, a row per fact."""

    def column(place: int) -> ColumnOf[tuple[str, list[Words]]]:
        return words_column(plain_words(points[place].point.config.engine, MAX_NAME), lambda fact: fact[1][place])

    return table(
        _facts(summary, ranking, points),
        words_column(strong("Backend"), lambda fact: strong(fact[0])),
        *map(column, range(len(points))),
    )


def _facts(
    summary: StudySummary, ranking: Ranking, points: Sequence[PointSummary]
) -> Iterator[tuple[str, list[Words]]]:
    known = {config.config: config for config in summary.configs}
    configs = [point.point.config for point in points]
    yield "Model", [plain_words(config.variant, MAX_NAME) for config in configs]
    yield "Version", [_words(known[config].engine_versions if config in known else ()) for config in configs]
    yield "Kernel", [_words(known[config].kernels if config in known else ()) for config in configs]
    for title, metric in TIMES.items():
        yield title, [estimated(point.metrics.get(metric), summary.definitions[metric]) for point in points]
    known_times = [point.metrics.get("ttft_s") or point.metrics.get("tpot_s") for point in points]
    yield "Starts / trials", [starts_and_trials(known) if known else None for known in known_times]
    name = summary.definitions[ranking.metric].name
    yield f"Rank by {name}", [rank_text(ranked_entry(ranking, config)) for config in configs]
    if any(point.failures for point in points):
        yield "Failed", [ranked_point_outcomes(point) or "no" for point in points]


def _words(words: tuple[str, ...]) -> str | None:
    return "; ".join(plain_words(word, MAX_NAME) for word in words) or None


ROUNDING = 1e-9  # what rounding leaves of equal values is below this
DECIMALS = 2  # as in such records
FIGURES = {
    "Latency": ("latency_s", "s"),
    "Output Throughput": ("output_throughput", "tok/s"),
    "Overall Throughput": ("overall_throughput", "tok/s"),
    "Input Throughput": ("input_throughput", "tok/s"),
}


def vendor_markdown(of: StudyReport) -> str:
    summary, lock = of.summary, of.records.lock
    origin = say(Name("bitbench run"), " of ", Name(summary.study.name))
    if summary.imported_from is not None:
        origin = say("imported: ", conditions_source_phrase(summary.imported_from))
    parts = ["# Performance Benchmark Results", markdown_phrase(say(strong("Generated from:"), " ", origin)), "---"]
    for part, ranking in ranked_parts_by_model(summary):
        parts += _configuration(part, ranking)
    parts.append("---")
    for section in (_ranking(summary), *_not_run(summary), host_section(lock)):
        parts += markdown_section_parts(section)
    return "\n\n".join([*parts, markdown_phrase(_legend(summary))]) + "\n"


def _configuration(summary: StudySummary, ranking: Ranking) -> Iterator[str]:
    points = ranked_points(summary, ranking)
    blocks: list[Block] = [
        Paragraph(workload_shape(summary.study.workload(ranking.workload))),
        paragraph(strong("Total models tested:"), f" {len(points)}"),
    ]
    if points:
        blocks += [Heading(say("Summary Table")), _summary_table(summary, ranking, points)]
        blocks += bullets(_outliers(summary, point) for point in points if point.outliers)
        blocks += bullets(_causes(point) for point in points if point.failures)
        blocks.append(Heading(say("Detailed Results")))
    yield from markdown_section_parts(Section(_title(summary, ranking.workload), tuple(blocks)))
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
    return ranked_section_title(say(f"Configuration: {shown} (", Name(workload), ")"), summary)


def _summary_table(summary: StudySummary, ranking: Ranking, points: Sequence[PointSummary]) -> Table:
    memory, quality, definition = (
        ranked_memory_metric(summary),
        QualityColumn(summary),
        summary.definitions[ranking.metric],
    )
    interval = f"{definition.label}, {percent(summary.study.measure.confidence)} interval"

    def runs(point: PointSummary) -> Phrase:
        counted = sum(run.outcome is Outcome.OK for run in point.runs)
        return say(str(counted) if has_ranked_result(summary, point) else ranked_point_outcomes(point) or "not run")

    def peak(point: PointSummary) -> float | None:
        estimate = point.metrics.get(memory)
        return estimate.value if estimate else None

    def column(title: str) -> ColumnOf[PointSummary]:
        metric, unit = FIGURES[title]
        return number_column(title, unit, lambda point: _mean_and_deviation(point.metrics.get(metric)))

    return table(
        points,
        words_column("Rank", lambda point: rank_text(ranked_entry(ranking, point.point.config))),
        words_column("Model", lambda point: Name(point.point.config.name)),
        number_column("Runs", Unit.NONE, runs),
        *map(column, FIGURES),
        number_column(
            interval, quantity_unit(definition), lambda point: _interval(point.metrics.get(ranking.metric), definition)
        ),
        number_column("Memory peak", Unit.BYTES, peak),
        number_column(quality.title or "Quality", quality.unit, lambda point: quality.of(point.point.config)),
    )


def _interval(estimate: Estimate | None, definition: MetricDefinition) -> Quantity | None:
    """The deviation has a column of its own."""
    known = estimated(estimate, definition)
    return None if known is None else replace(known, sd=None)


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
    causes: list[Words] = [
        f"{group.failure.outcome.value}: {plain_words(group.failure.cause)}" for group in point.failures
    ]
    return say(Name(point.point.config.name), ": ", joined(causes, "; "))


def _details(point: PointSummary) -> Iterator[str]:
    """Nested lists, which only this layout has."""
    counted = [run for run in point.runs if run.outcome is Outcome.OK]
    if not counted:
        return
    flagged = {outlier.trial_id for outlier in point.outliers}
    yield f"#### {markdown_code(point.point.config.name)}"
    yield f"- **Total runs:** {len(counted)}"
    yield "- **Individual runs:**"
    yield "\n".join(line for run in counted for line in _run(run, is_flagged=run.trial_id in flagged))
    yield "- **Statistics:**"
    yield "\n".join(
        f"  - {title}: {markdown_phrase(statistics)}"
        for title, (metric, _) in FIGURES.items()
        if (statistics := _mean_and_deviation(point.metrics.get(metric)))
    )


def _run(run: Run, *, is_flagged: bool) -> Iterator[str]:
    yield f"  - {markdown_code(run.trial_id)}:"
    for title, (metric, unit) in FIGURES.items():
        value = run.metrics.get(metric)
        shown = UNKNOWN if value is None else markdown_phrase((_figure(value), "" if unit == "s" else " ", unit))
        yield f"    - {title}: {shown}"
    if is_flagged:
        yield "    - Outlier: far from the other runs"


def _ranking(summary: StudySummary) -> Section:
    definition = summary.definitions[summary.primary_metric]
    blocks: list[Block] = []
    for part, ranking in ranked_parts_by_model(summary):
        figures = {point.point.config: point.metrics for point in part.points_of(ranking.workload)}
        lines = []
        for entry in ranking.entries:
            figure = _figure(figures[entry.config][ranking.metric].value)
            place, name = rank_text(entry) or UNKNOWN, strong(plain_words(entry.config.name))
            lines.append(say(place, " ", name, ": ", figure, f" {definition.unit}"))
        blocks.append(Heading(_title(part, ranking.workload)))
        blocks += bullets(lines) or (paragraph("No config has a result."),)
    return Section(say(f"Performance Ranking (by {definition.name})"), tuple(blocks))


def _not_run(summary: StudySummary) -> Iterator[Section]:
    reasons = grouped(summary.refusals, lambda refusal: refusal.reason)
    lines = [
        say(
            listing(name_phrases(dict.fromkeys(refusal.point.config.name for refusal in alike))),
            f": {plain_words(reason)}",
        )
        for reason, alike in reasons.items()
    ]
    if lines:
        yield Section(say("Not run"), bullets(lines))


def _legend(summary: StudySummary) -> Phrase:
    quality = "relative to the baseline where it says so" if summary.quality else "not measured"
    return say(
        "± is the standard deviation of the single runs. The interval is that of the mean and covers the variation "
        "between starts of the engine; one start has no interval and no rank. Configs whose difference is not "
        f"significant share a range of ranks. {UNKNOWN} is unknown. Quality: {quality}."
    )
