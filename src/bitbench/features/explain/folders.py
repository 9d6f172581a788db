"""The operator profiles of a folder as a page, whether bitbench took them or they were imported."""

from pathlib import Path

from bitbench.features.explain.profile_words import profile_document
from bitbench.features.explain.published import published_profile_document
from bitbench.records.folder import StudyFolder
from bitbench.records.published import PublishedProfile
from bitbench.records.published_files import read_published
from bitbench.reports.document.markdown import markdown
from bitbench.util.errors import StoreError
from bitbench.util.safe_files import SafeFolder


def profile_markdown(folder: Path) -> str:
    """Raises StoreError where the folder has no profile."""
    if (published := read_published(folder, PublishedProfile)) is not None:
        return markdown(published_profile_document(published))
    if profiles := StudyFolder(folder).profiles():
        return markdown(profile_document(profiles))
    raise StoreError(f"{folder} has no operator profile; `bitbench profile MODEL --into {folder}` creates one")


def write_profiles(folder: StudyFolder) -> Path:
    """report/profile.md: every operator of every profile."""
    return SafeFolder(folder.path).write("report/profile.md", markdown(profile_document(folder.profiles())))
