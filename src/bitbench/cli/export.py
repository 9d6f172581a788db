"""`bitbench export`: a study's figures in other tools."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.exports.choices import Target


def export(
    folder: Annotated[Path, typer.Argument(help="A study folder.", metavar="STUDY_DIR")],
    *,
    to: Annotated[Target, typer.Option("--to", help="The tool that gets the figures.")],
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Address of its server [default: the tool's own].")
    ] = None,
) -> None:
    """Send a study's figures to Prometheus, MLflow and others.

    They come with their intervals and with the facts of the run. Without --url, prometheus prints its text
    format and wandb writes offline runs.
    """
    from bitbench.lab.exports import export_study
    from bitbench.lab.study import Lab

    typer.echo(export_study(Lab(), folder, to, url), nl=False)
