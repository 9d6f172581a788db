"""The report of a study: the answer and its charts, one table, then the details."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bitbench.analysis.results.summary import StudySummary
from bitbench.feature import ReportPlace
from bitbench.records.lock import Lock
from bitbench.reports.charts.curves import build_load_charts
from bitbench.reports.charts.rows import build_ratio_chart
from bitbench.reports.charts.trade import build_trade_chart
from bitbench.reports.document.model import (
    Block,
    Chart,
    Document,
    Figure,
    Name,
    Paragraph,
    Phrase,
    Section,
)
from bitbench.reports.document.numbers import to_quantity
from bitbench.reports.document.words import (
    bullets,
    format_count,
    format_list,
    format_names,
    join_phrases,
    paragraph,
    say,
    small_print,
    strong,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections.conditions import (
    build_attempts_section,
    build_configs_section,
    build_host_section,
    build_import_paragraph,
    build_method_section,
    build_starts_section,
)
from bitbench.reports.sections.failures import (
    build_failures_section,
    build_refusals_section,
    iter_remarks,
)
from bitbench.reports.sections.lead import Lead, collect_answer_marks, find_lead, iter_feature_parts
from bitbench.reports.sections.memory import build_engine_section, build_memory_section
from bitbench.reports.sections.quality import build_quality_section, iter_quality_sentences
from bitbench.reports.sections.ranked import (
    build_objectives_section,
    build_results_section,
    find_ranked_estimate,
    format_objective_counts,
    format_section_title,
)
from bitbench.reports.sections.sweep import (
    build_sweep_section,
    list_sweep_points,
    list_sweep_sentences,
)
from bitbench.reports.sections.workloads import build_workload_section
from bitbench.util.units import show_bytes

TRADE = (
    "Filled markers form the Pareto front of what the caption names: no other config is at least "
    "as good in all of it and significantly better in one. Bars are intervals (of memory, the "
    "lowest and the highest start), cut off at the edge."
)
_NO_RESULT = (
    " without a result, since this machine or its client was too busy; run the study again."
)


def build_study_report(summary: StudySummary, lock: Lock) -> Document:
    """Return the report of a study: the answer with its charts and one table, then the details.

    A page shows only the titles of the details. A section without data is left out.
    """
    was_running = bool(summary.points) and all(point.was_running for point in summary.points)
    is_sweep = bool(list_sweep_points(summary, was_running=was_running))
    openings = []
    if not is_sweep:
        for number, part in enumerate(summary.by_model, start=1):
            openings.append(_Opening.of(part, number))
    sections = list(filter(None, _iter_first_sections(summary, openings, is_sweep=is_sweep)))
    details = _iter_detail_sections(
        summary, lock, openings, is_sweep=is_sweep, was_running=was_running
    )
    for section in filter(None, details):
        sections.append(replace(section, is_folded=True))
    answer = _iter_load_answer(summary) if is_sweep else _iter_answer(summary, lock, openings)
    facts = _iter_facts(lock, was_running=was_running)
    return Document(say(summary.study.name), tuple(answer), tuple(sections), tuple(facts))


def _iter_first_sections(
    summary: StudySummary, openings: Sequence["_Opening"], *, is_sweep: bool
) -> Iterator[Section | None]:
    """Yield the sections below the answer. Quality is one of them if no speed was measured.

    A section without data is None.
    """
    if is_sweep:
        yield build_sweep_section(summary)
    yield from iter_feature_parts(summary, "section", ReportPlace.ANSWER)
    for opening in openings:
        yield opening.results
    if not summary.study.workloads:
        yield from _iter_quality_sections(summary)


def _iter_detail_sections(
    summary: StudySummary,
    lock: Lock,
    openings: Sequence["_Opening"],
    *,
    is_sweep: bool,
    was_running: bool,
) -> Iterator[Section | None]:
    """Yield the sections that a page collapses. A section without data is None.

    `was_running` is True if bitbench started no server of the study.
    """
    for opening in openings:
        yield from opening.details()
    if not is_sweep:
        yield build_objectives_section(summary)
    yield from iter_feature_parts(summary, "section", ReportPlace.SPEED)
    yield build_memory_section(summary)
    yield from iter_feature_parts(summary, "section", ReportPlace.MEMORY)
    yield build_engine_section(summary)
    if summary.study.workloads:
        yield from _iter_quality_sections(summary)
    yield from iter_feature_parts(summary, "section", ReportPlace.CAUSES)
    yield build_failures_section(summary)
    yield build_refusals_section(summary)
    if not was_running:
        yield build_starts_section(summary)
    yield build_configs_section(summary, lock)
    yield build_attempts_section(summary)
    yield build_host_section(lock)
    yield from iter_feature_parts(summary, "section", ReportPlace.CONDITIONS)
    yield build_method_section(summary)


def _iter_quality_sections(summary: StudySummary) -> Iterator[Section | None]:
    yield build_quality_section(summary)
    yield from iter_feature_parts(summary, "section", ReportPlace.QUALITY)


@dataclass(frozen=True)
class _Opening:
    """The first part of a report about one model: its answer and the charts that show it."""

    summary: StudySummary
    place: int  # the number of the model
    lead: Lead | None
    labels: Labels
    figures: tuple[Figure, ...]

    @classmethod
    def of(cls, summary: StudySummary, number: int) -> "_Opening":
        answer = find_lead(summary)
        labels = Labels.of(summary).marked(collect_answer_marks(summary, answer))
        figures = [build_ratio_chart(summary, labels)]
        figures += [build_trade_chart(summary, ranking, labels) for ranking in summary.rankings[:1]]
        return cls(summary, number, answer, labels, tuple(filter(None, figures)))

    def headline(self) -> Iterator[Block]:
        if self.lead is not None:
            model = strong(Name(self.summary.model), ": ") if self.summary.model else ()
            yield Paragraph(say(model, self.lead.headline))
        elif figures := list(_iter_single_results(self.summary)):
            config = self.summary.configs[0].config
            yield paragraph(strong(Name(self.labels[config])), ": ", format_list(figures), ".")

    def charts(self) -> Iterator[Block]:
        yield from self._own_names(map(Chart, self.figures))

    @property
    def results(self) -> Section | None:
        return build_results_section(self.summary, self.labels)

    def details(self) -> Iterator[Section]:
        for section in _iter_speed_sections(self.summary):
            yield replace(section, blocks=tuple(self._own_names(section.blocks)))

    def _own_names(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the blocks, with the number of the model in the names of charts.

        Without the number, the files and anchors of several models would collide.
        """
        for block in blocks:
            if isinstance(block, Chart) and self.summary.model:
                yield Chart(replace(block.figure, name=f"{block.figure.name}-{self.place}"))
            else:
                yield block


