"""All studies below a folder as DuckDB tables. Reads only.

The SQL of a person runs on a connection that cannot open a file, load an extension or change a setting. It is handed
its tables as Arrow data: columns that a run kept beside its records (`bitbench.records.kept_tables`), the records
themselves where no kept table fits them, and request rows, of which there may be millions, read where they lie.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from bitbench.records.arrow_tables import study_arrow_table, table_schema
from bitbench.records.folder import StudyFolder
from bitbench.records.kept_tables import KEPT_TABLES, find_kept_table, hash_records, read_kept_table
from bitbench.records.tables import TABLES
from bitbench.util.errors import BitbenchError, StoreError
from bitbench.util.text import did_you_mean

try:
    import duckdb
except ImportError as missing:
    raise StoreError(
        "`bitbench query` needs DuckDB; `pip install 'bitbench[query]'` installs it"
    ) from missing

REFUSED = (
    "the query is refused: `bitbench query` only reads its own tables, and opens no other file, writes none, loads no "
    "extension and changes no setting; use SELECT, and --format to get the answer as CSV or JSON"
)
_UNKNOWN_TABLE = re.compile(r"Table with name (\w+) does not exist")
_LOCKED = "the configuration has been locked"  # DuckDB's words where a setting is to be changed
Row = tuple[Any, ...]  # what DuckDB returns for a row: as many types as its columns have


class Studies:
    """All studies below `place`. `left_out`: those whose records cannot be read, with the reason."""

    def __init__(self, place: Path) -> None:
        if not place.is_dir():
            raise StoreError(f"no folder {place}; give one that contains study folders")
        self._folders = dict(_study_folders(place.resolve()))
        self._asked = _connection_without_files()
        self._kept: dict[str, dict[str, Path]] = {name: {} for name in KEPT_TABLES}
        self._parsed: dict[str, list[pa.Table]] = {name: [] for name in KEPT_TABLES}
        self._made: set[str] = set()
        self.left_out: list[str] = []

    def query(self, sql: str) -> tuple[list[str], list[Row]]:
        """Return the names of the columns and the rows. Raises StoreError with DuckDB's own words."""
        for name in TABLES:
            if re.search(rf"\b{name}\b", sql, re.IGNORECASE):
                self._make(name)
        try:
            found = self._asked.execute(sql)
            rows = found.fetchall()
        except duckdb.Error as error:
            raise _explained(error) from error
        return [str(column[0]) for column in found.description or ()], rows

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        _, rows = self.query(f"SELECT count(*) FROM {name}")
        return int(rows[0][0])

    def described(self, name: str) -> list[tuple[str, str]]:
        """Return columns and types, as DuckDB sees them."""
        return [(str(row[0]), str(row[1])) for row in self.query(f"DESCRIBE {name}")[1]]

    def _make(self, name: str) -> None:
        """Register a table when a query names it."""
        if name in self._made:
            return
        if not self._made:
            self._find_tables()
        self._made.add(name)
        if name == "requests":
            self._make("studies")
            named = self._asked.execute("SELECT folder, study FROM studies").fetchall()
            places = {self._folders[folder]: (folder, study) for folder, study in named}
            self._asked.register(name, _request_rows(places))
        else:
            self._asked.register(name, _study_table(name, self._kept[name], self._parsed[name]))

    def _find_tables(self) -> None:
        for folder, path in self._folders.items():
            records_hash = hash_records(path) if (path / "tables").is_dir() else ""
            kept = {name: find_kept_table(path, records_hash, name) for name in KEPT_TABLES}
            try:
                records = StudyFolder(path).read(folder) if None in kept.values() else None
                for name, file in kept.items():
                    if records is not None:
                        self._parsed[name].append(study_arrow_table(records, name, folder))
                    elif file is not None:
                        self._kept[name][folder] = file
            except BitbenchError as error:
                self.left_out.append(f"{folder} ({error})")


