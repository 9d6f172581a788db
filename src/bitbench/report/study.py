"""The whole report, in order: the answer first, then figures and tables, then what they rest on.

Markdown and the page are two ways to write these sections down; what is said, and when, is decided here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bitbench.core.base import Json
from bitbench.core.found.summary import RequestSpread, StudySummary
from bitbench.core.recorded.profile import OperatorProfile
from bitbench.core.recorded.trial import InstanceRecord
from bitbench.report.charts.curves import length_figures, load_figures
from bitbench.report.charts.figure import Figure
from bitbench.report.charts.requests import request_figures
from bitbench.report.charts.trade import trade_figures
from bitbench.report.charts.trials import trials_figure
from bitbench.report.document.numbers import percent
from bitbench.report.document.text import code, escape
from bitbench.report.labels import Labels
from bitbench.report.sections.answer import remarks, verdicts
from bitbench.report.sections.conditions import (
    contenders_section,
    failures_section,
    host_section,
    method_section,
    refusals_section,
    reproduce_section,
    warm_up_section,
)
from bitbench.report.sections.crossover import crossover_section
from bitbench.report.sections.headline import best_table, lead
from bitbench.report.sections.imported import imported_section, source
from bitbench.report.sections.instances import instances_section
from bitbench.report.sections.memory import memory_section
from bitbench.report.sections.overview import overview_section
from bitbench.report.sections.profile import profile_section
from bitbench.report.sections.quality import quality_section, quality_sentences
from bitbench.report.sections.roofline import roofline_section
from bitbench.report.sections.sweep import sweep_answer, sweep_cells, sweep_section
from bitbench.report.sections.workloads import runs_section, workload_section


@dataclass(frozen=True)
class Section:
    """Markdown that begins with its heading, and the figures that belong to it. Folded: a page shows it when asked."""

    text: str
    figures: tuple[Figure, ...] = ()
    folded: bool = False


@dataclass(frozen=True)
class Records:
    """Beside the summary: what was resolved, each start, the spread of single requests, operator profiles."""

    lock: Mapping[str, Json]
    instances: Sequence[InstanceRecord] = ()
    requests: Sequence[RequestSpread] = ()
    profiles: Sequence[OperatorProfile] = ()


def document(summary: StudySummary, records: Records) -> list[Section]:
    """Parts that the records do not know are shown as unknown; a section without data is left out."""
    by_load = bool(sweep_cells(summary))
    labels = Labels.of(summary)
    figures = tuple(load_figures(summary, labels))
    sections = [
        opening(summary),
        Section(imported_section(summary)),
        *(
            [Section(sweep_section(summary), figures)]
            if by_load
            else [*_overviews(summary, labels, figures), *_workloads(summary, records, labels)]
        ),
        Section(crossover_section(summary)),
        Section(memory_section(summary)),
        Section(roofline_section(summary)),
        Section(quality_section(summary)),
        Section(profile_section(records.profiles)),
        Section(failures_section(summary)),
        Section(refusals_section(summary)),
        Section("" if summary.imported_from else warm_up_section(summary)),
        Section(contenders_section(summary, records.lock)),
        Section(instances_section(records.instances), folded=True),
        Section(host_section(records.lock)),
        Section(method_section(summary)),
        Section(reproduce_section(summary, records.lock)),
        Section(runs_section(summary), folded=True),
    ]
    return [section for section in sections if section.text]


def opening(summary: StudySummary) -> Section:
    parts = [f"# {escape(summary.study.name)}"]
    if summary.study.description:
        parts.append(escape(summary.study.description))
    if summary.imported_from:
        parts.append(f"**Imported**, not measured by bitbench: {source(summary.imported_from)}.")
    parts += _sweep_answer(summary) if sweep_cells(summary) else _answer(summary)
    return Section("\n\n".join(part for part in parts if part))


def _sweep_answer(summary: StudySummary) -> list[str]:
    return [_bullets(sweep_answer(summary, escape)), _how_to_read(summary)]


def _answer(summary: StudySummary) -> list[str]:
    """What to run; the best of each workload; what is missing, and how to read it."""
    several = len(summary.rankings) > 1
    first = lead(summary, code)
    said = [] if first is None else [f"**{first.verdict}** {' '.join(first.reasons)}"]
    said += [] if several else verdicts(summary, code)
    others = [*remarks(summary, code), *quality_sentences(summary, code)]
    if several:
        return [_bullets(said), best_table(summary, code), _bullets(others), _how_to_read(summary)]
    return [_bullets([*said, *others]), _how_to_read(summary)]


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _how_to_read(summary: StudySummary) -> str:
    return (
        f"Figures are `mean [low, high]`, a {percent(summary.study.measure.confidence)} interval; contenders whose "
        "difference may be noise share a rank. Ranks allow for all pairs that are compared, the interval of one ratio "
        "does not ([how](#how-the-figures-are-made))."
    )


def _overviews(summary: StudySummary, labels: Labels, load: tuple[Figure, ...]) -> Iterator[Section]:
    yield Section(overview_section(summary))
    if load:
        said = "The same shape under rising load: what one gains in throughput costs latency."
        yield Section(f"## Latency against throughput\n\n{said}", load)
    if trades := tuple(figure for ranking in summary.rankings for figure in trade_figures(summary, ranking, labels)):
        wanted = "memory and quality" if summary.quality else "memory"
        missing = "" if summary.quality else " Quality was not measured in this study."
        way = "Up" if summary.definitions[summary.headline].higher_is_better else "Down"
        said = (
            f"{way} and to the left is better. Filled marks are on the front: nobody else is as good in everything and "
            "surely better in something; a dashed line joins them. Bars are intervals (of memory, the lowest and the "
            f"highest start), cut off at the edge.{missing}"
        )
        yield Section(f"## Speed against {wanted}\n\n{said}", trades)
    if lengths := tuple(length_figures(summary, labels)):
        said = "Workloads that differ in nothing but the length of the prompt."
        yield Section(f"## Over the length of the input\n\n{said}", lengths)


def _workloads(summary: StudySummary, records: Records, labels: Labels) -> Iterator[Section]:
    for ranking in summary.rankings:
        trials = trials_figure(summary, ranking, labels)
        requests = request_figures(summary, ranking, records.requests, labels)
        yield Section(workload_section(summary, ranking), (*([trials] if trials else []), *requests))
