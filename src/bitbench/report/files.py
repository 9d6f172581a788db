"""Writes a document down as files: a page, Markdown, and the charts that Markdown shows."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from bitbench.report.charts.figure import Figure
from bitbench.report.charts.svg import svg
from bitbench.report.document.html import page
from bitbench.report.document.markdown import FIGURES, markdown
from bitbench.report.document.model import Block, Chart, Details, Document

PAGE = "index.html"
TEXT = "report.md"


def write_report(document: Document, bundle: str, folder: Path) -> Path:
    """index.html, report.md and figures/; the path is that of report.md. `bundle` is the script of vega.py."""
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    for old in (folder / FIGURES).glob("*.svg"):
        old.unlink()
    for figure in figures_of(document):
        _write(folder / FIGURES / f"{figure.name}.svg", svg(figure))
    _write(folder / PAGE, page(document, bundle))
    return _write(folder / TEXT, markdown(document))


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


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="\n")
    return path
