"""`bitbench export`: the command that sends a study's metrics to other tools."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bitbench.features.exports import tools
from bitbench.features.exports.content import list_exported_points
from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder
from bitbench.reports.write import StudyReport
from bitbench.util.errors import BitbenchError, StoreError

Target = StrEnum("Target", ["prometheus", "otel", "mlflow", "wandb"])


def export(
    folder: Annotated[Path, typer.Argument(help="A study folder.", metavar="STUDY_DIR")],
    *,
    to: Annotated[Target, typer.Option("--to", help="The tool that gets the figures.")],
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Server [default: the tool's own].")
    ] = None,
) -> None:
    """Send figures to Prometheus, MLflow and others.

    They come with their intervals and with the facts of the run. Without --url, prometheus prints
    its text format and wandb writes offline runs.
    """
    report = StudyReport(StudyFolder.existing(folder), get_default_home())
    points = list_exported_points(report.summary, report.records.lock)
    if not points:
        raise StoreError(f"{folder} has no figures to export; no trial succeeded.")
    try:
        typer.echo(getattr(tools, to.value)(points, url), nl=False)
    except ImportError as error:
        raise BitbenchError(
            f"`--to {to}` needs {error.name}; pip install 'bitbench[{to}]' adds it"
        ) from error
    except Exception as error:  # any type, since the tool's package raises it
        message = " ".join(str(error).split())[:300]
        raise BitbenchError(
            f"{to} did not take the figures ({message}); check --url and the keys"
        ) from error
