"""`bitbench explain`: why is this variant not faster? `bitbench profile MODEL`: where does the time of a step go?"""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
import yaml

from bitbench.cli.json_answers import end_with_json
from bitbench.cli.options import AsJson, Format, counts_option
from bitbench.cli.outcome import end_with_outcome_document
from bitbench.cli.progress import RunDisplay
from bitbench.cli.terminal import Terminal
from bitbench.features.explain.asked import ProfileSpec
from bitbench.features.explain.explanation import explain_variant
from bitbench.features.explain.profile_run import profile_alone
from bitbench.features.explain.profile_words import profile_document, write_profile_document
from bitbench.features.explain.words import explanation_document
from bitbench.measure.workplace import Workplace, default_home
from bitbench.records.folder import StudyFolder
from bitbench.reports.document.terminal import render_whole_in_terminal
from bitbench.study.study import Argument, EngineSetup, Study
from bitbench.study.study_file import checked
from bitbench.study.workload import Workload
from bitbench.util.errors import ExitCode, UsageError


def explain(
    folder: Annotated[Path, typer.Argument(help="A folder filled by `bitbench run`.", metavar="STUDY_DIR")],
    variant: Annotated[str, typer.Argument(help="A recipe, a variant, or `variant @ engine`.", metavar="VARIANT")],
    *,
    workload: Annotated[
        str | None, typer.Option("--workload", help="A workload [default: the worst one against the baseline].")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="BASELINE",
            help="What to explain it against [default: the baseline, on the same engine].",
        ),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="markdown: a page to keep.")] = Format.TEXT,
    as_json: AsJson = False,
) -> None:
    """Explain a variant's speed: expected and measured gain.

    Prints where the gap between the two comes from. The first time it also measures this machine's roofline, which
    takes some seconds, and keeps it in STUDY_DIR/roof.json.
    """
    study = StudyFolder.existing(folder)
    explanation = explain_variant(study, default_home(), variant=variant, workload=workload, against=against)
    if as_json:
        end_with_json("explain", explanation, ExitCode.DONE)
    end_with_outcome_document(
        explanation_document(explanation), Terminal(), ExitCode.DONE, form, draw=render_whole_in_terminal
    )


def profile_command_study(
    model: str,
    *,
    recipe: str = "bf16",
    engine: str = "transformers",
    batches: tuple[int, ...] = (1,),
    input_tokens: int = 128,
    output_tokens: int = 32,
    args: Mapping[str, Argument] | None = None,
) -> Study:
    """Its workload only sets the size; it is not run."""
    return checked(
        lambda: Study(
            name=f"profile-{engine}",
            description="Operator profiles, and no trial.",
            models=(model,),
            recipes=(recipe,),
            engines=(EngineSetup(name=engine, engine=engine, args=dict(args or {})),),
            workloads=(
                Workload(
                    name="profile", concurrency=max(batches), input_tokens=input_tokens, output_tokens=output_tokens
                ),
            ),
            profile=ProfileSpec(batch=batches, input_tokens=input_tokens, output_tokens=output_tokens),
        )
    )


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
    study = profile_command_study(
        model,
        recipe=recipe,
        engine=engine,
        batches=counts_option(batch, "--batch"),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        args=dict(map(profile_command_argument, arg or [])),
    )
    when = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    folder = StudyFolder(into or Path(f"profile-{engine}-{when}"))
    console = Terminal(stderr=True)
    with RunDisplay(console) as display:
        profile_alone(study, folder, display, Workplace())
    path = write_profile_document(folder)
    render_whole_in_terminal(profile_document(folder.profiles(), SHOWN_OPERATORS), Terminal())
    console.print(f"all operators: {path}; traces: {folder.profiles_folder}", soft_wrap=True)


def profile_command_argument(text: str) -> tuple[str, Argument]:
    """`enforce-eager=true`, as a study file would say it."""
    name, sign, value = text.partition("=")
    try:
        read = yaml.safe_load(value) if sign else None
    except (yaml.YAMLError, ValueError):
        read = None
    if not name or not isinstance(read, (bool, int, float, str)):
        raise UsageError(f"--arg {text}: write NAME=VALUE, such as enforce-eager=true")
    return name, read
