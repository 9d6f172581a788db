"""Folders that `bitbench kernels` filled."""

from pathlib import Path

from bitbench.features.kernels.bench import RECORDS_FILE, find_bench_records, read_bench_records
from bitbench.features.kernels.computing import KernelSummary
from bitbench.features.kernels.words import kernel_document
from bitbench.measure.offers import FolderReport
from bitbench.reports.document.markdown import FIGURES, markdown
from bitbench.reports.document.model import Document
from bitbench.util.errors import StoreError
from bitbench.util.files import SafeFolder

TABLE_FILE, PAGE = "kernels.md", "index.html"


def kernel_report(folder: Path) -> FolderReport:
    """Write table and chart from the records again."""
    return FolderReport(write_kernels(read_bench_records(folder / RECORDS_FILE), folder), f"page: {folder / PAGE}")


def write_kernels(summary: KernelSummary, folder: Path) -> Document:
    """index.html and kernels.md in `folder`, and the figures that they show."""
    from bitbench.features.kernels.chart import WIDTH, speedup_figure  # drawing: a second to import
    from bitbench.reports.charts.svg import can_draw_files, figure_svg
    from bitbench.reports.document.html import html_page, vega_bundle

    figure = speedup_figure(summary)
    document = kernel_document(summary, figure)
    drawings = {figure.name: figure_svg(figure, WIDTH)} if figure and can_draw_files() else {}
    files = SafeFolder(folder)
    for name, drawing in drawings.items():
        files.write(f"{FIGURES}/{name}.svg", drawing)
    files.write(PAGE, html_page(document, vega_bundle()))
    files.write(TABLE_FILE, markdown(document, has_figures=bool(drawings)))
    return document


def kernel_markdown(folder: Path) -> str:
    """Raises StoreError where the folder has no kernels."""
    return markdown(_document(folder))


def _document(folder: Path) -> Document:
    if (records := find_bench_records(folder)) is not None:
        return kernel_document(read_bench_records(records))
    raise StoreError(
        f"{folder} has no kernel records ({RECORDS_FILE}); `bitbench kernels --into {folder}` creates them"
    )
