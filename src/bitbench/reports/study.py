"""The report of a study, in order: the answer and its picture, one table, then what they rest on."""

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
    joined,
    listing,
    name_phrases,
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
    "Filled markers form the Pareto front of what the caption names: no other config is at least as good in all of it "
    "and significantly better in one. Bars are intervals (of memory, the lowest and the highest start), cut off at the "
    "edge."
)


def study_document(
    summary: StudySummary,
    lock: Lock,
) -> Document:
    """The answer and the charts that show it, one table, then everything else, folded. A section without data is left
    out."""
    was_running = bool(summary.points) and all(point.was_running for point in summary.points)
    is_sweep = bool(sweep_points(summary, was_running=was_running))
    openings = (
        []
        if is_sweep
        else [_Opening.of(part, place) for place, part in enumerate(summary.by_model, start=1)]
    )
    measures_speed = bool(summary.study.workloads)
    quality = [
        quality_section(summary),
        *lead_parts_of_features(summary, "section", ReportPlace.QUALITY),
    ]
    first = [
        *([sweep_section(summary)] if is_sweep else []),
        *lead_parts_of_features(summary, "section", ReportPlace.ANSWER),
        *(opening.results for opening in openings),
        *([] if measures_speed else quality),
    ]
    details = [
        *(section for opening in openings for section in opening.details()),
        None if is_sweep else objectives_section(summary),
        *lead_parts_of_features(summary, "section", ReportPlace.SPEED),
        memory_section(summary),
        *lead_parts_of_features(summary, "section", ReportPlace.MEMORY),
        engine_metrics_section(summary),
        *(quality if measures_speed else []),
        *lead_parts_of_features(summary, "section", ReportPlace.CAUSES),
        failures_section(summary),
        refusals_section(summary),
        None if was_running else starts_section(summary),
        configs_section(summary, lock),
        attempts_section(summary),
        host_section(lock),
        *lead_parts_of_features(summary, "section", ReportPlace.CONDITIONS),
        method_section(summary),
    ]
    return Document(
        say(summary.study.name),
        tuple(_load_answer(summary) if is_sweep else _answer(summary, lock, openings)),
        (
            *(section for section in first if section is not None),
            *(replace(section, is_folded=True) for section in details if section is not None),
        ),
        tuple(_facts(lock, was_running=was_running)),
    )


_NO_RESULT = (
    " without a result, since this machine or its client was too busy; run the study again."
)


