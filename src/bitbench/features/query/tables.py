"""The tables that `bitbench query` offers in DuckDB's words, request rows that are read where they lie, and where
files are damaged."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from bitbench.measure.mirror import PlaceAtUrl
from bitbench.records import tables
from bitbench.records.arrow_tables import table_schema
from bitbench.records.kept_tables import read_kept_table
from bitbench.records.quality import QUALITY_FORMAT, QualityRecord
from bitbench.records.strict_reader import parse_record, strict_reader_schema
from bitbench.records.tables import REQUEST_COLUMNS, StudyTable, TableColumn
from bitbench.records.trial import RECORD_FORMAT, InstanceRecord, TrialRecord
from bitbench.study.base import Record
from bitbench.util.errors import StoreError
from bitbench.util.files import SafeFolder

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


LARGEST_FETCH_BYTES = 2**32
_LARGE = re.compile(r"(^|/)(requests|logs|report|profiles)/|(^|/)\.|\.partial$")
_ROWS = re.compile(r"(^|/)requests/[^/]+\.parquet$")


class RequestDataset(ds.FileSystemDataset):  # type: ignore[misc] # pyarrow has no types
    """Read only as fast as it is asked for: with threads of its own, Arrow held 258 MB of 10⁷ rows instead of 99 MB."""

    def scanner(self, **options: Any) -> ds.Scanner:
        return super().scanner(**{**options, "use_threads": False})


def request_table_for_query(places: Iterable[tuple[str, str, str]], files: fs.FileSystem) -> RequestDataset:
    """`places`: each file with the study folder and the trial that its rows are of."""
    schema = (
        strict_reader_schema(REQUEST_COLUMNS)
        .append(pa.field("folder", pa.string()))
        .append(pa.field("trial", pa.string()))
    )
    parquet = ds.ParquetFileFormat()
    fragments = [
        parquet.make_fragment(
            path,
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


class _KeptDataset(ds.FileSystemDataset):  # type: ignore[misc] # pyarrow has no types
    """Kept tables of many studies. Each scan reads the columns that it needs, file by file, before Arrow's threads are
    at work: the footers of a thousand files would take 100 MB, and files that are read below a scan block it."""

    def of(self, name: str, files: Mapping[str, Path]) -> "_KeptDataset":
        self._name = name
        self._kept = files
        return self

    def scanner(self, **options: Any) -> ds.Scanner:
        asked = options.get("columns")
        asked = self.schema.names if asked is None else asked or ["folder"]
        condition = str(options.get("filter"))
        schema = pa.schema([field for field in self.schema if field.name in asked or field.name in condition])
        parts = [schema.empty_table()]
        parts += [self._part(schema, folder, file) for folder, file in self._kept.items()]
        return ds.dataset(pa.concat_tables(parts)).scanner(**options)

    def _part(self, schema: pa.Schema, folder: str, file: Path) -> pa.Table:
        names = [name for name in schema.names if name != "folder"]
        found = read_kept_table(file, self._name, names or ["study"])
        return found.append_column("folder", pa.array([folder] * found.num_rows, pa.string())).select(schema.names)


def kept_tables_for_query(name: str, files: Mapping[str, Path]) -> ds.Dataset:
    """`files`: by study folder."""
    return _KeptDataset([], table_schema(name), ds.ParquetFileFormat(), fs.LocalFileSystem()).of(name, files)


class RemoteStudies:
    """Studies at a URL. `fetched`: a folder with all of them but request rows and logs; `rows`: files of requests."""

    def __init__(self, url: str) -> None:
        place = PlaceAtUrl(url)
        self.files, self.path = place.files, place.path
        self._temporary = TemporaryDirectory(prefix="bitbench-query-")
        self.fetched = Path(self._temporary.name).resolve()
        try:
            there = place.list_files()
            small = [name for name in there if not _LARGE.search(name)]
            if sum(there[name].size for name in small) > LARGEST_FETCH_BYTES:
                raise StoreError(
                    f"{place.shown} has more than {LARGEST_FETCH_BYTES // 2**30} GiB of records; name less"
                )
            place.fetch(small, SafeFolder(self.fetched))
        except OSError as error:
            raise StoreError(f"{place.say_unreachable(error)}; check the place and the keys") from error
        self.rows = [PurePosixPath(self.path, name) for name in sorted(there) if _ROWS.search(name)]


def damaged_query_table_lines(file: str, table: str) -> list[str]:
    """`FILE:NUMBER` of each complete line of a file of this table that is no record."""
    with Path(file).open("rb") as lines:
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
