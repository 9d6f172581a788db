"""What the gallery's records give: Markdown pages with their figures, which are committed, and HTML pages."""

from pathlib import Path

from bitbench.api.results import format_study
from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder
from bitbench.reports.document.html import read_vega_bundle, render_html
from bitbench.reports.files import REPORT, make_report_texts
from bitbench.reports.write import StudyReport

GALLERY = Path(__file__).resolve().parents[1] / "examples" / "gallery"
KERNELS = "markdown-kernels"  # the form of the one page of `bitbench kernels`
# The form in which others publish such a study, and how the file ends that has the whole table.
PUBLISHED = {
    "recipes-by-workload": ("markdown-runs", "md"),
    "backends": ("markdown-backends", "md"),
    "speed-by-length": ("rst-by-length", "rst"),
}


def study_folders(gallery: Path) -> list[Path]:
    return sorted(lock.parent for lock in gallery.rglob("lock.json"))


def kernel_folders(gallery: Path) -> list[Path]:
    return sorted(records.parent for records in gallery.rglob("records.json"))


def study_texts(folder: Path) -> dict[Path, str]:
    """Return the Markdown page of a study, its figures, and its table in a published form, each by its path."""
    report = _report(folder)
    texts = {
        folder / REPORT / name: text for name, text in make_report_texts(report.document).items()
    }
    if folder.name in PUBLISHED:
        form, suffix = PUBLISHED[folder.name]
        texts[folder / f"{folder.name}.{suffix}"] = format_study(report, form)
    return texts


def kernel_texts(folder: Path) -> dict[Path, str]:
    """Return the page of a folder that `bitbench kernels` filled, by its path."""
    return {
        folder / "kernels.md": format_study(
            StudyReport(StudyFolder(folder), get_default_home()), KERNELS
        )
    }


def study_page(folder: Path) -> str:
    """Return the report of a study as HTML. Writes nothing."""
    return render_html(_report(folder).document, read_vega_bundle())


def _report(folder: Path) -> StudyReport:
    return StudyReport(StudyFolder.existing(folder), get_default_home())
