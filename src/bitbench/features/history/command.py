"""`bitbench history`: one metric of one point over all studies below a folder."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.terminal import Terminal
from bitbench.features.history.history import history_below, history_document, history_figure
from bitbench.reports.charts.svg import figure_svg
from bitbench.reports.document.terminal import render_whole_in_terminal
from bitbench.util.files import SafeFolder


def history(
    folder: Annotated[Path, typer.Argument(help="A folder that contains study folders.", metavar="FOLDER")],
    *,
    point: Annotated[str, typer.Option("--point", help='"variant @ engine / workload", or a unique part of it.')],
    metric: Annotated[
        str | None, typer.Option("--metric", help="A figure [default: the newest study's primary metric].")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Also write the chart (SVG) to this file.")
    ] = None,
) -> None:
    """Draw one metric over past studies and what changed."""
    found = history_below(folder, point, metric)
    render_whole_in_terminal(history_document(found), Terminal())
    if output is not None and not found.points:
        typer.echo(f"no figure: {output} is not written, as there is nothing to draw")
    elif output is not None:
        files, name = SafeFolder.around(output, folder)
        files.write(name, figure_svg(history_figure(found)))
        typer.echo(f"figure: {output}")
