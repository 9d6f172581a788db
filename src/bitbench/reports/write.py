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


def report_summary(folder: StudyFolder, home: Path, records: StudyRecords | None = None) -> StudySummary:
    """From the records alone: needs neither the engines nor the model. Without the paths of this machine. `records`:
    where they were read already."""
    records = records or folder.read()
    return shorten_summary(summarize(records), path_shortener(folder, records.plan, home))


def report_document(
    folder: StudyFolder, home: Path, summary: StudySummary | None = None, records: StudyRecords | None = None
) -> "Document":
    """The report of a study, for any of the renderers."""
    from bitbench.reports.study import study_document  # brings the drawing of charts: a second to import

    records = records or folder.read()
    short = path_shortener(folder, records.plan, home)
    return study_document(
        summary or report_summary(folder, home, records),
        records.lock,
        instances=[shorten_instance(instance, short) for instance in records.instances],
    )


def write_report(
    folder: StudyFolder, home: Path, document: "Document | None" = None, drawing: Drawing | None = None
) -> Path:
    """Write report/ from the records; the path is that of report.md, and index.html and figures/ lie beside it.
    `drawing`: begun before."""
    from bitbench.reports import files
    from bitbench.reports.document.vega import vega_bundle

    document = document or report_document(folder, home)
    return files.write_report(document, vega_bundle(home), folder.path, drawing.draw if drawing else None)


def path_shortener(folder: StudyFolder, plan: Plan, home: Path) -> Callable[[str], str]:
    """For what lies in this home, in the study's folder, or in the home in which it was run."""
    paths = [variant.path for variant in plan.variants if variant.path is not None]
    homes = [up.parent for path in paths for up in path.parents if up.name in ("models", "variants")]
    return shortener([home, folder.path.resolve(), Path.home(), *homes])
