"""The terminal output at the end of a study: its tables, advice, the path of the report, and the
meaning of the exit code."""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console

from bitbench.analysis.objectives import check_objectives
from bitbench.analysis.results.summary import StudySummary
from bitbench.cli.options import Format
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.trial import Outcome
from bitbench.reports.document.markdown import render_markdown
from bitbench.reports.document.model import Document
from bitbench.reports.document.terminal import render_in_terminal
from bitbench.reports.document.words import format_count
from bitbench.reports.write import StudyReport
from bitbench.running.progress import list_repeatable_rejections
from bitbench.util.errors import ExitCode


def write_outcome(
    folder: StudyFolder,
    home: Path,
    on_summary: Callable[[StudySummary, StudyRecords], None] = lambda *_: None,
) -> StudyReport:
    """Write the report and return it. `on_summary` is called before it is drawn, which takes
    seconds."""
    report = StudyReport(folder, home)
    on_summary(report.summary, report.records)
    report.write()
    return report


def show_outcome(report: StudyReport, console: Console, exit_code: ExitCode) -> None:
    """Print the report for a terminal, advice, its path, and the meaning of the exit code."""
    render_in_terminal(report.document, console)
    advice = find_outcome_advice(report.records)
    if advice is not None:
        console.print(advice)
    console.print(f"report: {report.page}", soft_wrap=True)
    _print_exit_code(exit_code, console)


def end_with_outcome_document(
    document: Document,
    console: Console,
    exit_code: ExitCode,
    form: Format,
    *,
    draw: Callable[[Document, Console], None] = render_in_terminal,
    says_exit_code: bool = False,
) -> NoReturn:
    """Print the document as Markdown, or draw it in the terminal, and exit. In the terminal, the
    meaning of the exit code can follow."""
    if form is Format.MARKDOWN:
        typer.echo(render_markdown(document), nl=False)
    else:
        draw(document, console)
        if says_exit_code:
            _print_exit_code(exit_code, console)
    raise typer.Exit(exit_code)


def _print_exit_code(exit_code: ExitCode, console: Console) -> None:
    if exit_code is not ExitCode.DONE:
        console.print(f"exit code {exit_code:d}: {exit_code.meaning}")


def end_with_outcome(
    folder: StudyFolder, home: Path, console: Console, *, allow_inconclusive: bool = False
) -> NoReturn:
    """Write and print the report of a study folder, and exit."""
    report = write_outcome(folder, home)
    code = report.exit_code(allow_inconclusive=allow_inconclusive)
    show_outcome(report, console, code)
    raise typer.Exit(code)


def find_outcome_advice(records: StudyRecords) -> str | None:
    """Return advice if the client was too slow for some trials, or None. A search still uses such a
    trial if it decides about the objectives."""
    is_search = records.lock.search is not None
    measured = [trial for trial in records.trials if trial.kind == "measured"]
    rejected = 0
    for trial in measured:
        if trial.outcome is not Outcome.CLIENT_BOUND:
            continue
        if is_search and check_objectives(trial, records.study.objectives) is not None:
            continue
        rejected += 1
    if not rejected:
        return None
    total = format_count(len(measured), "trial")
    finding = f"{rejected} of {total} did not count: the client had to wait for a core."
    if is_search:
        return f"{finding} Free a core, or lower the concurrency."
    # A point that was given up ends with a rejection.
    newest = {(trial.point, trial.block): trial for trial in measured}
    given_up = {trial.id for trial in newest.values() if trial.outcome is Outcome.CLIENT_BOUND}
    if given_up.isdisjoint(list_repeatable_rejections(measured)):
        return f"{finding} Nothing is missing: what they should show was measured again."
    return (
        f"{finding} Free a core, then measure again with the same command; "
        "or lower the concurrency."
    )
