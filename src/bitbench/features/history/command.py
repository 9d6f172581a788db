"""`bitbench history`: one metric of one point over all studies below a folder."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.terminal import Terminal
from bitbench.features.history.history import build_history_document, collect_history
from bitbench.reports.document.terminal import render_whole_in_terminal


def history(
    folder: Annotated[
        Path, typer.Argument(help="A folder that contains study folders.", metavar="FOLDER")
    ],
    *,
    point: Annotated[
        str, typer.Option("--point", help='"variant @ engine / workload", or a unique part of it.')
    ],
    metric: Annotated[
        str | None,
        typer.Option("--metric", help="A figure [default: the newest study's primary metric]."),
    ] = None,
) -> None:
    """Show one metric over past studies and what changed."""
    render_whole_in_terminal(
        build_history_document(collect_history(folder, point, metric)), Terminal()
    )
