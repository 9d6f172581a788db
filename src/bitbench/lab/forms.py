"""The published forms of a folder's records, as text."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bitbench.core.found.summary import StudySummary
from bitbench.core.recorded.study import StudyRecords
from bitbench.feature import offered
from bitbench.lab.study import Lab
from bitbench.report.document.model import Document
from bitbench.report.forms.choices import Form
from bitbench.report.forms.tidy import csv_text, json_text
from bitbench.store.folder import StudyFolder


@dataclass(frozen=True)
class ReportedStudy:
    """What a format of a study is made from; the document takes a while, and not every format needs it."""

    summary: StudySummary
    records: StudyRecords
    make_document: Callable[[], Document]


def form_text(lab: Lab, path: Path, form: str) -> str:
    """One of the `formats` of what a folder holds. Raises StoreError where it holds nothing that it could show."""
    if form in (offers := offered("folder_formats")):
        return str(offers[form].load()(path))
    if form == Form.HTML:  # the page is made by the report itself, with its figures; this is a copy of it
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
