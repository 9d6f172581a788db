"""`bitbench profile MODEL`: where the time of a step goes, for one variant on one engine."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
import yaml

from bitbench.cli.parsing import counts
from bitbench.cli.progress import RunDisplay
from bitbench.cli.terminal import Terminal
from bitbench.features.explain.folders import write_profiles
from bitbench.features.explain.profile_run import profile_alone
from bitbench.features.explain.profile_study import profile_study
from bitbench.features.explain.profile_words import profile_document
from bitbench.measure.workplace import Workplace
from bitbench.records.folder import StudyFolder
from bitbench.reports.document.terminal import render_whole
from bitbench.study.study import Argument
from bitbench.util.errors import UsageError

SHOWN_OPERATORS = 20


def profile(
    model: Annotated[str, typer.Argument(help="A name from `bitbench model list`, or a folder.", metavar="MODEL")],
    *,
    recipe: Annotated[str, typer.Option("--recipe", "-r", help="A name from `bitbench recipes`, or a file.")] = "bf16",
    engine: Annotated[str, typer.Option("--engine", "-e", help="transformers or vllm.")] = "transformers",
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes, such as 1 or 1,8.")] = "1",
    input_tokens: Annotated[int, typer.Option("--input", min=1, help="Prompt length in tokens.")] = 128,
    output_tokens: Annotated[int, typer.Option("--output", min=4, help="Answer length in tokens.")] = 32,
    arg: Annotated[
        list[str] | None, typer.Option("--arg", metavar="NAME=VALUE", help="An engine argument; may be repeated.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="DIR", help="Results folder [default: profile-ENGINE-DATE].")
    ] = None,
) -> None:
    """Show where the time of a step goes, operator by operator.

    Starts the engine, profiles prefill and decode apart after a warm-up, and groups the operators. Fills a folder like
    a study's, with a Chrome trace of each.
    """
    study = profile_study(
        model,
        recipe=recipe,
        engine=engine,
        batches=counts(batch, "--batch"),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        args=dict(map(engine_argument, arg or [])),
    )
    when = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    folder = StudyFolder(into or Path(f"profile-{engine}-{when}"))
    console = Terminal(stderr=True)
    with RunDisplay(console) as display:
        profile_alone(study, folder, display, Workplace())
    path = write_profiles(folder)
    render_whole(profile_document(folder.profiles(), SHOWN_OPERATORS), Terminal())
    console.print(f"all operators: {path}; traces: {folder.profiles_folder}", soft_wrap=True)


def engine_argument(text: str) -> tuple[str, Argument]:
    """`enforce-eager=true`, as a study file would say it."""
    name, sign, value = text.partition("=")
    try:
        read = yaml.safe_load(value) if sign else None
    except (yaml.YAMLError, ValueError):
        read = None
    if not name or not isinstance(read, (bool, int, float, str)):
        raise UsageError(f"--arg {text}: write NAME=VALUE, such as enforce-eager=true")
    return name, read
