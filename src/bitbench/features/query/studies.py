"""All studies below a folder as read-only DuckDB tables.

The user's SQL runs on a connection that cannot open a file, load an extension or change a setting.
It gets its tables as Arrow data:

- tables that a run stored next to its records (`bitbench.records.kept_tables`),
- the records themselves, if no stored table matches them,
- request rows, of which there may be millions, straight from their files.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from bitbench.records.arrow_tables import make_arrow_table, make_table_schema
from bitbench.records.folder import StudyFolder
from bitbench.records.kept_tables import KEPT_TABLES, find_kept_table, hash_records, read_kept_table
from bitbench.records.tables import TABLES
from bitbench.util.errors import BitbenchError, StoreError
from bitbench.util.text import suggest_name

try:
    import duckdb
except ImportError as missing:
    raise StoreError(
        "`bitbench query` needs DuckDB; `pip install 'bitbench[query]'` installs it"
    ) from missing

REFUSED = (
    "the query is refused: `bitbench query` only reads its own tables, and opens no other file, "
    "writes none, loads no extension and changes no setting; "
    "use SELECT, and --format to get the answer as CSV or JSON"
)
_UNKNOWN_TABLE = re.compile(r"Table with name (\w+) does not exist")
_LOCKED = "the configuration has been locked"  # DuckDB's message on a change of settings
Row = tuple[Any, ...]  # DuckDB's row, whose types depend on the columns


class Studies:
    """All studies below a folder. `left_out` lists those with unreadable records, with the
    reason."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise StoreError(f"no folder {folder}; give one that contains study folders")
        self._folders = dict(_iter_study_folders(folder.resolve()))
        self._connection = _connect_without_files()
        self._kept: dict[str, dict[str, Path]] = {name: {} for name in KEPT_TABLES}
        self._parsed: dict[str, list[pa.Table]] = {name: [] for name in KEPT_TABLES}
        self._made: set[str] = set()
        self.left_out: list[str] = []

    def query(self, sql: str) -> tuple[list[str], list[Row]]:
        """Run a query and return its column names and its rows.

        Raise StoreError with DuckDB's message if it fails.
        """
        for name in TABLES:
            if re.search(rf"\b{name}\b", sql, re.IGNORECASE):
                self._make(name)
        try:
            result = self._connection.execute(sql)
            rows = result.fetchall()
        except duckdb.Error as error:
            raise _explain_error(error) from error
        return [str(column[0]) for column in result.description or ()], rows

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        _, rows = self.query(f"SELECT count(*) FROM {name}")
        return int(rows[0][0])

    def describe_columns(self, name: str) -> list[tuple[str, str]]:
        """Return the names and DuckDB types of a table's columns."""
        return [(str(row[0]), str(row[1])) for row in self.query(f"DESCRIBE {name}")[1]]

    def _make(self, name: str) -> None:
        """Register a table when a query uses it for the first time."""
        if name in self._made:
            return
        if not self._made:
            self._find_tables()
        self._made.add(name)
        if name == "requests":
            self._make("studies")
            rows = self._connection.execute("SELECT folder, study FROM studies").fetchall()
            studies = {self._folders[folder]: (folder, study) for folder, study in rows}
            self._connection.register(name, _make_request_rows(studies))
        else:
            table = _make_study_table(name, self._kept[name], self._parsed[name])
            self._connection.register(name, table)

    def _find_tables(self) -> None:
        """Find the stored tables of each study, or parse its records if one is missing."""
        for folder, path in self._folders.items():
            records_hash = hash_records(path) if (path / "tables").is_dir() else ""
            kept = {name: find_kept_table(path, records_hash, name) for name in KEPT_TABLES}
            try:
                records = StudyFolder(path).read(folder) if None in kept.values() else None
                for name, file in kept.items():
                    if records is not None:
                        self._parsed[name].append(make_arrow_table(records, name, folder))
                    elif file is not None:
                        self._kept[name][folder] = file
            except BitbenchError as error:
                self.left_out.append(f"{folder} ({error})")


