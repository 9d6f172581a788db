"""`bitbench quick`: a first answer about a server or variants of a model, without a study file."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from bitbench.analysis.results.summary import StudySummary
from bitbench.cli.load import show_load_heading
from bitbench.cli.model import Steps
from bitbench.cli.outcome import find_outcome_advice, write_outcome
from bitbench.cli.progress import RunDisplay
from bitbench.cli.terminal import Terminal
from bitbench.endpoint.endpoint_run import (
    GROWTH,
    choose_endpoint_folder,
    choose_servers,
    is_server_url,
    measure_endpoint_study,
    prepare_running_server,
)
from bitbench.loadgen.workers import LoadWorkers
from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import make_estimator, plan_study
from bitbench.planning.quick_study import (
    TOTAL_S,
    MissingPart,
    create_missing_part,
    prepare_quick_study,
)
from bitbench.records.folder import StudyRecords
from bitbench.reports.answers.quick import build_quick_comparison, build_quick_server_report
from bitbench.reports.document.model import Document
from bitbench.reports.document.terminal import render_whole_in_terminal
from bitbench.running import runner
from bitbench.util.errors import ExitCode, NotReadyError
from bitbench.util.units import show_about, show_bytes


def quick(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[URL | MODEL RECIPE… | CHECKPOINT…]",
            help="A server; or a model and recipes; or hub ids, folders and .gguf files.",
            show_default=False,
        ),
    ] = None,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="Create what is missing without asking.")
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="DIR", help="Results folder [default: quick-DATE]."),
    ] = None,
) -> None:
    """Measure a server, or compare variants of a model.

    Without a name, or with a URL: how much load an OpenAI-compatible server can handle, within two
    minutes. Without a URL it is looked for on the usual ports of 127.0.0.1.

    With names: which variant is faster, by how much, and what it loses, in about five minutes. Says
    what is missing and what that costs, and asks once before creating it. Writes a study file to go
    on from.
    """
    names = what or []
    folder = into or choose_endpoint_folder()
    if not names or is_server_url(names[0]):
        _measure_server(names, folder)
    _compare_variants(names, folder, yes=yes)


def _measure_server(urls: Sequence[str], into: Path) -> NoReturn:
    """Measure the server at the URL, or one on this machine, and print how much load it handles."""
    workplace = Workplace()
    console = Terminal()
    server, *others = choose_servers(urls)
    with LoadWorkers() as client:
        prepared = prepare_running_server(server, client, into)
        show_load_heading(console, prepared)
        with RunDisplay(console) as display:
            folder = measure_endpoint_study(prepared, display, client, workplace)

    def answer(summary: StudySummary, records: StudyRecords) -> None:
        _show_answer(build_quick_server_report(summary, server.url, GROWTH, into), records, console)

    outcome = write_outcome(folder, workplace.home, answer)
    if others:
        console.print(
            f"not measured: {', '.join(other.url for other in others)}; use `bitbench quick URL`"
        )
    console.print(f"report: {outcome.page}", soft_wrap=True)
    raise typer.Exit(_get_exit_code(outcome.summary))


def _compare_variants(names: Sequence[str], into: Path, *, yes: bool) -> NoReturn:
    """Create what is missing after a question, and measure and compare the variants."""
    workplace = Workplace()
    console = Terminal()
    is_agreed = yes

    def confirm(missing: Sequence[MissingPart]) -> None:
        nonlocal is_agreed
        _ask_to_create(missing, names, console, yes=is_agreed)
        is_agreed = True

    def create(part: MissingPart) -> None:
        with console.status(Text(f"{part.kind} {part.name}")) as status:
            steps = Steps(console, status, part.name)
            create_missing_part(part, workplace, on_step=steps.step, on_progress=steps.progress)

    source = prepare_quick_study(names, workplace, into, confirm=confirm, create=create)
    high_s = make_estimator(plan_study(source, workplace), workplace).estimate_range_s()[1]
    engines = ", ".join(setup.engine for setup in source.study.engines)
    console.print(
        f"Wrote {source.file}; measuring on {engines}, about {show_about(high_s)}",
        soft_wrap=True,
    )
    with RunDisplay(console) as display:
        folder = runner.measure_study(source, into, display, workplace)

    def answer(summary: StudySummary, records: StudyRecords) -> None:
        _show_answer(build_quick_comparison(summary), records, console)

    outcome = write_outcome(folder, workplace.home, answer)
    console.print(f"report: {outcome.page}", soft_wrap=True)
    console.print(
        f"to go on: edit {source.file}, then `bitbench run {source.file} --into {into}`",
        soft_wrap=True,
    )
    raise typer.Exit(_get_exit_code(outcome.summary))


def _show_answer(document: Document, records: StudyRecords, console: Terminal) -> None:
    """Print the answer, and advice if the client was too slow."""
    console.print()
    render_whole_in_terminal(document, console)
    advice = find_outcome_advice(records)
    if advice is not None:
        console.print(advice)


def _get_exit_code(summary: StudySummary) -> ExitCode:
    """Return DONE with any result, since the command chose its points itself."""
    return ExitCode.DONE if summary.is_measured else ExitCode.NOTHING_MEASURED


def _ask_to_create(
    missing: Sequence[MissingPart], names: Sequence[str], console: Terminal, *, yes: bool
) -> None:
    """Show the missing parts with their costs, and ask. Raise NotReadyError for a no, or without a
    terminal to ask in."""
    table = Table("missing", "", "time", "disk", box=None, pad_edge=False, header_style="bold")
    for part in missing:
        duration = "unknown" if part.seconds is None else f"about {show_about(part.seconds)}"
        size = "unknown" if part.size_bytes is None else show_bytes(part.size_bytes)
        table.add_row(part.kind, part.name, duration, size)
    console.print(table)
    total = "Then "
    if all(part.seconds is not None and part.size_bytes is not None for part in missing):
        seconds = sum(part.seconds or 0.0 for part in missing)
        size = show_bytes(sum(part.size_bytes or 0 for part in missing))
        total = f"Together about {show_about(seconds)} and {size}, then "
    console.print(f"{total}about {show_about(TOTAL_S)} to measure.")
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise NotReadyError(
            f"nothing was created; to create it: bitbench quick {' '.join(names)} --yes"
        )
    if not typer.confirm("Create it?"):
        raise NotReadyError("nothing was created")
