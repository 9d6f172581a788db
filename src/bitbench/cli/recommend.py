"""`bitbench recommend`: the config to run under limits, and the reasons against the others."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.api.recommend import recommend as recommend_from_folder
from bitbench.cli.json_answers import end_with_json
from bitbench.cli.options import AsJson, Format
from bitbench.cli.outcome import end_with_outcome_document
from bitbench.cli.terminal import Terminal
from bitbench.reports.answers.recommend import build_recommendation


def recommend(
    folder: Annotated[
        Path, typer.Argument(help="A folder filled by `bitbench run`.", metavar="STUDY_DIR")
    ],
    *,
    slo: Annotated[
        str | None,
        typer.Option(
            "--slo", metavar="LIMITS", help="Limits, such as ttft_p99=300ms,tpot_p99=50ms."
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory", metavar="SIZE", help="Peak memory as run, reserved KV cache included."
        ),
    ] = None,
    max_quality_loss: Annotated[
        str | None,
        typer.Option("--max-quality-loss", metavar="SHARE", help="Rise of perplexity, such as 1%."),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", help="Answer for this workload only [default: all]."),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", help="Choose among this engine's configs [default: all]."),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="markdown: a page to keep.")
    ] = Format.TEXT,
    as_json: AsJson = False,
) -> None:
    """Recommend which variant to run on which engine.

    Prints the fastest config that meets every limit with 95 % confidence, its gain over the
    baseline, why the others were ruled out, which may be as good, and the command that serves it.
    Exit code 0: each workload has an answer. 1: for one, no config meets the limits. 2: for one,
    the trials are inconclusive. 3: no config has a result.
    """
    recommendation = recommend_from_folder(
        folder,
        slo=slo,
        max_memory=max_memory,
        max_quality_loss=max_quality_loss,
        workloads=workload or [],
        engines=engine or [],
    )
    code = recommendation.exit_code
    if as_json:
        end_with_json("recommend", recommendation, code)
    end_with_outcome_document(build_recommendation(recommendation), Terminal(), code, form)
