"""The tables that `bitbench query` offers in DuckDB's words, request rows that are read where they lie, and where
files are damaged."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from bitbench.records import tables
from bitbench.records.quality import QUALITY_FORMAT, QualityRecord
from bitbench.records.strict_reader import parse_record, strict_reader_schema
from bitbench.records.tables import REQUEST_COLUMNS, StudyTable, TableColumn
from bitbench.records.trial import RECORD_FORMAT, InstanceRecord, TrialRecord
from bitbench.study.base import Record
from bitbench.util.errors import StoreError

# How DuckDB spells the types of columns.
_TYPES = {
    "string": "VARCHAR",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float64": "DOUBLE",
    "bool": "BOOLEAN",
    "timestamp": "TIMESTAMP",
    "list<string>": "VARCHAR[]",
    "list<float64>": "DOUBLE[]",
    "map<string, int32>": "MAP(VARCHAR, INTEGER)",
}
# What is not simply the value at a column's path.
_SQL = {
    "host.accelerators.name": "[accelerator.name for accelerator in host.accelerators]",
    "turn": "coalesce(turn, 0)",
    "condition": "coalesce(condition, 'alone')",
}


def sql_type(column: TableColumn) -> str:
    return _TYPES[column.arrow_type]


def sql_value(column: TableColumn) -> str:
    """Return the value of a column, from the columns of its source."""
    value = _SQL.get(column.path) or ".".join(f'"{part}"' for part in column.path.split("."))
    if column.arrow_type == "timestamp":
        value = f"try_cast({value} AS TIMESTAMPTZ) AT TIME ZONE 'UTC'"
    return f'CAST({value} AS {sql_type(column)}) AS "{column.name}"'


def sql_empty_table(name: str) -> str:
    """Return no row of the right types, as SQL: what is united with it has every column."""
    empty = ", ".join(f'CAST(NULL AS {sql_type(column)}) AS "{column.name}"' for column in TABLES[name].columns)
    return f"SELECT {empty} WHERE false"


def _column(name: str, kind: str, meaning: str) -> TableColumn:
    return TableColumn(name, kind, meaning, name)


KERNELS = StudyTable(
    "one row per kernel case, shape and batch of `bitbench kernels`, or of an imported kernel table",
    "records.json",
    (
        _column("folder", "string", "the folder that `bitbench kernels` or `bitbench import` filled"),
        _column("case", "string", "name of the kernel case; of an imported table, its column"),
        _column("in_features", "int32", "rows of the weight that are read"),
        _column("out_features", "int32", "columns of the result"),
        _column("batch", "int32", "activation rows"),
        _column("labels", "map<string, int32>", "further parameters, such as main_centroids"),
        _column("weight_bytes", "int64", "as stored"),
        _column("median_s", "float64", "median over rounds; of an imported table, the time that it prints"),
        _column("rounds", "int64", "how many"),
        _column("error", "float64", "relative error against double precision"),
        _column("cause", "string", "why it was not timed"),
        _column("device", "string", "where the kernels ran: cpu or cuda"),
        _column("device_name", "string", "of a GPU"),
        _column("cpu_model", "string", "processor"),
        _column("threads", "int32", "threads that it used"),
        _column("torch", "string", "version of torch"),
        _column("isa", "string", "instruction set that a native kernel ran on"),
        _column("imported_from", "string", "tool, where bitbench did not measure it"),
    ),
)
TABLES = {**tables.TABLES, "kernels": KERNELS}


class RequestDataset(ds.FileSystemDataset):  # type: ignore[misc] # pyarrow has no types
    """Read only as fast as it is asked for: with threads of its own, Arrow held 258 MB of 10⁷ rows instead of 99 MB."""

    def scanner(self, **options: Any) -> ds.Scanner:
        return super().scanner(**{**options, "use_threads": False})


def request_table_for_query(places: Iterable[tuple[str, str, str]], filesystem: Any | None) -> RequestDataset:
    """`places`: each file with the study folder and the trial that its rows are of. `filesystem`: fsspec's, if any."""
    schema = (
        strict_reader_schema(REQUEST_COLUMNS)
        .append(pa.field("folder", pa.string()))
        .append(pa.field("trial", pa.string()))
    )
    files = fs.LocalFileSystem() if filesystem is None else fs.PyFileSystem(fs.FSSpecHandler(filesystem))
    parquet = ds.ParquetFileFormat()
    fragments = [
        parquet.make_fragment(
            path if filesystem is None else filesystem._strip_protocol(path),
            filesystem=files,
            partition_expression=(ds.field("folder") == folder) & (ds.field("trial") == trial),
        )
        for path, folder, trial in places
    ]
    return RequestDataset(fragments, schema, parquet, files)


_KINDS: dict[str, tuple[type[Record], int]] = {
    "trials": (TrialRecord, RECORD_FORMAT),
    "instances": (InstanceRecord, RECORD_FORMAT),
    "quality": (QualityRecord, QUALITY_FORMAT),
}


def damaged_query_table_lines(file: str, table: str, filesystem: Any | None) -> list[str]:
    """`FILE:NUMBER` of each complete line of a file of this table that is no record. `filesystem`: fsspec's, if any."""
    with Path(file).open("rb") if filesystem is None else filesystem.open(file, "rb") as lines:
        return [f"{file}:{number}" for number in _damaged(lines, table)]


def _damaged(lines: Iterable[bytes], table: str) -> Iterator[int]:
    kind, newest = _KINDS[table]
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):  # still being written, or torn by a kill
            continue
        try:
            parse_record(line, kind, newest, "", "")
        except StoreError:
            yield number


def damaged_query_table_rows(rows: ds.FileSystemDataset) -> str | None:
    """A sentence about the first file of request rows that cannot be read; None where all can."""
    for fragment in rows.get_fragments():
        try:
            fragment.to_table(schema=rows.schema)
        except (pa.ArrowException, OSError) as error:
            cause = str(error).strip().partition("\n")[0].rstrip(".")
            return f"{fragment.path} is damaged and cannot be read: {cause}; remove it to continue without its rows"
    return None
