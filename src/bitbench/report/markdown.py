"""report.md: the answer first, then the tables, then what they rest on."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bitbench.core.base import Json
from bitbench.core.summary import StudySummary
from bitbench.report.answer import answer
from bitbench.report.conditions import (
    contenders_section,
    failures_section,
    host_section,
    method_section,
    refusals_section,
    reproduce_section,
    warm_up_section,
)
from bitbench.report.imported import imported_section, source
from bitbench.report.memory import memory_section
from bitbench.report.quality import quality_section, quality_sentences
from bitbench.report.sweep import FIGURE, sweep_answer, sweep_cells, sweep_section
from bitbench.report.sweep_figure import sweep_figure
from bitbench.report.text import code, escape
from bitbench.report.workloads import runs_section, workload_section

FILE_NAME = "report.md"


def write_report(summary: StudySummary, lock: Mapping[str, Json], folder: Path) -> Path:
    """Write report.md into `folder` and say where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    path.write_text(markdown(summary, lock), encoding="utf-8", newline="\n")
    figure = sweep_figure(summary) if sweep_cells(summary) else None
    if figure is not None:
        (folder / FIGURE).parent.mkdir(exist_ok=True)
        (folder / FIGURE).write_text(figure, encoding="utf-8", newline="\n")
    return path


def markdown(summary: StudySummary, lock: Mapping[str, Json]) -> str:
    """The whole report. Parts that the lock does not know are shown as unknown."""
    by_load = bool(sweep_cells(summary))
    sections = [
        _opening(
            summary,
            sweep_answer(summary, escape) if by_load else [*answer(summary, code), *quality_sentences(summary, code)],
        ),
        imported_section(summary),
        *([sweep_section(summary)] if by_load else (workload_section(summary, one) for one in summary.rankings)),
        memory_section(summary),
        quality_section(summary),
        failures_section(summary),
        refusals_section(summary),
        "" if summary.imported_from else warm_up_section(summary),
        contenders_section(summary, lock),
        host_section(lock),
        method_section(summary),
        reproduce_section(summary, lock),
        runs_section(summary),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _opening(summary: StudySummary, sentences: Sequence[str]) -> str:
    parts = [f"# {escape(summary.study.name)}"]
    if summary.study.description:
        parts.append(escape(summary.study.description))
    if summary.imported_from:
        parts.append(f"**Imported**, not measured by bitbench: {source(summary.imported_from)}.")
    parts.append("\n".join(f"- {sentence}" for sentence in sentences))
    parts.append(
        "Figures are `mean [low, high]`; contenders whose difference may be noise share a rank "
        "([how](#how-the-figures-are-made))."
    )
    return "\n\n".join(parts)
