"""`bitbench quick`: a first answer about what a person has, a server or variants of a model, without a study file."""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer
from rich.bar import Bar
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from bitbench.analysis.results.summary import StudySummary
from bitbench.cli.load import LoadDisplay, load_trial_line
from bitbench.cli.model import Steps
from bitbench.cli.outcome import outcome_advice, write_outcome
from bitbench.cli.progress import RunDisplay
from bitbench.cli.terminal import Terminal
from bitbench.engines.environments import make_environment
from bitbench.loadgen.workers import LoadWorkers
from bitbench.measure import runner
from bitbench.measure.endpoint import (
    GROWTH,
    endpoint_workload_streams,
    find_servers,
    named_server,
    new_endpoint_folder,
    prepare_running_server,
)
from bitbench.measure.load_study import PreparedLoad
from bitbench.measure.plan import estimator_of, plan_study
from bitbench.measure.quick_study import (
    TOTAL_S,
    MissingPart,
    make_quick_field,
    make_quick_study,
    missing_for_quick_study,
    quick_study_names,
    write_quick_study,
)
from bitbench.measure.readiness import known_environment, make_model_ready
from bitbench.measure.workplace import Workplace
from bitbench.records.folder import StudyRecords
from bitbench.records.trial import LoadProgress, Outcome, TrialRecord
from bitbench.reports.answers.quick import quick_comparison_document, quick_server_document
from bitbench.reports.document.terminal import render_whole_in_terminal
from bitbench.util.errors import ExitCode, NotReadyError, UsageError
from bitbench.util.machine_faults import require_linux
from bitbench.util.units import show_about, show_bytes, show_seconds, show_significant

_URL = re.compile(r".+://.*|[^/]+:\d+(/v1)?/?")  # a GGUF file of a hub has a slash before its colon
FIGURES_WIDTH = 32  # of streams, two figures and the gaps
WIDEST_BAR = 30
_JUSTIFIED: tuple[Literal["left", "right"], ...] = ("right", "right", "left", "right", "left")


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
    yes: Annotated[bool, typer.Option("--yes", help="Create what is missing without asking.")] = False,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="DIR", help="Results folder [default: quick-DATE].")
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
        raise UsageError("one server at a time; to compare two, write a study with two endpoints (docs/endpoints.md)")
    at, console = Workplace(), Terminal()
    server, *others = [named_server(urls[0])] if urls else find_servers()
    with LoadWorkers() as client:
        prepared = prepare_running_server(server, client, place)
        with QuickDisplay(console, prepared) as display:
            folder = runner.measure_endpoint_study(prepared, display, client, at)

    def answer(summary: StudySummary, records: StudyRecords) -> None:
        console.print()
        render_whole_in_terminal(quick_server_document(summary, server.url, GROWTH, place), console)
        console.print(quick_chart(records.trials, console.width))
        if (said := outcome_advice(records)) is not None:
            console.print(said)

    reported = write_outcome(folder, at.home, answer)
    if others:
        console.print(f"not measured: {', '.join(other.url for other in others)}; use `bitbench quick URL`")
    console.print(f"report: {reported.page}", soft_wrap=True)
    raise typer.Exit(_exit_code(reported.summary))


