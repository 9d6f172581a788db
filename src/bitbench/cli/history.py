"""`bitbench history`: one metric of one cell over all studies below a folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bitbench.statistics.comparability import Side


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
    from bitbench.report.answers.history import history_document
    from bitbench.report.charts.history import history_figure
    from bitbench.report.charts.svg import svg
    from bitbench.report.document.terminal import render_whole
    from bitbench.statistics.gate import parse_metric
    from bitbench.statistics.history import find_cell
    from bitbench.statistics.history import history as made_from
    from bitbench.statistics.summarize import HEADLINES

    sides = _sides(folder)
    if not sides:
        raise StoreError(f"there is no study folder below {folder}")
    wanted = find_cell(cell, sides)
    headline = HEADLINES[sides[-1].plan.study.measure.headline]
    found = made_from(wanted, parse_metric(metric) if metric else headline, sides)
    render_whole(history_document(found), Console(highlight=False))
    if output is not None and found.points:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(svg(history_figure(found)), encoding="utf-8", newline="\n")
        typer.echo(f"figure: {output}")


def _sides(folder: Path) -> "list[Side]":
    """Oldest first. A folder whose run was stopped before it began has no plan and is left out."""
    from bitbench.cli.compare import read_side

    locks = sorted(folder.rglob("lock.json"))
    sides = [read_side(lock.parent, str(lock.parent.relative_to(folder))) for lock in locks if _is_study(lock.parent)]
    return sorted(sides, key=lambda side: (str(side.lock.get("created_at") or ""), side.name))


def _is_study(folder: Path) -> bool:
    from bitbench.store.folder import StudyFolder

    return (folder / "study.yaml").is_file() and "plan" in StudyFolder(folder).lock()