def _iter_study_folders(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield each folder that has a lock.json, with its name relative to `root`. Links are not
    followed."""
    for path, folders, files in os.walk(root):
        folders.sort()
        if "lock.json" in files and (Path(path) / "lock.json").is_file():
            yield Path(path).relative_to(root).as_posix(), Path(path)


def _explain_error(error: duckdb.Error) -> StoreError:
    if isinstance(error, duckdb.PermissionException) or _LOCKED in str(error):
        return StoreError(REFUSED)
    unknown = _UNKNOWN_TABLE.search(str(error))
    if unknown is None:
        return StoreError(f"the query failed: {error}")
    hint = suggest_name(unknown[1], list(TABLES))
    return StoreError(f"there is no table {unknown[1]}; {hint}the tables are {', '.join(TABLES)}")


def _connect_without_files() -> duckdb.DuckDBPyConnection:
    """Return an in-memory connection for the user's SQL, which cannot lift its restrictions."""
    connection = duckdb.connect(
        config={
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "temp_directory": "",
        }
    )
    for setting in (
        "TimeZone = 'UTC'",
        "allow_community_extensions = false",
        "python_enable_replacements = false",  # no variable of this program is a table
        "enable_progress_bar = false",  # DuckDB draws it on stdout, like the answer
        # DuckDB does not know the number of request rows, assumes one, and would keep them all in
        # memory for a join. So joins run as written: the table after JOIN is in memory.
        "disabled_optimizers = 'join_order,build_side_probe_side'",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")
    return connection


class _StudyTable(ds.FileSystemDataset):  # type: ignore[misc] # pyarrow has no types
    """A table over many studies. Each scan reads the columns that it needs, file by file, before
    Arrow's threads start. The footers of a thousand files would take 100 MB, and files that are
    read during a scan block it."""

    def scanner(self, **options: Any) -> ds.Scanner:
        columns = options.get("columns")
        # An empty list is a count of rows, for which one column is enough.
        columns = self.schema.names if columns is None else columns or ["folder"]
        condition = str(options.get("filter"))
        names = [name for name in self.schema.names if name in columns or name in condition]
        parts = [table.select(names) for table in self.parsed]
        parts += [self._part(names, folder, file) for folder, file in self.kept.items()]
        return ds.dataset(pa.concat_tables(parts)).scanner(**options)

    def _part(self, names: list[str], folder: str, file: Path) -> pa.Table:
        """Return columns of one study. The column `folder` is added, since the file lacks it."""
        columns = [name for name in names if name != "folder"]
        table = read_kept_table(file, self.name, columns or ["study"])
        folders = pa.array([folder] * table.num_rows, pa.string())
        return table.append_column("folder", folders).select(names)


def _make_study_table(
    name: str, kept: Mapping[str, Path], parsed: Sequence[pa.Table]
) -> _StudyTable:
    """Return one table over all studies. `kept` has stored files by study folder, and `parsed` has
    the tables of the other studies."""
    schema = make_table_schema(name)
    table = _StudyTable([], schema, ds.ParquetFileFormat(), fs.LocalFileSystem())
    table.name = name
    table.kept = kept
    table.parsed = [schema.empty_table(), *parsed]
    return table


class _RequestRows(ds.FileSystemDataset):  # type: ignore[misc] # pyarrow has no types
    """The request rows, read only as fast as the query needs them. With its own threads, Arrow held
    258 MB of 10⁷ rows instead of 99 MB."""

    def scanner(self, **options: Any) -> ds.Scanner:
        return super().scanner(**{**options, "use_threads": False})


def _make_request_rows(studies: Mapping[Path, tuple[str, str]]) -> _RequestRows:
    """Return the request rows of all studies. `studies` maps the path of each study folder to the
    values of the columns `folder` and `study` in its rows."""
    parquet = ds.ParquetFileFormat()
    files = fs.LocalFileSystem()
    fragments = []
    for path, (folder, study) in studies.items():
        in_study = (ds.field("folder") == folder) & (ds.field("study") == study)
        for file in sorted((path / "requests").glob("*.parquet")):
            in_trial = in_study & (ds.field("trial") == file.name.partition(".")[0])
            fragments.append(
                parquet.make_fragment(str(file), filesystem=files, partition_expression=in_trial)
            )
    return _RequestRows(fragments, make_table_schema("requests"), parquet, files)