@dataclass(frozen=True)
class _Opening:
    """What is said first about one model: the answer, what it recommends, and the figures that show it."""

    summary: StudySummary
    place: int  # of the model
    lead: Lead | None
    labels: Labels
    figures: tuple[Figure, ...]

    @classmethod
    def of(cls, summary: StudySummary, place: int) -> "_Opening":
        found = lead(summary)
        labels = Labels.of(summary).marked(answer_marks(summary, found))
        figures = [ratio_figure(summary, labels)]
        figures += [trade_figure(summary, ranking, labels) for ranking in summary.rankings[:1]]
        return cls(summary, place, found, labels, tuple(figure for figure in figures if figure))

    def headline(self) -> Iterator[Block]:
        if self.lead is not None:
            model = strong(Name(self.summary.model), ": ") if self.summary.model else ()
            yield Paragraph(say(model, self.lead.headline))
        elif figures := [*_figures_alone(self.summary)]:
            yield Paragraph(
                say(
                    strong(Name(self.labels[self.summary.configs[0].config])),
                    ": ",
                    listing(figures),
                    ".",
                )
            )

    def charts(self) -> Iterator[Block]:
        yield from self._own_names(Chart(figure) for figure in self.figures)

    @property
    def results(self) -> Section | None:
        return results_section(self.summary, self.labels)

    def details(self) -> Iterator[Section]:
        for section in _speed_of(self.summary):
            yield replace(section, blocks=tuple(self._own_names(section.blocks)))

    def _own_names(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Figures of several models have the same names: those of files, and of places in a page."""
        for block in blocks:
            if isinstance(block, Chart) and self.summary.model:
                yield Chart(replace(block.figure, name=f"{block.figure.name}-{self.place}"))
            else:
                yield block


def _figures_alone(summary: StudySummary) -> Iterator[Phrase]:
    """Of a config that has no other to be compared with: `35.1 [34.8, 35.4] tok/s on one`."""
    definition = summary.definitions[summary.primary_metric]
    for ranking in summary.rankings if len(summary.configs) == 1 else ():
        for entry in ranking.entries:
            yield say(
                estimated(ranked_estimate(summary, ranking, entry), definition),
                " on ",
                Name(ranking.workload),
            )


def _answer(summary: StudySummary, lock: Lock, openings: Sequence[_Opening]) -> Iterator[Block]:
    if lacking := [point.point for point in summary.lacking]:
        workloads = listing(name_phrases(dict.fromkeys(point.workload for point in lacking)))
        yield paragraph(
            strong("Not complete:"), f" {plural(len(lacking), 'point')} on ", workloads, _NO_RESULT
        )
    for opening in openings:
        yield from opening.headline()
        if opening is openings[0]:
            yield from _of_what(summary, lock)
        yield from opening.charts()
    if summary.models:
        yield paragraph(
            "Models are not compared with each other: each has ranks and a baseline of its own."
        )
    reasons = [reason for opening in openings if opening.lead for reason in opening.lead.more]
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
    """One config under load: what it carries, the curves, then what to be careful with."""
    first, *others = sweep_answer(summary)
    yield Paragraph(first)
    labels = Labels.of(summary)
    yield from (Chart(figure) for figure in load_curve_figures(summary, labels))
    yield from bullets(others)
    if summary.study.description:
        yield small_print(summary.study.description)


def _of_what(summary: StudySummary, lock: Lock) -> Iterator[Block]:
    """What a reader must know before believing a figure."""
    # Models of which only the shape is real.
    if untrained := {
        variant.model_name for variant in lock.plan.variants if variant.facts.random_weights
    }:
        yield Paragraph(
            say(
                strong("Random weights:"),
                " bitbench filled ",
                listing(name_phrases(sorted(untrained))),
                " with random numbers, in the shape of a published model. Speed, memory and kernels are those of that "
                "shape; nothing here says anything about quality.",
            )
        )
    if summary.imported_from:
        yield conditions_source_paragraph(summary.imported_from)


def _speed_of(summary: StudySummary) -> Iterator[Section]:
    """Of one model."""
    labels = Labels.of(summary)
    if load := load_curve_figures(summary, labels):
        said = "The same shape under rising load: what is gained in throughput costs latency."
        yield _charts(ranked_section_title("Latency against throughput", summary), said, load)
    yield from _trade_offs(summary, labels)
    for ranking in summary.rankings:
        yield workload_section(summary, ranking)


def _trade_offs(summary: StudySummary, labels: Labels) -> Iterator[Section]:
    """Of the workloads after the first, whose figure stands above."""
    figures = [trade_figure(summary, ranking, labels) for ranking in summary.rankings[1:]]
    if drawn := [figure for figure in figures if figure]:
        yield _charts(
            ranked_section_title("Speed against quality or memory", summary), TRADE, drawn
        )


def _charts(title: Phrase, said: str, figures: Sequence[Figure]) -> Section:
    return Section(title, (paragraph(said), *(Chart(figure) for figure in figures)))


def _facts(lock: Lock, *, was_running: bool) -> Iterator[tuple[str, str]]:
    """On what, and when. Of a server that was running already this machine sent the requests."""
    host = lock.host
    machine = [host.cpu_model, f"{host.cores} cores" if host.cores else None]
    machine += [show_bytes(host.memory_bytes)] if host.memory_bytes else []
    machine += [accelerator.name for accelerator in host.accelerators]
    known = ", ".join(fact for fact in machine if fact)
    rows = [
        ("Machine", f"sent from {known}" if known and was_running else known),
        ("Measured", (lock.created_at or "")[:10]),
        ("Version", f"bitbench {lock.bitbench}" if lock.bitbench else ""),
    ]
    yield from ((label, value) for label, value in rows if value)
