"""`bitbench export`: a study's figures in other tools, by the code for that tool."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from bitbench.features.exports.content import ExportedStudy, ExportError, Target, exported
from bitbench.measure.workplace import default_home
from bitbench.records.folder import StudyFolder
from bitbench.reports.write import StudyReport

# Sends a study to an address (None: the tool's own default) and returns what the command prints. Raises ExportError.
Export = Callable[[ExportedStudy, str | None], str]


def exporter_for_command(target: Target) -> Export:
    """Import the code for a tool, with the tool's own package, which is no part of bitbench's installation."""
    try:
        export: Export = import_module(f"bitbench.features.exports.to_{target.value}").export
    except ImportError as error:
        raise ExportError(
            f"`--to {target.value}` needs a package that is not installed ({error}): "
            f"pip install 'bitbench[{target.value}]' adds it."
        ) from error
    return export


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
    typer.echo(_export_study(folder, default_home(), to, url), nl=False)


def _export_study(path: Path, home: Path, target: Target, url: str | None) -> str:
    """Send a study's figures, and return what the command prints. Raises ExportError, StoreError."""
    send = exporter_for_command(target)  # first: a missing package is said before a large study is read
    report = StudyReport(StudyFolder.existing(path), home)
    study = exported(report.summary, report.records.lock)
    if not study.points:
        raise ExportError(f"{path} has no figures to export; no trial succeeded.")
    return send(study, url)
