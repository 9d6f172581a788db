"""The published forms of a folder's records, as text."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bitbench.analysis.results.summary import StudySummary
from bitbench.feature import offered
from bitbench.measure.offers import folder_report
from bitbench.records.folder import StudyFolder
from bitbench.records.study_records import StudyRecords
from bitbench.reports.document.model import Document
from bitbench.reports.forms.choices import Form
from bitbench.reports.forms.tidy import csv_text, json_text
from bitbench.reports.write import report_document, report_summary, write_report


@dataclass(frozen=True)
class ReportedStudy:
    """What a format of a study is made from; the document takes a while, and not every format needs it."""

    summary: StudySummary
    records: StudyRecords
    make_document: Callable[[], Document]


def form_text(path: Path, form: str, home: Path) -> str:
    """One of the `formats` of what a folder holds. Raises StoreError where it holds nothing that it could show."""
    if form in (offers := offered("folder_formats")):
        return str(offers[form].load()(path))
    if form == Form.HTML and (found := folder_report(path)) is not None:
        from bitbench.reports.document.html import page
        from bitbench.reports.document.vega import vega_bundle

        return page(found.document, vega_bundle(home))
    if form == Form.HTML:  # the page is made by the report itself, with its figures; this is a copy of it
        return write_report(StudyFolder.existing(path), home).with_name("index.html").read_text(encoding="utf-8")
    folder = StudyFolder.existing(path)
    records = folder.read()
    summary = report_summary(folder, home, records)
    make_document = partial(report_document, folder, home, summary, records)
    return study_text(ReportedStudy(summary, records, make_document), form)


def study_text(of: ReportedStudy, form: str) -> str:
    """One of the `formats` of a study."""
    match form:
        case Form.CSV:
            return csv_text(of.summary, of.records.trials)
        case Form.JSON:
            return json_text(of.summary, of.records.trials, of.make_document())
    return str(offered("formats")[form].load()(of))
