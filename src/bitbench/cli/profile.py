"""`bitbench profile MODEL`: where the time of a step goes, for one variant on one engine."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bitbench.core.asked.study import Argument, Study

SHOWN_OPERATORS = 20


def profile(
    model: Annotated[str, typer.Argument(help="a name from `bitbench model list`, or a folder", metavar="MODEL")],
    *,
    recipe: Annotated[str, typer.Option("--recipe", "-r", help="a name from `bitbench recipes`, or a file")] = "bf16",
    engine: Annotated[str, typer.Option("--engine", "-e", help="transformers or vllm")] = "transformers",
    batch: Annotated[str, typer.Option("--batch", help="Sequences at once, such as 1 or 1,8.")] = "1",
    input_tokens: Annotated[int, typer.Option("--input", min=1, help="Length of a prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option("--output", min=4, help="Length of an answer.")] = 32,
    arg: Annotated[
        list[str] | None, typer.Option("--arg", metavar="NAME=VALUE", help="An argument of the engine; again for more.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="DIR", help="Folder to fill [default: profile-ENGINE-DATE].")
    ] = None,
) -> None:
    """Show where the time of a step goes, operator by operator.

    Starts the engine, profiles prefill and decode apart after a warm-up, and groups the operators. Fills a folder like
    a study's, with a Chrome trace of each.
    """
    from rich.console import Console

    from bitbench.cli.progress import RunDisplay
    from bitbench.lab.study import Lab
    from bitbench.report.document.markdown import markdown
    from bitbench.report.document.terminal import render_whole
    from bitbench.report.sections.profile import profile_document
    from bitbench.store.folder import StudyFolder

    study = study_of(
        model,
        recipe=recipe,
        engine=engine,
        batch=batch,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        args=arg or [],
    )
    when = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    folder = StudyFolder(into or Path(f"profile-{engine}-{when}"))
    console = Console(stderr=True)
    with RunDisplay(console) as display:
        Lab().profile(study, folder, display)
    profiles = folder.profiles()
    folder.report.mkdir(exist_ok=True)
    path = folder.report / "profile.md"
    path.write_text(markdown(profile_document(profiles)), encoding="utf-8")
    render_whole(profile_document(profiles, SHOWN_OPERATORS), Console())
    console.print(f"all operators: {path}; traces: {folder.profiles_folder}", highlight=False, soft_wrap=True)


def study_of(
    model: str, *, recipe: str, engine: str, batch: str, input_tokens: int, output_tokens: int, args: list[str]
) -> "Study":
    """A study of one contender; its workload is there for its size and is not run."""
    from pydantic import ValidationError

    from bitbench.core.asked.study import EngineSetup, ProfileSpec, Study
    from bitbench.core.asked.workload import Workload
    from bitbench.ground.errors import ProfileError

    try:
        sizes = tuple(int(one) for one in batch.split(","))
        return Study(
            name=f"profile-{engine}",
            description="Operator profiles, and no trial.",
            models=(model,),
            recipes=(recipe,),
            engines=(EngineSetup(name=engine, engine=engine, args=dict(map(_argument, args))),),
            workloads=(
                Workload(
                    name="profile", concurrency=max(sizes), input_tokens=input_tokens, output_tokens=output_tokens
                ),
            ),
            profile=ProfileSpec(batch=sizes, input_tokens=input_tokens, output_tokens=output_tokens),
        )
    except ValidationError as invalid:
        error = invalid.errors()[0]
        raise ProfileError(
            f"{'.'.join(map(str, error['loc']))}: {error['msg'].removeprefix('Value error, ')}"
        ) from None
    except ValueError as error:
        raise ProfileError(f"--batch {batch}: {error}; write a number, or several such as 1,8") from None


def _argument(text: str) -> tuple[str, "Argument"]:
    """`enforce-eager=true`, as a study file would say it."""
    import yaml

    from bitbench.ground.errors import ProfileError

    name, sign, value = text.partition("=")
    read = yaml.safe_load(value) if sign else None
    if not name or not isinstance(read, (bool, int, float, str)):
        raise ProfileError(f"--arg {text}: write NAME=VALUE, such as enforce-eager=true")
    return name, read
