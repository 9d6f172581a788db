"""The command `bitbench mix`."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.json_answers import end_with_json
from bitbench.cli.options import AsJson, Format, parse_words_option
from bitbench.cli.outcome import end_with_outcome_document
from bitbench.cli.progress import RunDisplay
from bitbench.cli.terminal import Terminal
from bitbench.features.mix.search import mix as find_mix
from bitbench.features.mix.types import Mix, parse_mix_limits
from bitbench.features.mix.words import build_mixture_document
from bitbench.machine.workplace import Workplace
from bitbench.study.study_file import check_input


def mix(
    model: Annotated[
        str, typer.Argument(help="A name from `bitbench model list`, or a folder.", metavar="MODEL")
    ],
    *,
    limit: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUE",
            help="speed=RECIPE, bits=4.8, divergence=0.02 or =RECIPE; may be repeated.",
        ),
    ],
    types: Annotated[
        str, typer.Option(metavar="A,B,…", help="Types of GGUF tensors to choose from.")
    ] = "q4_0,q4_K,q5_K,q6_K,q8_0",
    windows: Annotated[int, typer.Option(min=4, max=5000, help="Windows of text per swap.")] = 8,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="DIR", help="Results folder [default: mix-MODEL]."),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="markdown: a page to keep.")
    ] = Format.TEXT,
    as_json: AsJson = False,
) -> None:
    """Choose a GGUF type for each group of tensors, and confirm it.

    Measures on llama.cpp how much each group of tensors diverges in each type and how fast each
    type is on this machine. Then it chooses the best mix within the limits, creates it as a
    variant, and compares it with the limit's recipe in a new study. The same command resumes an
    interrupted run. Exit code 0: every limit is met with confidence. 1: one is missed. 2:
    inconclusive.
    """
    limits = check_input(lambda: parse_mix_limits(limit), about="--limit")

    def make_request() -> Mix:
        chosen_types = parse_words_option(types)
        return Mix.model_validate(
            {"model": model, "types": chosen_types, "limits": limits, "windows": windows}
        )

    request = check_input(make_request)
    console = Terminal(stderr=as_json or form is Format.MARKDOWN)
    with RunDisplay(console) as display:
        mixture = find_mix(request, into, display, Workplace())
    if as_json:
        end_with_json("mix", mixture, mixture.exit_code)
    end_with_outcome_document(
        build_mixture_document(mixture), console, mixture.exit_code, form, says_exit_code=True
    )
