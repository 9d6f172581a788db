"""`bitbench history`: one metric of one cell over all studies below a folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bitbench.core.recorded.study import StudyRecords


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

    from bitbench.ground.errors import StoreError
    from bitbench.report.sections.history import history_svg, render_history
    from bitbench.statistics.gate import parse_metric
    from bitbench.statistics.history import find_cell
    from bitbench.statistics.history import history as made_from

    sides = _studies(folder)
    if not sides:
        raise StoreError(f"there is no study folder below {folder}")
    wanted = find_cell(cell, sides)
    found = made_from(wanted, parse_metric(metric or sides[-1].study.measure.headline), sides)
    render_history(found, Console(highlight=False))
    if output is not None and found.points:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(history_svg(found), encoding="utf-8", newline="\n")
        typer.echo(f"figure: {output}")


def _studies(folder: Path) -> "list[StudyRecords]":
    """Oldest first. A folder whose run was stopped before it began is not one of them."""
    from bitbench.store.folder import StudyFolder

    found = [StudyFolder(lock.parent) for lock in sorted(folder.rglob("lock.json"))]
    studies = [one.read(str(one.path.relative_to(folder))) for one in found if one.study_file.is_file()]
    return sorted(studies, key=lambda study: (study.lock.created_at or "", study.name))
