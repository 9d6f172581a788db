"""`bitbench tune`: the command that searches for the best settings under limits and confirms
them."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.json_answers import end_with_json
from bitbench.cli.options import AsJson, Format


def tune(
    study: Annotated[
        Path, typer.Argument(help="A study file with a section `tune`.", metavar="STUDY")
    ],
    *,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", metavar="DIR", help="Results folder [default: ./NAME of the study]."
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Wall time to spend, such as 30m; overrides the study's own."
        ),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="markdown: a page to keep.")
    ] = Format.TEXT,
    as_json: AsJson = False,
) -> None:
    """Search for the best settings, and confirm them.

    Races all configs of a study on one workload, and drops those that cannot be the best or miss a
    limit. Then re-measures the winner against the baseline and prints the command that runs it. The
    same command resumes an interrupted search. Exit code 0: the winner meets every limit and its
    gain is confirmed. 1: no config meets the limits. 2: inconclusive, or no confirmed gain. 3: no
    config has a result.
    """
    from bitbench.cli.options import parse_seconds_option
    from bitbench.cli.outcome import end_with_outcome_document
    from bitbench.cli.progress import RunDisplay
    from bitbench.cli.terminal import Terminal
    from bitbench.features.tune import search
    from bitbench.features.tune.words import build_tuning_document
    from bitbench.machine.workplace import Workplace

    console = Terminal(stderr=as_json or form is Format.MARKDOWN)
    budget_s = None if budget is None else parse_seconds_option(budget, "--budget")
    source = search.read_search_source(study, budget_s)
    with RunDisplay(console) as display:
        tuning = search.tune(source, into, display, Workplace())
    if as_json:
        end_with_json("tune", tuning, tuning.exit_code)
    end_with_outcome_document(
        build_tuning_document(tuning), console, tuning.exit_code, form, says_exit_code=True
    )
