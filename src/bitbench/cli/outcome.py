"""The terminal when a study has ended: its tables, advice, the path of the report, and what its exit code says."""

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console

from bitbench.core.found.summary import StudySummary
from bitbench.core.recorded.study import StudyRecords
from bitbench.core.recorded.trial import Outcome
from bitbench.ground.exit_codes import ExitCode
from bitbench.lab.study import Lab
from bitbench.report.document.model import Document
from bitbench.report.document.terminal import render
from bitbench.report.document.words import plural
from bitbench.statistics.objectives import held
from bitbench.store.folder import StudyFolder


@dataclass(frozen=True)
class Reported:
    """A study folder whose report was written."""

    records: StudyRecords
    summary: StudySummary
    document: Document
    page: Path

    def exit_code(self, *, allow_inconclusive: bool = False) -> ExitCode:
        """A folder of operator profiles alone has no trial, and is no failure."""
        if self.records.profiles and not self.records.trials:
            return ExitCode.DONE
        return self.summary.exit_code(allow_inconclusive=allow_inconclusive)


def write_outcome(lab: Lab, folder: StudyFolder) -> Reported:
    records = folder.read()
    summary = lab.summary(folder, records)
    document = lab.document(folder, summary, records)
    return Reported(records, summary, document, lab.report(folder, document).with_name("index.html"))


def show_outcome(reported: Reported, console: Console, exit_code: ExitCode) -> None:
    render(reported.document, console)
    if (said := advice(reported.records)) is not None:
        console.print(said)
    console.print(f"report: {reported.page}", soft_wrap=True)
    if exit_code is not ExitCode.DONE:
        console.print(f"exit code {exit_code:d}: {exit_code.meaning}")


def end_with_outcome(lab: Lab, folder: StudyFolder, console: Console, *, allow_inconclusive: bool = False) -> NoReturn:
    reported = write_outcome(lab, folder)
    code = reported.exit_code(allow_inconclusive=allow_inconclusive)
    show_outcome(reported, console, code)
    raise typer.Exit(code)


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
