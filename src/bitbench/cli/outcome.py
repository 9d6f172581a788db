"""The terminal when a study has ended: its tables, advice, the path of the report, and what its exit code says."""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console

from bitbench.analysis.objectives import objectives_hold
from bitbench.analysis.results.summary import StudySummary
from bitbench.cli.options import Format
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.trial import Outcome
from bitbench.reports.document.markdown import markdown
from bitbench.reports.document.model import Document
from bitbench.reports.document.terminal import render_in_terminal
from bitbench.reports.document.words import plural
from bitbench.reports.write import StudyReport
from bitbench.running.progress import repeatable_rejections
from bitbench.util.errors import ExitCode


def write_outcome(
    folder: StudyFolder,
    home: Path,
    on_summary: Callable[[StudySummary, StudyRecords], None] = lambda *_: None,
) -> StudyReport:
    """`on_summary` is called before the report is drawn, which takes seconds."""
    reported = StudyReport(folder, home)
    on_summary(reported.summary, reported.records)
    reported.write()
    return reported


def show_outcome(reported: StudyReport, console: Console, exit_code: ExitCode) -> None:
    render_in_terminal(reported.document, console)
    if (said := outcome_advice(reported.records)) is not None:
        console.print(said)
    console.print(f"report: {reported.page}", soft_wrap=True)
    _say(exit_code, console)


def end_with_outcome_document(
    document: Document,
    console: Console,
    exit_code: ExitCode,
    form: Format,
    *,
    draw: Callable[[Document, Console], None] = render_in_terminal,
    says_exit_code: bool = False,
) -> NoReturn:
    """A page to keep, or the terminal as `draw` fills it, and what the exit code says where that is asked for."""
    if form is Format.MARKDOWN:
        typer.echo(markdown(document), nl=False)
    else:
        draw(document, console)
        if says_exit_code:
            _say(exit_code, console)
    raise typer.Exit(exit_code)


def _say(exit_code: ExitCode, console: Console) -> None:
    if exit_code is not ExitCode.DONE:
        console.print(f"exit code {exit_code:d}: {exit_code.meaning}")


def end_with_outcome(
    folder: StudyFolder, home: Path, console: Console, *, allow_inconclusive: bool = False
) -> NoReturn:
    reported = write_outcome(folder, home)
    code = reported.exit_code(allow_inconclusive=allow_inconclusive)
    show_outcome(reported, console, code)
    raise typer.Exit(code)


def outcome_advice(records: StudyRecords) -> str | None:
    """What to change where the client was too slow; a search still uses such trials where they decide."""
    measured = [trial for trial in records.trials if trial.kind == "measured"]
    rejected = [trial for trial in measured if trial.outcome is Outcome.CLIENT_BOUND]
    if records.lock.search is not None:
        rejected = [
            trial for trial in rejected if objectives_hold(trial, records.study.objectives) is None
        ]
    if not rejected:
        return None
    late = f"{len(rejected)} of {plural(len(measured), 'trial')} did not count: the client had to wait for a core."
    if records.lock.search is not None:
        return f"{late} Free a core, or lower the concurrency."
    # A point that was given up ends with a rejection.
    newest = {(trial.point, trial.block): trial for trial in measured}
    given_up = {trial.id for trial in newest.values() if trial.outcome is Outcome.CLIENT_BOUND}
    if given_up.isdisjoint(repeatable_rejections(measured)):
        return f"{late} Nothing is missing: what they should show was measured again."
    return (
        f"{late} Free a core, then measure again with the same command; or lower the concurrency."
    )