def _iter_single_results(summary: StudySummary) -> Iterator[Phrase]:
    """Yield the results of a config that is not compared: `35.1 [34.8, 35.4] tok/s on one`."""
    if len(summary.configs) != 1:
        return
    definition = summary.definitions[summary.primary_metric]
    for ranking in summary.rankings:
        for entry in ranking.entries:
            result = to_quantity(find_ranked_estimate(summary, ranking, entry), definition)
            yield say(result, " on ", Name(ranking.workload))


def _iter_answer(
    summary: StudySummary, lock: Lock, openings: Sequence[_Opening]
) -> Iterator[Block]:
    """Yield the answer for each model, then the cautions."""
    if lacking := summary.lacking:
        workloads = dict.fromkeys(point.point.workload for point in lacking)
        count = f" {format_count(len(lacking), 'point')} on "
        yield paragraph(strong("Not complete:"), count, format_names(workloads), _NO_RESULT)
    for opening in openings:
        yield from opening.headline()
        if opening is openings[0]:
            yield from _iter_warnings(summary, lock)
        yield from opening.charts()
    if summary.models:
        yield paragraph(
            "Models are not compared with each other: each has ranks and a baseline of its own."
        )
    reasons: list[Phrase] = []
    for opening in openings:
        if opening.lead:
            reasons += opening.lead.more
    if reasons:
        yield Paragraph(join_phrases(reasons, " "))
    yield from bullets(
        [
            *iter_remarks(summary),
            *iter_quality_sentences(summary),
            *iter_feature_parts(summary, "sentences"),
        ]
    )
    if (verdict := format_objective_counts(summary)) is not None:
        yield Paragraph(verdict)
    if summary.study.description:
        yield small_print(summary.study.description)


def _iter_load_answer(summary: StudySummary) -> Iterator[Block]:
    """Yield the answer for one config under load, its curves, then the cautions."""
    first, *others = list_sweep_sentences(summary)
    yield Paragraph(first)
    yield from map(Chart, build_load_charts(summary, Labels.of(summary)))
    yield from bullets(others)
    if summary.study.description:
        yield small_print(summary.study.description)


def _iter_warnings(summary: StudySummary, lock: Lock) -> Iterator[Block]:
    """Yield warnings about models with random weights and about imported results."""
    # Models of which only the shape is real.
    untrained = set()
    for variant in lock.plan.variants:
        if variant.facts.random_weights:
            untrained.add(variant.model_name)
    if untrained:
        yield paragraph(
            strong("Random weights:"),
            " bitbench filled ",
            format_names(sorted(untrained)),
            " with random numbers, in the shape of a published model. Speed, memory and kernels "
            "are those of that shape; nothing here says anything about quality.",
        )
    if summary.imported_from:
        yield build_import_paragraph(summary.imported_from)


def _iter_speed_sections(summary: StudySummary) -> Iterator[Section]:
    """Yield the sections about the speed of one model."""
    labels = Labels.of(summary)
    if figures := build_load_charts(summary, labels):
        text = "The same shape under rising load: what is gained in throughput costs latency."
        yield _build_charts_section(
            format_section_title("Latency against throughput", summary), text, figures
        )
    yield from _iter_trade_offs(summary, labels)
    for ranking in summary.rankings:
        yield build_workload_section(summary, ranking)


def _iter_trade_offs(summary: StudySummary, labels: Labels) -> Iterator[Section]:
    """Yield the trade-offs of all workloads but the first, whose chart is part of the answer."""
    figures = [build_trade_chart(summary, ranking, labels) for ranking in summary.rankings[1:]]
    if drawn := list(filter(None, figures)):
        title = format_section_title("Speed against quality or memory", summary)
        yield _build_charts_section(title, TRADE, drawn)


def _build_charts_section(title: Phrase, text: str, figures: Sequence[Figure]) -> Section:
    return Section(title, (paragraph(text), *map(Chart, figures)))


def _iter_facts(lock: Lock, *, was_running: bool) -> Iterator[tuple[str, str]]:
    """Yield the machine, the day and the version.

    If the server was running already, this machine only sent the requests.
    """
    host = lock.host
    cores = f"{host.cores} cores" if host.cores else ""
    memory = show_bytes(host.memory_bytes) if host.memory_bytes else ""
    accelerators = [accelerator.name for accelerator in host.accelerators]
    machine = ", ".join(filter(None, [host.cpu_model, cores, memory, *accelerators]))
    if machine and was_running:
        machine = f"sent from {machine}"
    if machine:
        yield "Machine", machine
    if lock.created_at:
        yield "Measured", lock.created_at[:10]
    if lock.bitbench:
        yield "Version", f"bitbench {lock.bitbench}"
