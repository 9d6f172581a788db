"""The report of a study: the answer and its charts, one table, then the details."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bitbench.analysis.results.summary import StudySummary
from bitbench.feature import ReportPlace
from bitbench.records.lock import Lock
from bitbench.reports.charts.curves import load_curve_figures
from bitbench.reports.charts.rows import ratio_figure
from bitbench.reports.charts.trade import trade_figure
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
from bitbench.reports.document.numbers import estimated
from bitbench.reports.document.words import (
    bullets,
    format_names,
    joined,
    listing,
    paragraph,
    plural,
    say,
    small_print,
    strong,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections.conditions import (
    attempts_section,
    conditions_source_paragraph,
    configs_section,
    host_section,
    method_section,
    starts_section,
)
from bitbench.reports.sections.failures import failures_section, refusals_section, remarks
from bitbench.reports.sections.lead import Lead, answer_marks, lead, lead_parts_of_features
from bitbench.reports.sections.memory import engine_metrics_section, memory_section
from bitbench.reports.sections.quality import quality_section, quality_sentences
from bitbench.reports.sections.ranked import (
    objectives_section,
    objectives_sentence,
    ranked_estimate,
    ranked_section_title,
    results_section,
)
from bitbench.reports.sections.sweep import sweep_answer, sweep_points, sweep_section
from bitbench.reports.sections.workloads import workload_section
from bitbench.util.units import show_bytes

TRADE = (
    "Filled markers form the Pareto front of what the caption names: no other config is at least "
    "as good in all of it and significantly better in one. Bars are intervals (of memory, the "
    "lowest and the highest start), cut off at the edge."
)
_NO_RESULT = (
    " without a result, since this machine or its client was too busy; run the study again."
)


def study_document(summary: StudySummary, lock: Lock) -> Document:
    """Return the report of a study: the answer with its charts and one table, then the details.

    A page shows only the titles of the details. A section without data is left out.
    """
    was_running = bool(summary.points) and all(point.was_running for point in summary.points)
    is_sweep = bool(sweep_points(summary, was_running=was_running))
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
    answer = _load_answer(summary) if is_sweep else _answer(summary, lock, openings)
    facts = _facts(lock, was_running=was_running)
    return Document(say(summary.study.name), tuple(answer), tuple(sections), tuple(facts))


def _iter_first_sections(
    summary: StudySummary, openings: Sequence["_Opening"], *, is_sweep: bool
) -> Iterator[Section | None]:
    """Yield the sections below the answer. Quality is there only if no speed was measured."""
    if is_sweep:
        yield sweep_section(summary)
    yield from lead_parts_of_features(summary, "section", ReportPlace.ANSWER)
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
    """Yield the sections that a page folds away."""
    for opening in openings:
        yield from opening.details()
    if not is_sweep:
        yield objectives_section(summary)
    yield from lead_parts_of_features(summary, "section", ReportPlace.SPEED)
    yield memory_section(summary)
    yield from lead_parts_of_features(summary, "section", ReportPlace.MEMORY)
    yield engine_metrics_section(summary)
    if summary.study.workloads:
        yield from _iter_quality_sections(summary)
    yield from lead_parts_of_features(summary, "section", ReportPlace.CAUSES)
    yield failures_section(summary)
    yield refusals_section(summary)
    if not was_running:
        yield starts_section(summary)
    yield configs_section(summary, lock)
    yield attempts_section(summary)
    yield host_section(lock)
    yield from lead_parts_of_features(summary, "section", ReportPlace.CONDITIONS)
    yield method_section(summary)


def _iter_quality_sections(summary: StudySummary) -> Iterator[Section | None]:
    yield quality_section(summary)
    yield from lead_parts_of_features(summary, "section", ReportPlace.QUALITY)


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
        answer = lead(summary)
        labels = Labels.of(summary).marked(answer_marks(summary, answer))
        figures = [ratio_figure(summary, labels)]
        figures += [trade_figure(summary, ranking, labels) for ranking in summary.rankings[:1]]
        return cls(summary, number, answer, labels, tuple(filter(None, figures)))

    def headline(self) -> Iterator[Block]:
        if self.lead is not None:
            model = strong(Name(self.summary.model), ": ") if self.summary.model else ()
            yield Paragraph(say(model, self.lead.headline))
        elif figures := list(_figures_alone(self.summary)):
            config = self.summary.configs[0].config
            yield paragraph(strong(Name(self.labels[config])), ": ", listing(figures), ".")

    def charts(self) -> Iterator[Block]:
        yield from self._own_names(map(Chart, self.figures))

    @property
    def results(self) -> Section | None:
        return results_section(self.summary, self.labels)

    def details(self) -> Iterator[Section]:
        for section in _speed_of(self.summary):
            yield replace(section, blocks=tuple(self._own_names(section.blocks)))

    def _own_names(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the blocks with distinct names of charts.

        Without the number of the model, the files and anchors of several models would collide.
        """
        for block in blocks:
            if isinstance(block, Chart) and self.summary.model:
                yield Chart(replace(block.figure, name=f"{block.figure.name}-{self.place}"))
            else:
                yield block


