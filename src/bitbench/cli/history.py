"""`bitbench history`: one metric of one cell over all studies below a folder."""

from pathlib import Path
from typing import Annotated

import typer


def history(
    folder: Annotated[Path, typer.Argument(help="a folder that holds study folders", metavar="FOLDER")],
    *,
    cell: Annotated[str, typer.Option("--cell", help='"variant @ engine / workload", or a part that is unique')],
    metric: Annotated[str | None, typer.Option("--metric", help="[default: the headline of the newest study]")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="write the figure (SVG) here too")
    ] = None,
) -> None:
    """Draw one metric over time, with intervals, and mark what else changed between two studies."""
    from rich.console import Console

    from bitbench.lab.history import history_below
    from bitbench.report.answers.history import history_document
    from bitbench.report.charts.history import history_figure
    from bitbench.report.charts.svg import svg
    from bitbench.report.document.terminal import render_whole

    found = history_below(folder, cell, metric)
    render_whole(history_document(found), Console(highlight=False))
    if output is not None and found.points:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(svg(history_figure(found)), encoding="utf-8", newline="\n")
        typer.echo(f"figure: {output}")
