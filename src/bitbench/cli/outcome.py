"""The terminal when a study has ended: its tables, advice, and the path of the report."""

from rich.console import Console

from bitbench.core.found.summary import StudySummary
from bitbench.core.recorded.study import StudyRecords
from bitbench.core.recorded.trial import Outcome
from bitbench.lab.study import Lab
from bitbench.report.document.terminal import render
from bitbench.report.document.words import plural
from bitbench.statistics.objectives import held
from bitbench.store.folder import StudyFolder


def show_outcome(lab: Lab, folder: StudyFolder, console: Console) -> StudySummary:
    """Writes the report too."""
    records = folder.read()
    summary = lab.summary(folder, records)
    document = lab.document(folder, summary, records)
    path = lab.report(folder, document)
    render(document, console)
    if (said := advice(records)) is not None:
        console.print(said)
    console.print(f"report: {path.with_name('index.html')}", soft_wrap=True)
    return summary


def advice(records: StudyRecords) -> str | None:
    """What to change where the client was too slow; a search still uses such trials where they decide."""
    measured = [trial for trial in records.trials if trial.kind == "measured"]
    rejected = [trial for trial in measured if trial.outcome is Outcome.CLIENT_BOUND]
    if records.lock.search is not None:
        rejected = [trial for trial in rejected if held(trial, records.study.objectives) is None]
    if not rejected:
        return None
    were = "was" if len(rejected) == 1 else "were"
    return (
        f"{len(rejected)} of {plural(len(measured), 'trial')} {were} rejected because this machine was busy. "
        "Free a core, or lower the concurrency."
    )
