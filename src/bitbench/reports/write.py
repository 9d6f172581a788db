"""From a study folder to its report: reads what it needs, and writes the page, Markdown and charts."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bitbench.analysis.results.summary import StudySummary
from bitbench.analysis.summarize import summarize
from bitbench.records.folder import StudyFolder
from bitbench.records.study_records import StudyRecords
from bitbench.reports.drawing import Drawing
from bitbench.reports.paths import shorten_instance, shorten_summary, shortener
from bitbench.study.plan import Plan

if TYPE_CHECKING:
    from bitbench.reports.document.model import Document


def report_summary(study: StudyRecords, folder: StudyFolder, home: Path) -> StudySummary:
    """Without the paths of this machine."""
    return shorten_summary(summarize(study), path_shortener(folder, study.plan, home))


def report_document(study: StudyRecords, folder: StudyFolder, summary: StudySummary, home: Path) -> "Document":
    from bitbench.reports.study import study_document  # brings the drawing of charts: a second to import

    short = path_shortener(folder, study.plan, home)
    return study_document(
        summary,
        study.lock,
        instances=[shorten_instance(instance, short) for instance in study.instances],
    )


def write_report(document: "Document", folder: StudyFolder, home: Path, drawing: Drawing | None = None) -> Path:
    """The path is that of report.md; index.html and figures/ lie beside it. `drawing`: begun before."""
    from bitbench.reports import files
    from bitbench.reports.document.vega import vega_bundle

    return files.write_report(document, vega_bundle(home), folder.path, drawing.draw if drawing else None)


def path_shortener(folder: StudyFolder, plan: Plan, home: Path) -> Callable[[str], str]:
    """For what lies in this home, in the study's folder, or in the home in which it was run."""
    paths = [variant.path for variant in plan.variants if variant.path is not None]
    homes = [up.parent for path in paths for up in path.parents if up.name in ("models", "variants")]
    return shortener([home, folder.path.resolve(), Path.home(), *homes])
