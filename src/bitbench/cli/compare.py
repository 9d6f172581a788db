"""`bitbench compare`: whether a study became slower, as an exit code: yes, no, or inconclusive."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.analysis.results.facts import Fact
from bitbench.api.compare import compare as compare_folders
from bitbench.cli.json_answers import end_with_json
from bitbench.cli.options import AllowInconclusive, AsJson, Format
from bitbench.cli.outcome import end_with_outcome_document
from bitbench.cli.terminal import Terminal
from bitbench.reports.answers.compare import build_comparison


def compare(
    baseline: Annotated[
        Path, typer.Argument(help="The study folder to compare with.", metavar="BASELINE_DIR")
    ],
    candidate: Annotated[
        Path | None, typer.Argument(help="The study folder to check.", metavar="STUDY_DIR")
    ] = None,
    *,
    variants: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--variants",
            metavar="OLD NEW",
            help="Compare two variants or configs of one folder instead.",
        ),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if", metavar="LIMIT", help='A limit, such as "output_throughput < -3%".'
        ),
    ] = None,
    allow: Annotated[
        list[Fact] | None, typer.Option("--allow", help="Ignore this mismatch.")
    ] = None,
    allow_inconclusive: AllowInconclusive = False,
    form: Annotated[
        Format, typer.Option("--format", help="markdown: for a pull request.")
    ] = Format.TEXT,
    as_json: AsJson = False,
) -> None:
    """Compare two study folders, or two variants of one.

    Config by config. Exit code 1: a limit is exceeded with confidence. 2: inconclusive; more starts
    narrow the intervals. 3: nothing to compare was measured. 65: not comparable.
    """
    comparison = compare_folders(
        baseline,
        candidate,
        variants=variants,
        fail_if=fail_if or [],
        allow=allow or [],
        allow_inconclusive=allow_inconclusive,
    )
    if as_json:
        end_with_json("compare", comparison, comparison.exit_code)
    end_with_outcome_document(build_comparison(comparison), Terminal(), comparison.exit_code, form)
