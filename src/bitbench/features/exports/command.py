"""`bitbench export`: a study's figures in other tools."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.features.exports.content import exported
from bitbench.features.exports.targets import exporter
from bitbench.features.exports.types import ExportError, Target
from bitbench.measure.workplace import default_home
from bitbench.records.folder import StudyFolder
from bitbench.reports.write import report_summary


def export(
    folder: Annotated[Path, typer.Argument(help="A study folder.", metavar="STUDY_DIR")],
    *,
    to: Annotated[Target, typer.Option("--to", help="The tool that gets the figures.")],
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Address of its server [default: the tool's own].")
    ] = None,
) -> None:
    """Send figures to Prometheus, MLflow and others.

    They come with their intervals and with the facts of the run. Without --url, prometheus prints its text
    format and wandb writes offline runs.
    """
    typer.echo(export_study(folder, default_home(), to, url), nl=False)


def export_study(path: Path, home: Path, target: Target, url: str | None) -> str:
    """Send a study's figures, and return what the command prints. Raises ExportError, StoreError."""
    send = exporter(target)  # first: a missing package is said before a large study is read
    folder = StudyFolder.existing(path)
    records = folder.read()
    study = exported(report_summary(folder, home, records), records.lock)
    if not study.points:
        raise ExportError(f"{path} has no figures to export; no trial succeeded.")
    return send(study, url)