def _figures_alone(summary: StudySummary) -> Iterator[Phrase]:
    """Yield the results of a config that is not compared: `35.1 [34.8, 35.4] tok/s on one`."""
    if len(summary.configs) != 1:
        return
    definition = summary.definitions[summary.primary_metric]
    for ranking in summary.rankings:
        for entry in ranking.entries:
            result = estimated(ranked_estimate(summary, ranking, entry), definition)
            yield say(result, " on ", Name(ranking.workload))


def _answer(summary: StudySummary, lock: Lock, openings: Sequence[_Opening]) -> Iterator[Block]:
    """Yield the answer for each model, then what to be careful with."""
    if lacking := summary.lacking:
        workloads = dict.fromkeys(point.point.workload for point in lacking)
        count = f" {plural(len(lacking), 'point')} on "
        yield paragraph(strong("Not complete:"), count, format_names(workloads), _NO_RESULT)
    for opening in openings:
        yield from opening.headline()
        if opening is openings[0]:
            yield from _of_what(summary, lock)
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
        yield Paragraph(joined(reasons, " "))
    yield from bullets(
        [
            *remarks(summary),
            *quality_sentences(summary),
            *lead_parts_of_features(summary, "sentences"),
        ]
    )
    if (verdict := objectives_sentence(summary)) is not None:
        yield Paragraph(verdict)
    if summary.study.description:
        yield small_print(summary.study.description)


def _load_answer(summary: StudySummary) -> Iterator[Block]:
    """Yield the answer for one config under load, its curves, then what to be careful with."""
    first, *others = sweep_answer(summary)
    yield Paragraph(first)
    yield from map(Chart, load_curve_figures(summary, Labels.of(summary)))
    yield from bullets(others)
    if summary.study.description:
        yield small_print(summary.study.description)


def _of_what(summary: StudySummary, lock: Lock) -> Iterator[Block]:
    """Yield what a reader must know before believing a number."""
    # Only the shape of these models is real.
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
        yield conditions_source_paragraph(summary.imported_from)


def _speed_of(summary: StudySummary) -> Iterator[Section]:
    """Yield the sections about the speed of one model."""
    labels = Labels.of(summary)
    if figures := load_curve_figures(summary, labels):
        text = "The same shape under rising load: what is gained in throughput costs latency."
        yield _charts(ranked_section_title("Latency against throughput", summary), text, figures)
    yield from _trade_offs(summary, labels)
    for ranking in summary.rankings:
        yield workload_section(summary, ranking)


def _trade_offs(summary: StudySummary, labels: Labels) -> Iterator[Section]:
    """Yield the trade-offs of all workloads but the first, whose chart is part of the answer."""
    figures = [trade_figure(summary, ranking, labels) for ranking in summary.rankings[1:]]
    if drawn := list(filter(None, figures)):
        title = ranked_section_title("Speed against quality or memory", summary)
        yield _charts(title, TRADE, drawn)


def _charts(title: Phrase, text: str, figures: Sequence[Figure]) -> Section:
    return Section(title, (paragraph(text), *map(Chart, figures)))


def _facts(lock: Lock, *, was_running: bool) -> Iterator[tuple[str, str]]:
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
