"""The published forms of a folder's records, as text."""

from pathlib import Path

from bitbench.core.recorded.published import PublishedProfile
from bitbench.feature import offered
from bitbench.ground.errors import StoreError
from bitbench.lab.study import Lab
from bitbench.report.document.latex import latex_tables
from bitbench.report.document.markdown import markdown
from bitbench.report.document.model import Document
from bitbench.report.forms.choices import Form
from bitbench.report.forms.published import published_profile_document
from bitbench.report.forms.registry import STUDY_FORMS
from bitbench.report.forms.tidy import json_text
from bitbench.report.sections.profile import profile_document
from bitbench.store.folder import StudyFolder
from bitbench.store.published import read_published


def form_text(lab: Lab, path: Path, form: str) -> str:
    """One of the `formats` of what a folder holds. Raises StoreError where it holds nothing that it could show."""
    if form in (offers := offered("folder_formats")):
        return str(offers[form].load()(path))
    match form:
        case Form.PROFILE_MD:
            return markdown(_profiles(path))
        case Form.HTML:  # the page is made by the report itself, with its figures; this is a copy of it
            return lab.report(StudyFolder.existing(path)).with_name("index.html").read_text(encoding="utf-8")
    folder = StudyFolder.existing(path)
    records = folder.read()
    summary = lab.summary(folder, records)
    if form == Form.LATEX:
        return latex_tables(lab.document(folder, summary, records))
    if form == Form.JSON:
        return json_text(summary, records.trials, lab.document(folder, summary, records))
    return STUDY_FORMS[Form(form)](summary, records)


def _profiles(folder: Path) -> Document:
    if (published := read_published(folder, PublishedProfile)) is not None:
        return published_profile_document(published)
    if profiles := StudyFolder(folder).profiles():
        return profile_document(profiles)
    raise StoreError(f"{folder} has no operator profile; `bitbench profile MODEL --into {folder}` creates one")
