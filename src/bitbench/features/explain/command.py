"""`bitbench explain`: why is this variant not faster?"""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.json_answers import end_with_json
from bitbench.cli.options import AsJson, Format
from bitbench.cli.outcome import end_with_outcome_document
from bitbench.cli.terminal import Terminal
from bitbench.features.explain.explanation import explain_variant
from bitbench.features.explain.words import build_explanation_document
from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder
from bitbench.reports.document.terminal import render_whole_in_terminal
from bitbench.util.errors import ExitCode


def explain(
    folder: Annotated[
        Path, typer.Argument(help="A folder filled by `bitbench run`.", metavar="STUDY_DIR")
    ],
    variant: Annotated[
        str, typer.Argument(help="A recipe, a variant, or `variant @ engine`.", metavar="VARIANT")
    ],
    *,
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload", help="A workload [default: the worst one against the baseline]."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="BASELINE",
            help="What to explain it against [default: the baseline, on the same engine].",
        ),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="markdown: a page to keep.")
    ] = Format.TEXT,
    as_json: AsJson = False,
) -> None:
    """Explain a variant's speed: expected and measured gain.

    Prints the causes of the gap between the two. The first run also measures this machine's
    roofline, which takes some seconds, and keeps it in STUDY_DIR/roof.json.
    """
    study = StudyFolder.existing(folder)
    explanation = explain_variant(
        study, get_default_home(), variant=variant, workload=workload, against=against
    )
    if as_json:
        end_with_json("explain", explanation, ExitCode.DONE)
    end_with_outcome_document(
        build_explanation_document(explanation),
        Terminal(),
        ExitCode.DONE,
        form,
        draw=render_whole_in_terminal,
    )
