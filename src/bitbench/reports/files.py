"""The files of a report: a page, Markdown, and figures if the extra `figures` is installed."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bitbench.reports.charts.svg import has_svg_renderer, render_svg
from bitbench.reports.document.html import read_vega_bundle, render_html
from bitbench.reports.document.markdown import FIGURES, render_markdown
from bitbench.reports.document.model import Block, Chart, Details, Document, Figure
from bitbench.util.files import SafeFolder

REPORT = "report"  # the folder of a report, inside that of its study
PAGE = "index.html"
TEXT = "report.md"

# A kind of figure and the name of a workload, as `charts` call them. Figures of an earlier report
# are removed by these names.
_FIGURE = re.compile(r"(answer|trials|requests|load|length|memory|quality)-[\w.+-]+\.svg", re.ASCII)


def make_report_files(document: Document, study_folder: Path) -> Path:
    """Write index.html, report.md and figures/ to report/, and return the path of report.md."""
    files = SafeFolder(study_folder)
    texts = make_report_texts(document)
    files.write(f"{REPORT}/{PAGE}", render_html(document, read_vega_bundle()))
    current = frozenset(name.removeprefix(f"{FIGURES}/") for name in texts)
    files.remove_matching(f"{REPORT}/{FIGURES}", _FIGURE, current)
    for name, text in texts.items():
        files.write(f"{REPORT}/{name}", text)
    return study_folder / REPORT / TEXT


def make_report_texts(document: Document) -> dict[str, str]:
    """Return report.md, and the figures if they can be drawn, by their paths in report/."""
    can_draw = has_svg_renderer()
    texts = {}
    if can_draw:
        for figure in iter_figures(document):
            texts[f"{FIGURES}/{figure.name}.svg"] = render_svg(figure)
    texts[TEXT] = render_markdown(document, has_figures=can_draw)
    return texts


def iter_figures(document: Document) -> Iterator[Figure]:
    """Yield every figure of a document, in order."""
    yield from _iter_block_figures(document.answer)
    for section in document.sections:
        yield from _iter_block_figures(section.blocks)


def _iter_block_figures(blocks: Sequence[Block]) -> Iterator[Figure]:
    for block in blocks:
        match block:
            case Chart(figure):
                yield figure
            case Details(_, inner):
                yield from _iter_block_figures(inner)