def _compare(names: Sequence[str], place: Path, *, yes: bool) -> NoReturn:
    require_linux()
    at, console, wanted = Workplace(), Terminal(), quick_study_names(names)
    field = make_quick_field(wanted, at)
    while lacking := missing_for_quick_study(field, at):
        _agree(lacking, names, console, yes=yes)
        yes = True
        if all(need.kind == "variant" for need in lacking):
            break
        for need in lacking:
            _create(need, at, console)
        field = make_quick_field(wanted, at)  # what was downloaded may be another thing than its name promised
    source = write_quick_study(make_quick_study(field, at, place.name), place)
    high_s = estimator_of(plan_study(source, at), at).range_s()[1]
    console.print(
        f"Wrote {source.file}; measuring on {', '.join(field.engines)}, about {show_about(high_s)}", soft_wrap=True
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
    console.print(f"to go on: edit {source.file}, then `bitbench run {source.file} --into {place}`", soft_wrap=True)
    raise typer.Exit(_exit_code(reported.summary))


def _exit_code(summary: StudySummary) -> ExitCode:
    """It chose its points itself, so that none is lacking."""
    return ExitCode.DONE if summary.is_measured else ExitCode.NOTHING_MEASURED


def _agree(lacking: Sequence[MissingPart], names: Sequence[str], console: Terminal, *, yes: bool) -> None:
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
        raise NotReadyError(f"nothing was created; to create it: bitbench quick {' '.join(names)} --yes")
    if not typer.confirm("Create it?"):
        raise NotReadyError("nothing was created")


def _create(need: MissingPart, at: Workplace, console: Terminal) -> None:
    """Variants are created by the run that needs them."""
    with console.status(Text(f"{need.kind} {need.name}")) as status:
        steps = Steps(console, status, need.name)
        if need.kind == "environment":
            make_environment(known_environment(need.name), at.home, device=at.device, on_step=steps.step)
        elif need.kind == "model":
            make_model_ready(need.name, at.home, on_step=steps.step, on_progress=steps.progress)


class QuickDisplay(LoadDisplay):
    """An Observer. Without a terminal it prints a line for each trial; the chart comes at the end."""

    def __init__(self, console: Console, prepared: PreparedLoad) -> None:
        super().__init__(console, prepared)
        self._ended: list[TrialRecord] = []

    def trial_finished(self, record: TrialRecord) -> None:
        self._ended.append(record)
        if not self._console.is_terminal or record.outcome is not Outcome.OK:
            self._print(load_trial_line(record, f"{len(self._ended):>2}", None, is_narrow=self._is_narrow))

    def _panel(self, progress: LoadProgress) -> Group:
        ended = progress.succeeded + progress.failed
        now = f"{self._name}: {ended:,} of {progress.requests:,} requests, {progress.chunks_per_s:,.0f} tok/s"
        return Group(
            quick_chart(self._ended, self._console.width), Text(now, style="dim", no_wrap=True, overflow="ellipsis")
        )


def quick_chart(trials: Sequence[TrialRecord], width: int) -> Table:
    """Throughput and first token against streams: means over the trials that count, each beside its bar."""
    drawn = Table.grid(padding=(0, 1))
    for justify in _JUSTIFIED:
        drawn.add_column(justify=justify, no_wrap=True)
    counted = [trial for trial in trials if trial.outcome is Outcome.OK and trial.kind == "measured"]
    levels = sorted({endpoint_workload_streams(trial) for trial in counted})
    of_level = {
        level: [trial.metrics for trial in counted if endpoint_workload_streams(trial) == level] for level in levels
    }
    served = {level: _mean(metrics.output_throughput for metrics in found) for level, found in of_level.items()}
    first_s = {level: _mean(metrics.ttft_p50_s for metrics in found) for level, found in of_level.items()}
    bar_width = max(min((width - FIGURES_WIDTH) // 2, WIDEST_BAR), 1)

    def bar(figures: dict[int, float], level: int, color: str) -> Bar:
        return Bar(max(*figures.values(), 1e-9), 0, figures[level], width=bar_width, color=color)

    if levels:
        drawn.add_row("streams", "tok/s", "", "TTFT p50", "", style="bold")
    for level in levels:
        shown = show_significant(served[level]), show_seconds(first_s[level])
        drawn.add_row(f"{level}", shown[0], bar(served, level, "green"), shown[1], bar(first_s, level, "yellow"))
    return drawn


def _mean(figures: Iterable[float | None]) -> float:
    known = [figure for figure in figures if figure is not None]
    return sum(known) / len(known) if known else 0.0
