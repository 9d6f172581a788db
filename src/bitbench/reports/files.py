"""The files of a report: a page, Markdown, and its figures."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bitbench.reports.charts.figure import Figure
from bitbench.reports.document.html import html_chart_svg, html_page
from bitbench.reports.document.markdown import FIGURES, markdown
from bitbench.reports.document.model import Block, Chart, Details, Document
from bitbench.util.files import SafeFolder

REPORT = "report"  # its folder in that of the study
PAGE = "index.html"
TEXT = "report.md"
Draw = Callable[[Sequence[Figure]], Sequence[str]]  # the SVG of each

# Kind of figure and name of a workload, as `charts` call them: figures of an earlier report are removed by these names.
_FIGURE = re.compile(r"(answer|trials|requests|load|length|memory|quality)-[\w.+-]+\.svg", re.ASCII)


def make_report_files(document: Document, bundle: str, study_folder: Path, draw: Draw | None = None) -> Path:
    """index.html, report.md and figures/ in the study's report/; the path is that of report.md. `bundle` draws charts
    in the page, `draw` those in files."""
    files = SafeFolder(study_folder)
    figures = {figure.name: figure for figure in report_file_figures(document)}
    made = draw(list(figures.values())) if draw else [html_chart_svg(figure) for figure in figures.values()]
    drawings = dict(zip(figures, made, strict=True))
    opening = {figure.name: drawings[figure.name] for figure in _figures(document.answer)}
    files.write(f"{REPORT}/{PAGE}", html_page(document, bundle, opening))
    files.remove_matching(f"{REPORT}/{FIGURES}", _FIGURE, frozenset(f"{name}.svg" for name in drawings))
    for name, drawing in drawings.items():
        files.write(f"{REPORT}/{FIGURES}/{name}.svg", drawing)
    return files.write(f"{REPORT}/{TEXT}", markdown(document))


def report_file_figures(document: Document) -> Iterator[Figure]:
    yield from _figures(document.answer)
    for section in document.sections:
        yield from _figures(section.blocks)


def _figures(blocks: Sequence[Block]) -> Iterator[Figure]:
    for block in blocks:
        match block:
            case Chart(figure):
                yield figure
            case Details(_, inner):
                yield from _figures(inner)
