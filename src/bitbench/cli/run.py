"""`bitbench run`: a study, from its file to its report."""

from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from bitbench.cli.options import (
    AllowInconclusive,
    OnDevice,
    StudyFile,
    parse_device_option,
    parse_seconds_option,
)
from bitbench.cli.outcome import end_with_outcome
from bitbench.cli.progress import RunDisplay
from bitbench.cli.terminal import Terminal
from bitbench.machine.workplace import Workplace
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Outcome
from bitbench.reports.document.words import format_count
from bitbench.running import runner
from bitbench.running.blocks import measure_block
from bitbench.running.offers import Executor, load_executor
from bitbench.study.study_file import StudySource
from bitbench.util.errors import ExitCode, UsageError


def run(
    study: StudyFile,
    *,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", metavar="DIR", help="Results folder [default: ./NAME of the study]."
        ),
    ] = None,
    device: OnDevice = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Wall time to spend, such as 10m; overrides the study's own."
        ),
    ] = None,
    key_from: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Variable whose value an endpoint may get as its API key."
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE", help="Run blocks on the nodes of ray://HEAD:PORT, or on all gpus here."
        ),
    ] = None,
    block: Annotated[
        int | None,
        typer.Option(
            "--block", min=0, metavar="K", help="Measure only this block, counted from 0."
        ),
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Copy records to s3://BUCKET/PATH after each group, and resume from there.",
        ),
    ] = None,
    allow_inconclusive: AllowInconclusive = False,
) -> None:
    """Run a study, or resume an interrupted one, and report.

    Trials that are recorded are not run again. With a budget, starts and rounds are planned from
    it, configs that are already decided are dropped, and the study ends early when everything is
    decided. The report is DIR/report/index.html. A study is code: `bitbench plan` shows what one
    from elsewhere would start, send and write. Exit code 1: a point misses an objective of the
    study. 2: inconclusive. 3: no point has a result.
    """
    workplace = Workplace(asked_device=parse_device_option(device))
    console = Terminal()
    results = None if into is None else StudyFolder(into)
    budget_s = None if budget is None else parse_seconds_option(budget, "--budget")
    executor = None if on is None else load_executor(on)
    if block is not None:
        executor = _make_block_executor(block, on, into)
    source = StudySource.of(study)
    with RunDisplay(console) as display:
        folder = runner.measure_study(
            source,
            results,
            display,
            workplace,
            budget_s=budget_s,
            on=executor,
            mirror=mirror,
            key_from=key_from or (),
        )
    if block is None:
        end_with_outcome(folder, workplace.home, console, allow_inconclusive=allow_inconclusive)
    _end_with_block(block, folder, console)


def _make_block_executor(block: int, on: str | None, into: Path | None) -> Executor:
    """Return the executor of one block. Raise UsageError for options that exclude it."""
    if on is not None:
        raise UsageError("--block measures on this machine; leave --on out")
    if into is None:
        raise UsageError(
            "--block needs --into: each block has a folder of its own, "
            "and `bitbench join` makes one study"
        )
    return partial(measure_block, block)


def _end_with_block(block: int, folder: StudyFolder, console: Terminal) -> NoReturn:
    """Print how many trials count, and exit. One block decides nothing, so the exit code shows
    whether it has results."""
    trials = [trial for trial in folder.trials() if trial.kind == "measured"]
    counted = sum(trial.counts for trial in trials)
    total = format_count(len(trials), "trial")
    console.print(f"block {block}: {counted} of {total} count; {folder.path} is ready to join")
    has_quality = any(record.outcome is Outcome.OK for record in folder.read_quality_records())
    raise typer.Exit(ExitCode.DONE if counted or has_quality else ExitCode.NOTHING_MEASURED)
