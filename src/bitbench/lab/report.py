"""From a study folder to report/: reads what a report needs, and writes the page, Markdown and figures."""

from collections.abc import Callable
from pathlib import Path

from bitbench.core.cell import Plan
from bitbench.core.found.summary import RequestSpread, StudySummary
from bitbench.core.recorded.study import StudyRecords
from bitbench.report.paths import shorten_instance, shortener
from bitbench.statistics.requests import COLUMNS, spread_of_requests, worth_reading
from bitbench.store.folder import StudyFolder


def write_report(folder: StudyFolder, summary: StudySummary, home: Path) -> Path:
    """The path is that of report.md; index.html and figures/ lie beside it."""
    from bitbench.report.document.html import write_page
    from bitbench.report.document.markdown import write_markdown
    from bitbench.report.document.vega import vega_bundle  # these bring the drawing of figures: a second to import
    from bitbench.report.study import Records, document

    study = folder.read()
    short = path_shortener(folder, study.plan, home)
    records = Records(
        lock=study.lock.model_dump(mode="json"),
        instances=[shorten_instance(one, short) for one in study.instances],
        requests=_requests(study),
        profiles=study.profiles,
    )
    sections = document(summary, records)
    write_page(summary, sections, records, vega_bundle(home / "cache"), folder.report)
    return write_markdown(sections, folder.report)


def path_shortener(folder: StudyFolder, plan: Plan, home: Path) -> Callable[[str], str]:
    """For what lies in this home, in the study's folder, or in the home in which it was run."""
    paths = [one.path for one in plan.variants if one.path is not None]
    homes = [up.parent for path in paths for up in path.parents if up.name in ("models", "variants")]
    return shortener([home, folder.path.resolve(), Path.home(), *homes])


def _requests(of: StudyRecords) -> list[RequestSpread]:
    """Cell by cell, so that no more than the rows of one are in memory."""
    return [
        spread
        for cell, trials in worth_reading(of.trials).items()
        for spread in spread_of_requests(cell, ((trial.id, of.requests_of(trial, COLUMNS)) for trial in trials))
    ]
