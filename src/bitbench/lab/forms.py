"""The published forms of a folder's records, as text."""

from pathlib import Path

from bitbench.feature import offered
from bitbench.lab.study import Lab
from bitbench.report.document.latex import latex_tables
from bitbench.report.forms.choices import Form
from bitbench.report.forms.registry import STUDY_FORMS
from bitbench.report.forms.tidy import json_text
from bitbench.store.folder import StudyFolder


def form_text(lab: Lab, path: Path, form: str) -> str:
    """One of the `formats` of what a folder holds. Raises StoreError where it holds nothing that it could show."""
    if form in (offers := offered("folder_formats")):
        return str(offers[form].load()(path))
    if form == Form.HTML:  # the page is made by the report itself, with its figures; this is a copy of it
        return lab.report(StudyFolder.existing(path)).with_name("index.html").read_text(encoding="utf-8")
    folder = StudyFolder.existing(path)
    records = folder.read()
    summary = lab.summary(folder, records)
    if form == Form.LATEX:
        return latex_tables(lab.document(folder, summary, records))
    if form == Form.JSON:
        return json_text(summary, records.trials, lab.document(folder, summary, records))
    return STUDY_FORMS[Form(form)](summary, records)
