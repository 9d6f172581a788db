"""Folders that hold no study: a feature knows them by a file in them."""

from dataclasses import dataclass
from pathlib import Path

from bitbench.feature import offered
from bitbench.records.folder import StudyFolder
from bitbench.reports.document.model import Document


@dataclass(frozen=True)
class FolderReport:
    """What is shown of such a folder, and the line that ends it."""

    document: Document
    ending: str


def folder_report(folder: Path) -> FolderReport | None:
    """None for a study, and for a folder that no feature knows."""
    if StudyFolder(folder).study_file.is_file():
        return None
    for marker, offer in offered("folders").items():
        if (folder / marker).is_file():
            report: FolderReport = offer.load()(folder)
            return report
    return None
