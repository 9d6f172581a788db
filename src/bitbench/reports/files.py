"""The files of a report: a page, Markdown, and its figures where the extra `figures` draws them."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bitbench.reports.charts.svg import can_draw_files, figure_svg
from bitbench.reports.document.html import html_page, vega_bundle
from bitbench.reports.document.markdown import FIGURES, markdown
from bitbench.reports.document.model import Block, Chart, Details, Document, Figure
from bitbench.util.files import SafeFolder

REPORT = "report"  # its folder in that of the study
PAGE = "index.html"
TEXT = "report.md"

# Kind of figure and name of a workload, as `charts` call them: figures of an earlier report are removed by these names.
_FIGURE = re.compile(r"(answer|trials|requests|load|length|memory|quality)-[\w.+-]+\.svg", re.ASCII)


def make_report_files(document: Document, study_folder: Path) -> Path:
    """Write index.html, report.md and figures/ into the study's report/, and return the path of report.md."""
    files = SafeFolder(study_folder)
    texts = report_texts(document)
    files.write(f"{REPORT}/{PAGE}", html_page(document, vega_bundle()))
    shown = frozenset(name.removeprefix(f"{FIGURES}/") for name in texts)
    files.remove_matching(f"{REPORT}/{FIGURES}", _FIGURE, shown)
    for name, text in texts.items():
        files.write(f"{REPORT}/{name}", text)
    return study_folder / REPORT / TEXT


def report_texts(document: Document) -> dict[str, str]:
    """Return report.md, and its figures if the extra `figures` is installed, by their places in report/."""
    can_draw = can_draw_files()
    figures = list(report_file_figures(document)) if can_draw else []
    texts = {f"{FIGURES}/{figure.name}.svg": figure_svg(figure) for figure in figures}
    texts[TEXT] = markdown(document, has_figures=can_draw)
    return texts


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
