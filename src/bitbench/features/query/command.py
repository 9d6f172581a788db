"""`bitbench query`: SQL over all studies below a folder."""

import csv
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from bitbench.cli.terminal import Terminal
from bitbench.features.query.studies import Row, Studies
from bitbench.records.tables import TABLES
from bitbench.reports.document.data import escape_cell
from bitbench.reports.document.model import format_plain_text
from bitbench.reports.document.words import format_count, format_list, format_plain_words
from bitbench.util.errors import UsageError
from bitbench.util.units import UNKNOWN, show_significant

MOST_NAMED = 5  # studies in a warning


class QueryFormat(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def query(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="A folder [default: .], then the query.", metavar="[FOLDER] [SQL]"),
    ] = None,
    *,
    form: Annotated[
        QueryFormat, typer.Option("--format", help="Output format.")
    ] = QueryFormat.TABLE,
) -> None:
    """Query all studies below a folder in SQL.

    Without a query it lists the tables and their columns.

    bitbench query results "SELECT variant, engine, workload, avg(output_throughput) FROM trials
    WHERE kind = 'measured' AND outcome = 'ok' GROUP BY ALL"
    """
    arguments = list(words or [])
    folder = "."
    if arguments and Path(arguments[0]).is_dir():
        folder = arguments.pop(0)
    if len(arguments) > 1:
        raise UsageError(
            f"there is no folder {arguments[0]}; write the query in quotes, after the folder"
        )
    studies = Studies(Path(folder))
    if arguments:
        names, rows = studies.query(arguments[0])
        writers = {
            QueryFormat.TABLE: _print_table,
            QueryFormat.CSV: _print_csv,
            QueryFormat.JSON: _print_json,
        }
        writers[form](names, rows)
    else:
        _list_tables(studies)
    if studies.left_out:
        left_out = format_plain_text(format_list(studies.left_out, most=MOST_NAMED))
        sentence = f"{format_count(len(studies.left_out), 'study folder')} left out: {left_out}"
        Console(stderr=True, highlight=False).print(
            "warning:", sentence, style="yellow", markup=False, soft_wrap=True
        )


def _list_tables(studies: Studies) -> None:
    """Print the tables with their columns."""
    console = Terminal()
    for name, table in TABLES.items():
        rows = format_count(studies.count(name), "row")
        console.print(Text.assemble((name, "bold"), f"  {table.meaning}; {rows}"))
        grid = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for column, (_, kind) in zip(table.columns, studies.describe_columns(name), strict=True):
            grid.add_row(
                "", Text(column.name), Text(kind.lower(), style="dim"), Text(column.meaning)
            )
        console.print(grid)


def _print_table(names: Sequence[str], rows: Sequence[Row]) -> None:
    """Print the rows as a table."""

    def cell(value: object) -> Text:
        if value is None:
            return Text(UNKNOWN)
        if isinstance(value, float):
            return Text(show_significant(value, 4))
        return Text(format_plain_words(str(value)))

    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, name in enumerate(names):
        is_number = any(isinstance(row[index], (int, float)) for row in rows)
        justify: JustifyMethod = "right" if is_number else "left"
        grid.add_column(Text(format_plain_words(name)), justify=justify, overflow="fold")
    for row in rows:
        grid.add_row(*map(cell, row))
    console = Terminal()
    console.print(grid)
    console.print(format_count(len(rows), "row"), style="dim")


def _print_csv(names: Sequence[str], rows: Sequence[Row]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(escape_cell, names))
    for row in rows:
        writer.writerow(map(escape_cell, row))


def _print_json(names: Sequence[str], rows: Sequence[Row]) -> None:
    content = [dict(zip(names, row, strict=True)) for row in rows]
    typer.echo(json.dumps(content, indent=1, ensure_ascii=False, default=str))
