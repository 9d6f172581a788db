"""`bitbench query`: SQL over all studies below a folder."""

import csv
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bitbench.cli.terminal import Terminal
from bitbench.features.query.studies import Row, Studies
from bitbench.features.query.tables import TABLES, sql_type
from bitbench.reports.document.data import harmless_cell
from bitbench.reports.document.model import plain_text
from bitbench.reports.document.words import listing, plain_words, plural
from bitbench.util.errors import UsageError
from bitbench.util.units import UNKNOWN, show_significant

MOST_PLACES = 5  # damaged lines that a warning names


class QueryFormat(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def query(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="A folder or a URL [default: .], then the query.", metavar="[FOLDER] [SQL]"),
    ] = None,
    *,
    form: Annotated[QueryFormat, typer.Option("--format", help="Output format.")] = QueryFormat.TABLE,
) -> None:
    """Query all studies below a folder in SQL.

    Without a query it lists the tables and their columns.

    bitbench query results "SELECT variant, engine, workload, avg(output_throughput) FROM trials WHERE kind =
    'measured' AND outcome = 'ok' GROUP BY ALL"
    """
    given = list(words or [])
    place = given.pop(0) if given and (Path(given[0]).is_dir() or "://" in given[0].split(" ")[0]) else "."
    if len(given) > 1:
        raise UsageError(f"there is no folder {given[0]}; write the query in quotes, after the folder")
    studies = Studies(place)
    if not given:
        _list_tables(studies)
        _warn_of_damage(studies.damaged)
        return
    names, rows = studies.query(given[0])
    {QueryFormat.TABLE: _table, QueryFormat.CSV: _csv, QueryFormat.JSON: _json}[form](names, rows)
    _warn_of_damage(studies.damaged)


def _warn_of_damage(places: Sequence[str]) -> None:
    if not places:
        return
    where = plain_text(listing(list(places), most=MOST_PLACES))
    sentence = f"{plural(len(places), 'damaged line')} left out: {where}; `bitbench report FOLDER` says what is wrong"
    Console(stderr=True, highlight=False).print("warning:", sentence, style="yellow", markup=False, soft_wrap=True)


def _list_tables(studies: Studies) -> None:
    console = Terminal()
    for name in TABLES:
        table, count = TABLES[name], studies.count(name)
        console.print(Text.assemble((name, "bold"), f"  {table.meaning}; {count:,} {'row' if count == 1 else 'rows'}"))
        shown = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for column in table.columns:
            shown.add_row("", Text(column.name), Text(sql_type(column).lower(), style="dim"), Text(column.meaning))
        console.print(shown)


def _table(names: Sequence[str], rows: Sequence[Row]) -> None:
    def cell(value: object) -> Text:
        if value is None:
            return Text(UNKNOWN)
        return Text(show_significant(value, 4) if isinstance(value, float) else plain_words(str(value)))

    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for place, name in enumerate(names):
        is_number = any(isinstance(row[place], (int, float)) for row in rows)
        shown.add_column(Text(plain_words(name)), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(cell(value) for value in row))
    console = Terminal()
    console.print(shown)
    console.print(f"{len(rows):,} {'row' if len(rows) == 1 else 'rows'}", style="dim")


def _csv(names: Sequence[str], rows: Sequence[Row]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(harmless_cell, names))
    writer.writerows([harmless_cell(value) for value in row] for row in rows)


def _json(names: Sequence[str], rows: Sequence[Row]) -> None:
    content = [dict(zip(names, row, strict=True)) for row in rows]
    typer.echo(json.dumps(content, indent=1, ensure_ascii=False, default=str))
