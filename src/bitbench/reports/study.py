"""The report of a study, in order: the answer first, then figures and tables, then what they rest on."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bitbench.analysis.results.summary import StudySummary
from bitbench.feature import Offer, ReportPlace, report_parts, sparing
from bitbench.records.lock import Lock
from bitbench.records.trial import InstanceRecord
from bitbench.reports.charts.curves import length_figures, load_figures
from bitbench.reports.charts.figure import Figure
from bitbench.reports.charts.requests import request_figures
from bitbench.reports.charts.trade import trade_figures
from bitbench.reports.charts.trials import trials_figure
from bitbench.reports.document.model import Block, Chart, Document, Link, Name, Paragraph, Phrase, Section
from bitbench.reports.document.numbers import percent
from bitbench.reports.document.text import MAX_NAME
from bitbench.reports.document.words import Words, bullets, listing, names, paragraph, say, small_print, strong
from bitbench.reports.labels import Labels
from bitbench.reports.sections.answer import remarks
from bitbench.reports.sections.configs import configs_section
from bitbench.reports.sections.crossover import crossover_section
from bitbench.reports.sections.engine_metrics import engine_metrics_section
from bitbench.reports.sections.failures import failures_section, refusals_section
from bitbench.reports.sections.host import host_section
from bitbench.reports.sections.imported import imported
from bitbench.reports.sections.instances import instances_section
from bitbench.reports.sections.lead import best_table, lead
from bitbench.reports.sections.memory import memory_section
from bitbench.reports.sections.method import method_section, reproduce_section
from bitbench.reports.sections.objectives import objectives_section, objectives_verdict
from bitbench.reports.sections.overview import overview_section
from bitbench.reports.sections.precision import precision_section
from bitbench.reports.sections.quality import quality_section, quality_sentences
from bitbench.reports.sections.ranked import titled
from bitbench.reports.sections.settings import settings_section
from bitbench.reports.sections.sweep import sweep_answer, sweep_points, sweep_section
from bitbench.reports.sections.warm_up import warm_up_section
from bitbench.reports.sections.workloads import runs_section, workload_section
from bitbench.study.plan import Plan
from bitbench.util.units import show_bytes


def study_document(
    summary: StudySummary,
    lock: Lock,
    *,
    instances: Sequence[InstanceRecord] = (),
) -> Document:
    """A section without data is left out."""
    sections = [
        *_of_features(summary, ReportPlace.ANSWER),
        *_speed(summary),
        objectives_section(summary),
        precision_section(summary),
        crossover_section(summary),
        settings_section(summary),
        *_of_features(summary, ReportPlace.SPEED),
        memory_section(summary),
        *_of_features(summary, ReportPlace.MEMORY),
        engine_metrics_section(summary),
        quality_section(summary),
        *_of_features(summary, ReportPlace.QUALITY),
        *_of_features(summary, ReportPlace.CAUSES),
        failures_section(summary),
        refusals_section(summary),
        warm_up_section(summary),
        configs_section(summary, lock),
        instances_section(instances),
        host_section(lock),
        *_of_features(summary, ReportPlace.CONDITIONS),
        method_section(summary),
        reproduce_section(summary, lock),
        runs_section(summary),
    ]
    return Document(
        say(summary.study.name),
        tuple(_answer(summary, lock)),
        tuple(section for section in sections if section is not None),
        tuple(_facts(summary, lock)),
    )


def _answer(summary: StudySummary, lock: Lock) -> Iterator[Block]:
    if summary.study.description:
        yield Paragraph(say(summary.study.description), is_small_print=True)
    if untrained := random_models(lock.plan):
        yield Paragraph(
            say(
                strong("Random weights:"),
                " bitbench filled ",
                listing(names(untrained)),
                " with random numbers, in the shape of a published model. Speed, memory and kernels are those of that "
                "shape; nothing here says anything about quality.",
            )
        )
    if summary.imported_from:
        yield imported(summary.imported_from)
    if sweep_points(summary):
        yield from bullets(sweep_answer(summary))
    else:
        yield from _what_to_use(summary)
    if (verdict := objectives_verdict(summary)) is not None:
        yield Paragraph(verdict)
    ranks = (
        "; configs that share a rank are tied. Ranks are corrected for multiple comparisons; the interval of a "
        "single ratio is not"
    )
    yield small_print(
        f"Figures are mean [low, high] with a {percent(summary.study.measure.confidence)} confidence interval"
        f"{ranks if summary.rankings else ''} (",
        Link("how", "how-the-figures-are-made"),
        ").",
    )


def random_models(plan: Plan) -> list[str]:
    """Models of which only the shape is real."""
    return sorted({variant.model_name for variant in plan.variants if variant.facts.random_weights})


def _what_to_use(summary: StudySummary) -> Iterator[Block]:
    """What to use; the best of each workload; what is missing."""
    for part in summary.by_model:
        if (first := lead(part)) is not None:
            yield Paragraph(say(strong(Name(part.model), ": "), first.phrase) if part.model else first.phrase)
        if (shared := Labels.of(part, MAX_NAME).shared) not in ("", f"Model: {part.model}."):
            yield paragraph(shared)
        if part.rankings:
            yield best_table(part)
    if summary.models:
        yield paragraph("Models are not compared with each other: each has ranks and a baseline of its own.")
    yield from bullets([*remarks(summary), *quality_sentences(summary), *_sentences_of_features(summary)])


def _of_features(summary: StudySummary, place: ReportPlace) -> Iterator[Section | None]:
    for part, feature in report_parts():
        if part.place is place and part.name in summary.parts:
            with sparing(feature):
                yield Offer(feature, part.section).load()(summary.parts[part.name], summary)


def _sentences_of_features(summary: StudySummary) -> Iterator[Words]:
    for part, feature in report_parts():
        if part.sentences is not None and part.name in summary.parts:
            with sparing(feature):
                yield from Offer(feature, part.sentences).load()(summary.parts[part.name], summary)


def _speed(summary: StudySummary) -> Iterator[Section | None]:
    if sweep_points(summary):
        yield sweep_section(summary, load_figures(summary, Labels.of(summary)))
        return
    for number, part in enumerate(summary.by_model, start=1):
        yield from (
            _with_own_names(section, number) if section and part.model else section for section in _speed_of(part)
        )


def _speed_of(summary: StudySummary) -> Iterator[Section | None]:
    """Of one model."""
    labels = Labels.of(summary)
    yield overview_section(summary)
    if load := load_figures(summary, labels):
        said = "The same shape under rising load: what is gained in throughput costs latency."
        yield _charts(titled("Latency against throughput", summary), said, load)
    yield _trade_offs(summary, labels)
    if lengths := length_figures(summary, labels):
        said = "Workloads that differ only in the length of the prompt."
        yield _charts(titled("Over the length of the input", summary), said, lengths)
    for ranking in summary.rankings:
        trials = trials_figure(summary, ranking, labels)
        spreads = request_figures(summary, ranking, labels)
        yield workload_section(summary, ranking, (*([trials] if trials else []), *spreads))


def _with_own_names(section: Section, number: int) -> Section:
    """Figures of several models have the same names: those of files, and of places in a page."""
    blocks = (
        Chart(replace(block.figure, name=f"{block.figure.name}-{number}")) if isinstance(block, Chart) else block
        for block in section.blocks
    )
    return replace(section, blocks=tuple(blocks))


def _trade_offs(summary: StudySummary, labels: Labels) -> Section | None:
    figures = tuple(figure for ranking in summary.rankings for figure in trade_figures(summary, ranking, labels))
    if not figures:
        return None
    wanted = "memory and quality" if summary.quality else "memory"
    missing = "" if summary.quality else " Quality was not measured in this study."
    way = "Up" if summary.definitions[summary.primary_metric].higher_is_better else "Down"
    said = (
        f"{way} and to the left is better. Filled markers form the Pareto front: no other config is at least as "
        "good on both axes and significantly better on one; a dashed line joins them. Bars are intervals (of memory, "
        f"the lowest and the highest start), cut off at the edge.{missing}"
    )
    return _charts(titled(f"Speed against {wanted}", summary), said, figures)


def _charts(title: Phrase, said: str, figures: Sequence[Figure]) -> Section:
    return Section(title, (paragraph(said), *(Chart(figure) for figure in figures)))


def _facts(summary: StudySummary, lock: Lock) -> Iterator[tuple[str, str]]:
    """What a reader wants to know before the first figure: how much was measured, on what, when."""
    host = lock.host
    machine = [host.cpu_model, f"{host.cores} cores" if host.cores else None]
    machine += [show_bytes(host.memory_bytes)] if host.memory_bytes else []
    machine += [accelerator.name for accelerator in host.accelerators]
    rows = [
        ("Points", f"{len(summary.points):,}"),
        ("Trials", f"{sum(len(point.runs) for point in summary.points):,}"),
        ("Machine", ", ".join(fact for fact in machine if fact)),
        ("Measured", (lock.created_at or "")[:10]),
        ("bitbench", lock.bitbench or ""),
    ]
    yield from ((label, value) for label, value in rows if value)
