"""`bitbench explain`: why is this variant not faster?"""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.compare import Format


def explain(
    folder: Annotated[Path, typer.Argument(help="a folder that `bitbench run` filled", metavar="STUDY_DIR")],
    variant: Annotated[str, typer.Argument(help="a recipe, a variant, or `variant @ engine`", metavar="VARIANT")],
    *,
    workload: Annotated[
        str | None, typer.Option("--workload", help="[default: where it does worst against the baseline]")
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="BASELINE", help="[default: the baseline, on the same engine]")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="markdown: a page to keep")] = Format.TEXT,
) -> None:
    """Say why a variant is as fast as it is: what was to be expected, what was measured, where the difference is.

    The first time it measures what this machine can do at most, which takes some seconds, and keeps it in
    STUDY_DIR/roof.json.
    """
    from rich.console import Console

    from bitbench.lab.explain import explain_variant
    from bitbench.lab.study import default_home
    from bitbench.report.sections.explain import explanation_markdown, render_explanation
    from bitbench.store.folder import StudyFolder

    study = StudyFolder.existing(folder)
    explanation = explain_variant(study, default_home(), variant=variant, workload=workload, against=against)
    if form is Format.MARKDOWN:
        typer.echo(explanation_markdown(explanation), nl=False)
    else:
        render_explanation(explanation, Console())
