"""Writes a document down as files: a page, Markdown, and the charts that Markdown shows."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bitbench.ground.safe_files import SafeFolder
from bitbench.report.charts.figure import Figure
from bitbench.report.charts.svg import svg
from bitbench.report.document.html import page
from bitbench.report.document.markdown import FIGURES, markdown
from bitbench.report.document.model import Block, Chart, Details, Document

REPORT = "report"  # its folder in that of the study
PAGE = "index.html"
TEXT = "report.md"
# Kind of figure and name of a workload, as `charts` call them: figures of an earlier report are removed by these names.
_FIGURE = re.compile(r"(trials|requests|load|length|memory|quality)-[\w.+-]+\.svg", re.ASCII)


def write_report(document: Document, bundle: str, study_folder: Path) -> Path:
    """index.html, report.md and figures/ in the study's report/; the path is that of report.md. `bundle` draws
    charts."""
    files = SafeFolder(study_folder)
    drawn = {f"{figure.name}.svg": svg(figure) for figure in figures_of(document)}
    files.remove_matching(f"{REPORT}/{FIGURES}", _FIGURE, frozenset(drawn))
    for name, drawing in drawn.items():
        files.write(f"{REPORT}/{FIGURES}/{name}", drawing)
    files.write(f"{REPORT}/{PAGE}", page(document, bundle))
    return files.write(f"{REPORT}/{TEXT}", markdown(document))


def figures_of(document: Document) -> Iterator[Figure]:
    for section in document.sections:
        yield from _figures(section.blocks)


def _figures(blocks: Sequence[Block]) -> Iterator[Figure]:
    for block in blocks:
        match block:
            case Chart(figure):
                yield figure
            case Details(_, inner):
                yield from _figures(inner)
