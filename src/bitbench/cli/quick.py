"""`bitbench quick`: a first answer about what a person has, a server or variants of a model, without a study file."""

import re
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
from bitbench.cli.outcome import outcome_advice, write_outcome
from bitbench.cli.progress import RunDisplay
from bitbench.cli.terminal import Terminal
from bitbench.endpoint.endpoint_run import (
    GROWTH,
    find_servers,
    measure_endpoint_study,
    named_server,
    new_endpoint_folder,
    prepare_running_server,
)
from bitbench.engines.environments import make_environment
from bitbench.loadgen.workers import LoadWorkers
from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import estimator_of, plan_study
from bitbench.planning.quick_study import (
    TOTAL_S,
    MissingPart,
    make_quick_field,
    make_quick_study,
    missing_for_quick_study,
    quick_study_names,
    write_quick_study,
)
from bitbench.planning.readiness import known_environment, make_model_ready
from bitbench.records.folder import StudyRecords
from bitbench.reports.answers.quick import quick_comparison_document, quick_server_document
from bitbench.reports.document.terminal import render_whole_in_terminal
from bitbench.running import runner
from bitbench.util.errors import ExitCode, NotReadyError, UsageError
from bitbench.util.machine_faults import require_native
from bitbench.util.units import show_about, show_bytes

_URL = re.compile(r".+://.*|[^/]+:\d+(/v1)?/?")  # a GGUF file of a hub has a slash before its colon


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

    Without a name, or with a URL: how much load an OpenAI-compatible server can handle, within two minutes. Without a
    URL it is looked for on the usual ports of 127.0.0.1.

    With names: which variant is faster, by how much, and what it loses, in about five minutes. Says what is missing
    and what that costs, and asks once before creating it. Writes a study file to go on from.
    """
    names, place = what or [], into or new_endpoint_folder()
    if not names or _URL.fullmatch(names[0]):
        _measure_server(names, place)
    _compare(names, place, yes=yes)


def _measure_server(urls: Sequence[str], place: Path) -> NoReturn:
    if len(urls) > 1:
        raise UsageError(
            "one server at a time; to compare two, write a study with two endpoints (docs/endpoints.md)"
        )
    at, console = Workplace(), Terminal()
    server, *others = [named_server(urls[0])] if urls else find_servers()
    with LoadWorkers() as client:
        prepared = prepare_running_server(server, client, place)
        show_load_heading(console, prepared)
        with RunDisplay(console) as display:
            folder = measure_endpoint_study(prepared, display, client, at)

    def answer(summary: StudySummary, records: StudyRecords) -> None:
        console.print()
        render_whole_in_terminal(quick_server_document(summary, server.url, GROWTH, place), console)
        if (said := outcome_advice(records)) is not None:
            console.print(said)

    reported = write_outcome(folder, at.home, answer)
    if others:
        console.print(
            f"not measured: {', '.join(other.url for other in others)}; use `bitbench quick URL`"
        )
    console.print(f"report: {reported.page}", soft_wrap=True)
    raise typer.Exit(_exit_code(reported.summary))


def _compare(names: Sequence[str], place: Path, *, yes: bool) -> NoReturn:
    require_native()
    at, console, wanted = Workplace(), Terminal(), quick_study_names(names)
    field = make_quick_field(wanted, at)
    while lacking := missing_for_quick_study(field, at):
        _agree(lacking, names, console, yes=yes)
        yes = True
        if all(need.kind == "variant" for need in lacking):
            break
        for need in lacking:
            _create(need, at, console)
        field = make_quick_field(
            wanted, at
        )  # what was downloaded may be another thing than its name promised
    source = write_quick_study(make_quick_study(field, at, place.name), place)
    high_s = estimator_of(plan_study(source, at), at).range_s()[1]
    console.print(
        f"Wrote {source.file}; measuring on {', '.join(field.engines)}, about {show_about(high_s)}",
        soft_wrap=True,
    )
    with RunDisplay(console) as display:
        folder = runner.measure_study(source, place, display, at)

    def answer(summary: StudySummary, records: StudyRecords) -> None:
        console.print()
        render_whole_in_terminal(quick_comparison_document(summary), console)
        if (said := outcome_advice(records)) is not None:
            console.print(said)

    reported = write_outcome(folder, at.home, answer)
    console.print(f"report: {reported.page}", soft_wrap=True)
    console.print(
        f"to go on: edit {source.file}, then `bitbench run {source.file} --into {place}`",
        soft_wrap=True,
    )
    raise typer.Exit(_exit_code(reported.summary))


def _exit_code(summary: StudySummary) -> ExitCode:
    """It chose its points itself, so that none is lacking."""
    return ExitCode.DONE if summary.is_measured else ExitCode.NOTHING_MEASURED


def _agree(
    lacking: Sequence[MissingPart], names: Sequence[str], console: Terminal, *, yes: bool
) -> None:
    """Show what is missing and what it costs, and ask. Raises NotReadyError without a terminal, or for a no."""
    table = Table("missing", "", "time", "disk", box=None, pad_edge=False, header_style="bold")
    for need in lacking:
        takes = "unknown" if need.seconds is None else f"about {show_about(need.seconds)}"
        size = "unknown" if need.size_bytes is None else show_bytes(need.size_bytes)
        table.add_row(need.kind, need.name, takes, size)
    console.print(table)
    seconds = sum(need.seconds or 0.0 for need in lacking)
    size = show_bytes(sum(need.size_bytes or 0 for need in lacking))
    known = all(need.seconds is not None and need.size_bytes is not None for need in lacking)
    total = f"Together about {show_about(seconds)} and {size}, then " if known else "Then "
    console.print(f"{total}about {show_about(TOTAL_S)} to measure.")
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise NotReadyError(
            f"nothing was created; to create it: bitbench quick {' '.join(names)} --yes"
        )
    if not typer.confirm("Create it?"):
        raise NotReadyError("nothing was created")


def _create(need: MissingPart, at: Workplace, console: Terminal) -> None:
    """Variants are created by the run that needs them."""
    with console.status(Text(f"{need.kind} {need.name}")) as status:
        steps = Steps(console, status, need.name)
        if need.kind == "environment":
            make_environment(
                known_environment(need.name), at.home, device=at.device, on_step=steps.step
            )
        elif need.kind == "model":
            make_model_ready(need.name, at.home, on_step=steps.step, on_progress=steps.progress)
