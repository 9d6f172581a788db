"""The published forms of a folder's records, as text."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bitbench.core.found.summary import StudySummary
from bitbench.core.recorded.published import PublishedKernels, PublishedProfile
from bitbench.core.recorded.study import StudyRecords
from bitbench.feature import offered
from bitbench.ground.errors import StoreError
from bitbench.lab.kernels import RECORDS_FILE, kernel_records, read_kernels
from bitbench.lab.study import Lab
from bitbench.report.document.markdown import markdown
from bitbench.report.document.model import Document
from bitbench.report.forms.choices import Form
from bitbench.report.forms.published import published_kernel_document, published_profile_document
from bitbench.report.forms.tidy import csv_text, json_text
from bitbench.report.sections.kernels import kernel_document
from bitbench.report.sections.profile import profile_document
from bitbench.store.folder import StudyFolder
from bitbench.store.published import read_published


@dataclass(frozen=True)
class ReportedStudy:
    """What a format of a study is made from; the document takes a while, and not every format needs it."""

    summary: StudySummary
    records: StudyRecords
    make_document: Callable[[], Document]


def form_text(lab: Lab, path: Path, form: str) -> str:
    """One of the `formats` of what a folder holds. Raises StoreError where it holds nothing that it could show."""
    match form:
        case Form.KERNEL_MD:
            return markdown(_kernels(path))
        case Form.PROFILE_MD:
            return markdown(_profiles(path))
        case Form.HTML:  # the page is made by the report itself, with its figures; this is a copy of it
            return lab.report(StudyFolder.existing(path)).with_name("index.html").read_text(encoding="utf-8")
    folder = StudyFolder.existing(path)
    records = folder.read()
    summary = lab.summary(folder, records)
    return study_text(ReportedStudy(summary, records, lambda: lab.document(folder, summary, records)), form)


def study_text(of: ReportedStudy, form: str) -> str:
    """One of the `formats` of a study."""
    match form:
        case Form.CSV:
            return csv_text(of.summary, of.records.trials)
        case Form.JSON:
            return json_text(of.summary, of.records.trials, of.make_document())
    return str(offered("formats")[form].load()(of))


def _kernels(folder: Path) -> Document:
    if (published := read_published(folder, PublishedKernels)) is not None:
        return published_kernel_document(published)
    if (records := kernel_records(folder)) is not None:
        return kernel_document(read_kernels(records))
    raise StoreError(
        f"{folder} has no kernel records ({RECORDS_FILE}); `bitbench kernels --into {folder}` creates them"
    )


def _profiles(folder: Path) -> Document:
    if (published := read_published(folder, PublishedProfile)) is not None:
        return published_profile_document(published)
    if profiles := StudyFolder(folder).profiles():
        return profile_document(profiles)
    raise StoreError(f"{folder} has no operator profile; `bitbench profile MODEL --into {folder}` creates one")