def _study_folders(place: Path) -> Iterator[tuple[str, Path]]:
    """Yield each folder that has a lock.json, by its name below `place`; a dot for that place itself. No link is
    followed."""
    for path, folders, files in os.walk(place):
        folders.sort()
        if "lock.json" in files and (Path(path) / "lock.json").is_file():
            yield Path(path).relative_to(place).as_posix(), Path(path)


def _explained(error: duckdb.Error) -> StoreError:
    if isinstance(error, duckdb.PermissionException) or _LOCKED in str(error):
        return StoreError(REFUSED)
    if (unknown := _UNKNOWN_TABLE.search(str(error))) is not None:
        hint = did_you_mean(unknown[1], list(TABLES))
        return StoreError(
            f"there is no table {unknown[1]}; {hint}the tables are {', '.join(TABLES)}"
        )
    return StoreError(f"the query failed: {error}")


def _connection_without_files() -> duckdb.DuckDBPyConnection:
    """Open one for SQL that a person wrote, all in memory; what it may not do cannot be switched on again."""
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
        "enable_progress_bar = false",  # DuckDB draws it on stdout, where the answer goes
        # It takes request rows, whose number it does not know, for one row, and would keep them all in memory to join
        # them. So joins run as they are written: the table after JOIN is the one that is kept.
        "disabled_optimizers = 'join_order,build_side_probe_side'",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")
    return connection


class _StudyTable(ds.FileSystemDataset):  # type: ignore[misc] # pyarrow has no types
    """One table of many studies. Each scan reads the columns that it needs, file by file, before Arrow's threads are at
    work: the footers of a thousand files would take 100 MB, and files that are read below a scan block it."""

    def scanner(self, **options: Any) -> ds.Scanner:
        asked = options.get("columns")
        asked = self.schema.names if asked is None else asked or ["folder"]
        condition = str(options.get("filter"))
        names = [name for name in self.schema.names if name in asked or name in condition]
        parts = [table.select(names) for table in self.parsed]
        parts += [self._part(names, folder, file) for folder, file in self.kept.items()]
        return ds.dataset(pa.concat_tables(parts)).scanner(**options)

    def _part(self, names: list[str], folder: str, file: Path) -> pa.Table:
        own = [name for name in names if name != "folder"]
        found = read_kept_table(file, self.name, own or ["study"])
        return found.append_column(
            "folder", pa.array([folder] * found.num_rows, pa.string())
        ).select(names)


def _study_table(name: str, kept: Mapping[str, Path], parsed: Sequence[pa.Table]) -> _StudyTable:
    """`kept`: files by study folder; `parsed`: tables of further studies."""
    schema = table_schema(name)
    table = _StudyTable([], schema, ds.ParquetFileFormat(), fs.LocalFileSystem())
    table.name, table.kept, table.parsed = name, kept, [schema.empty_table(), *parsed]
    return table


class _RequestRows(ds.FileSystemDataset):  # type: ignore[misc] # pyarrow has no types
    """Read only as fast as it is asked for: with threads of its own, Arrow held 258 MB of 10⁷ rows instead of 99 MB."""

    def scanner(self, **options: Any) -> ds.Scanner:
        return super().scanner(**{**options, "use_threads": False})


def _request_rows(studies: Mapping[Path, tuple[str, str]]) -> _RequestRows:
    """`studies`: what the columns `folder` and `study` say, by the study folder."""
    parquet = ds.ParquetFileFormat()
    files = fs.LocalFileSystem()
    fragments = []
    for place, (folder, study) in studies.items():
        own = (ds.field("folder") == folder) & (ds.field("study") == study)
        for path in sorted((place / "requests").glob("*.parquet")):
            known = own & (ds.field("trial") == path.name.partition(".")[0])
            fragments.append(
                parquet.make_fragment(str(path), filesystem=files, partition_expression=known)
            )
    return _RequestRows(fragments, table_schema("requests"), parquet, files)
