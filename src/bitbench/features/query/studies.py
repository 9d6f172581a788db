"""All studies below a folder or a URL as DuckDB tables. Reads only.

There are two connections. `_reader` opens files, with SQL that is written here. `_asked` runs the SQL of a person: it
cannot open a file, load an extension or change a setting, and is handed its tables as Arrow data. Request rows, of
which there may be millions, are handed over as a dataset that is read where it lies.

A table is made when a query names it: listing a million request files for a question about trials would be waste. A
line of a study that is just being written is left out until it is complete; a damaged one is left out and named.
Records are parsed only where no kept table fits them (`bitbench.records.kept_tables`). Of a place at a URL the small
files are fetched first; request rows are read there.
"""

import glob
import os
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from bitbench.features.query.tables import (
    TABLES,
    RemoteStudies,
    damaged_query_table_lines,
    damaged_query_table_rows,
    kept_tables_for_query,
    request_table_for_query,
    sql_empty_table,
    sql_value,
)
from bitbench.records.kept_tables import KEPT_TABLES, find_kept_table, hash_records
from bitbench.records.tables import StudyTable
from bitbench.records.trial import Memory, TrialMetrics
from bitbench.util.errors import StoreError

try:
    import duckdb
except ImportError as missing:
    raise StoreError("`bitbench query` needs DuckDB; `pip install 'bitbench[query]'` installs it") from missing
from bitbench.util.text import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

REFUSED = (
    "the query is refused: `bitbench query` only reads its own tables, and opens no other file, writes none, loads no "
    "extension and changes no setting; use SELECT, and --format to get the answer as CSV or JSON"
)
_UNKNOWN_TABLE = re.compile(r"Table with name (\w+) does not exist")
_LOCKED = "the configuration has been locked"  # DuckDB's words where a setting is to be changed
_KINDS_OF_FILES = (
    "lock.json",
    "trials.jsonl",
    "instances.jsonl",
    "quality.jsonl",
    "records.json",
    "requests/*.parquet",
    "quality/*.parquet",
    "published/kernels.json",
)
Row = tuple[Any, ...]  # what DuckDB returns for a row: as many types as its columns have
LARGEST_OBJECT_BYTES = 256 * 2**20  # of a lock or of kernel records; DuckDB's own limit is 16 MiB

_CONFIG = "STRUCT(variant VARCHAR, engine VARCHAR)"
_PLACE = {"id": "VARCHAR", "instance_id": "VARCHAR", "started_at": "VARCHAR", "outcome": "VARCHAR", "cause": "VARCHAR"}


def _struct(fields: dict[str, str]) -> str:
    inside = ", ".join(f'"{name}" {kind}' for name, kind in fields.items())
    return f"STRUCT({inside})"


_SOURCES: dict[str, dict[str, str]] = {  # what is read of each file, by table
    "studies": {
        "created_at": "VARCHAR",
        "bitbench": "VARCHAR",
        "host": _struct(
            {
                "cpu_model": "VARCHAR", "cores": "INTEGER", "threads": "INTEGER", "memory_bytes": "BIGINT",
                "os": "VARCHAR", "accelerators": "STRUCT(name VARCHAR)[]",
            }
        ),
        "plan": "STRUCT(study STRUCT(name VARCHAR, description VARCHAR, baseline VARCHAR, measure STRUCT(metric "
        "VARCHAR), workloads STRUCT(name VARCHAR, concurrency INTEGER, input_tokens JSON, output_tokens JSON, "
        '"unknown" VARCHAR[])[]), imported_from STRUCT(tool VARCHAR))',
    },
    "trials": {
        **_PLACE,
        "kind": "VARCHAR",
        "point": f"STRUCT(config {_CONFIG}, workload VARCHAR)",
        "block": "INTEGER",
        "index": "INTEGER",
        "turn": "INTEGER",
        "duration_s": "DOUBLE",
        "metrics": _struct(dict.fromkeys(TrialMetrics.model_fields, "DOUBLE")),
        "memory": _struct(dict.fromkeys(Memory.model_fields, "BIGINT")),
        "requests": "INTEGER",
        "failed_requests": "INTEGER",
    },
    "instances": {
        **{name: kind for name, kind in _PLACE.items() if name != "instance_id"},
        "config": _CONFIG,
        "block": "INTEGER",
        "host": "VARCHAR",
        "ready_s": "DOUBLE",
        "facts": _struct(
            {
                "engine_version": "VARCHAR", "kernels": "VARCHAR[]", "command": "VARCHAR[]",
                "prefix_caching": "BOOLEAN", "weight_bytes_loaded": "BIGINT", "kv_cache_bytes": "BIGINT",
                "kv_cache_tokens": "BIGINT", "kv_bytes_per_token": "BIGINT", "weight_load_s": "DOUBLE",
                "compile_s": "DOUBLE",
            }
        ),
        "memory": "STRUCT(resident_bytes BIGINT)",
    },
    "quality": {
        **_PLACE,
        "config": _CONFIG,
        "duration_s": "DOUBLE",
        "corpus": "STRUCT(description VARCHAR, windows_hash VARCHAR, windows INTEGER)",
        "tokens": "BIGINT",
        "condition": "VARCHAR",
        "scores_file": "VARCHAR",
    },
    "kernels": {
        "machine": "STRUCT(device VARCHAR, device_name VARCHAR, cpu_model VARCHAR, threads INTEGER, torch VARCHAR)",
        "timings": 'STRUCT("case" VARCHAR, in_features INTEGER, out_features INTEGER, batch INTEGER, labels '
        "MAP(VARCHAR, INTEGER), isa VARCHAR, weight_bytes BIGINT, error DOUBLE, cause VARCHAR, seconds DOUBLE[])[]",
    },
    "imported kernels": {
        "source": "STRUCT(tool VARCHAR)",
        "rows": "STRUCT(in_features INTEGER, out_features INTEGER, batch INTEGER, labels MAP(VARCHAR, INTEGER), "
        "seconds MAP(VARCHAR, DOUBLE))[]",
    },
}  # fmt: skip


class Studies:
    """All studies below `place`. `damaged`: the lines that the tables made so far leave out, as `FILE:NUMBER`."""

    def __init__(self, place: str) -> None:
        is_remote = "://" in place
        if not is_remote and not Path(place).is_dir():
            raise StoreError(f"no folder {place}; give one that contains study folders, or a URL such as s3://…")
        self._remote = RemoteStudies(place) if is_remote else None
        self._place = str(self._remote.fetched if self._remote else Path(place).resolve())
        self._reader = duckdb.connect()
        self._reader.execute("SET TimeZone = 'UTC'")
        self._asked = _connection_without_files()
        self._made: set[str] = set()
        self._rows: ds.FileSystemDataset | None = None  # of requests, once they were asked for
        self._files, self._hashes = _files_below(Path(self._place))
        self.damaged: list[str] = []

    def query(self, sql: str) -> tuple[list[str], list[Row]]:
        """Names of the columns and the rows. Raises StoreError with DuckDB's own words."""
        for name in TABLES:
            if re.search(rf"\b{name}\b", sql, re.IGNORECASE):
                self._make(name)
        try:
            found = self._asked.execute(sql)
            rows = found.fetchall()
        except duckdb.Error as error:
            raise self._explained(error) from error
        return [str(column[0]) for column in found.description or ()], rows

    def _explained(self, error: duckdb.Error) -> StoreError:
        if isinstance(error, duckdb.PermissionException) or _LOCKED in str(error):
            return StoreError(REFUSED)
        is_about_the_sql = isinstance(error, (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException))
        if (
            self._rows is not None
            and not is_about_the_sql
            and (damage := damaged_query_table_rows(self._rows)) is not None
        ):
            return StoreError(damage)
        if (unknown := _UNKNOWN_TABLE.search(str(error))) is not None:
            hint = did_you_mean(unknown[1], list(TABLES))
            return StoreError(f"there is no table {unknown[1]}; {hint}the tables are {', '.join(TABLES)}")
        return StoreError(f"the query failed: {error}")

    def count(self, name: str) -> int:
        """Rows of a table."""
        _, rows = self.query(f"SELECT count(*) FROM {name}")
        return int(rows[0][0])

    def described(self, name: str) -> list[tuple[str, str]]:
        """Columns and types, as DuckDB sees them."""
        self._make(name)
        return [(str(row[0]), str(row[1])) for row in self._asked.execute(f"DESCRIBE {name}").fetchall()]

    def _make(self, name: str) -> None:
        if name in self._made:
            return
        self._made.add(name)
        table = TABLES[name]
        if name not in ("studies", "kernels"):
            self._make("studies")
        try:
            if name == "requests":
                self._make_requests()
            else:
                self._hand_over(name, self._reader.sql(self._select(name, table)).to_arrow_table())
        except duckdb.Error as error:
            cause = str(error).strip().partition("\n")[0]
            raise StoreError(f"{table.files} below {self._place} cannot be read: {cause}") from error

    def _hand_over(self, name: str, content: "pa.Table") -> None:
        """What was parsed, with the kept tables of other studies."""
        if name == "studies":
            self._reader.register(name, content)  # other tables are joined with it
        if name not in KEPT_TABLES:
            self._asked.register(name, content)
            return
        found = {folder: find_kept_table(folder, hashed, name) for folder, hashed in self._hashes.items()}
        files = {self._name(folder): file for folder, file in found.items() if file is not None}
        self._asked.register(f"{name}_parsed", content)
        self._asked.register(f"{name}_kept", kept_tables_for_query(name, files))
        self._asked.execute(
            f"CREATE VIEW {name} AS SELECT * FROM {name}_kept UNION ALL BY NAME SELECT * FROM {name}_parsed"
        )

    def _name(self, folder: Path) -> str:
        return folder.relative_to(self._place).as_posix()

    def _to_parse(self, pattern: str, table: str) -> str:
        """As a list for DuckDB: files of this kind, but of studies with a kept table of this name."""
        whole = [
            path
            for path in self._files.get(pattern, ())
            if path.parent not in self._hashes
            or table not in KEPT_TABLES
            or find_kept_table(path.parent, self._hashes[path.parent], table) is None
        ]
        return ", ".join(_quoted(glob.escape(str(path))) for path in whole)

    def _select(self, name: str, table: StudyTable) -> str:
        source = self._source(name, table)
        if source is None:
            return sql_empty_table(name)
        return f"SELECT {', '.join(sql_value(column) for column in table.columns)} FROM {source}"

    def _make_requests(self) -> None:
        """A view over the rows: which study they are of is joined when it is asked for."""
        paths = self._remote.rows if self._remote else self._files.get("requests/*.parquet", ())
        begin = len(self._remote.path if self._remote else self._place) + 1
        places = [(str(path), str(path.parents[1])[begin:] or ".", path.name.partition(".")[0]) for path in paths]
        self._rows = request_table_for_query(places, self._remote.files if self._remote else fs.LocalFileSystem())
        self._asked.register("request_rows", self._rows)
        columns = ", ".join(f'"{column.name}"' for column in TABLES["requests"].columns)
        self._asked.execute(f"CREATE VIEW requests AS SELECT {columns} FROM {_with_study('request_rows')}")

    def _source(self, name: str, table: StudyTable) -> str | None:
        """What a view selects from; None where there is no such file."""
        if name == "kernels":
            return self._kernels()
        files = self._to_parse(table.files, name)
        if not files:
            return self._empty_locks() if name == "studies" else None
        if name == "studies":
            read = self._json(files, _SOURCES[name], lines=False)
            self._reader.execute(f"CREATE TEMP TABLE locks AS SELECT *, plan.study.name AS study FROM ({read})")
            return "locks"
        read = self._lines(name, self._json(files, _SOURCES[name], lines=True))
        if name == "quality":
            return _with_study(self._with_perplexity(read))
        return _with_workload(self._without_lost(read)) if name == "trials" else _with_study(f"({read})")

    def _without_lost(self, read: str) -> str:
        """As `records.lost` has it: what a block had before its machine was lost does not count. Ids count upwards."""
        files = self._to_parse(TABLES["instances"].files, "trials")
        if not files:
            return read
        fields = {"id": "VARCHAR", "block": "INTEGER", "outcome": "VARCHAR"}
        lost = (
            f"SELECT folder, block, max({_number('id')}) AS number FROM ({self._json(files, fields, lines=True)}) "
            "WHERE outcome = 'lost' GROUP BY ALL"
        )
        is_lost = f"own.outcome = 'ok' AND {_number('own.instance_id')} < lost.number"
        outcome = f"CASE WHEN {is_lost} THEN 'lost' ELSE own.outcome END"
        return (
            f"SELECT own.* REPLACE ({outcome} AS outcome) FROM ({read}) own "
            f"LEFT JOIN ({lost}) lost ON own.folder = lost.folder AND own.block = lost.block"
        )

    def _empty_locks(self) -> str:
        columns = {**_SOURCES["studies"], "folder": "VARCHAR", "study": "VARCHAR"}
        empty = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
        self._reader.execute(f"CREATE TEMP TABLE locks ({empty})")
        return "locks"

    def _read(self, sql: str) -> list[Row]:
        return self._reader.execute(sql).fetchall()

    def _json(self, files: str, fields: dict[str, str], *, lines: bool, ending: str = "/[^/]*$") -> str:
        columns = ", ".join(f'"{name}": {_quoted(kind)}' for name, kind in fields.items())
        form = (
            "format = 'newline_delimited', ignore_errors = true"
            if lines
            else f"format = 'unstructured', maximum_object_size = {LARGEST_OBJECT_BYTES}"
        )
        return (
            f"SELECT *, {self._folder(ending)} AS folder "
            f"FROM read_json([{files}], columns = {{{columns}}}, filename = true, {form})"
        )

    def _kernels(self) -> str:
        """Of our own bench, and of tables that were imported: these give one time per column, and nothing else."""
        parts = [sql_empty_table("kernels")]
        if files := self._to_parse(TABLES["kernels"].files, "kernels"):
            read = self._json(files, _SOURCES["kernels"], lines=False)
            parts.append(
                "SELECT folder, machine.*, timing.* EXCLUDE (seconds), list_median(timing.seconds) AS median_s, "
                "len(timing.seconds) AS rounds FROM "
                f"(SELECT folder, machine, unnest(timings) AS timing FROM ({read}) WHERE machine IS NOT NULL)"
            )
        if files := self._to_parse("published/kernels.json", "kernels"):
            read = self._json(files, _SOURCES["imported kernels"], lines=False, ending="/published/[^/]*$")
            parts.append(
                'SELECT folder, tool AS imported_from, row.* EXCLUDE (seconds), time.key AS "case", time.value AS '
                "median_s FROM (SELECT folder, tool, row, unnest(map_entries(row.seconds)) AS time FROM "
                f"(SELECT folder, source.tool AS tool, unnest(rows) AS row FROM ({read})))"
            )
        return f"({' UNION ALL BY NAME '.join(parts)})"

    def _lines(self, name: str, read: str) -> str:
        """Each record once. What is damaged, or not complete yet, was read as a row of nulls."""
        self._reader.execute(f"CREATE TEMP TABLE {name}_lines AS SELECT DISTINCT * FROM ({read})")
        lines = f"SELECT filename, id FROM {name}_lines WHERE id IS"
        for file, _ in self._read(f"{lines} NULL GROUP BY ALL ORDER BY 1"):
            self.damaged += damaged_query_table_lines(file, name)
        for file, record_id in self._read(f"{lines} NOT NULL GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL LIMIT 1"):
            raise StoreError(f"{file} has lines of id {record_id} with different content; remove all but one")
        return f"SELECT * FROM {name}_lines WHERE id IS NOT NULL"

    def _with_perplexity(self, read: str) -> str:
        files = self._to_parse("quality/*.parquet", "kernels")
        if not files:
            return f"(SELECT *, CAST(NULL AS DOUBLE) AS perplexity FROM ({read}))"
        rows = (
            f"SELECT {self._folder('/quality/[^/]*$')} AS folder, "
            "regexp_extract(filename, '([^/.]+)[^/]*[.]parquet$', 1) AS id, \"window\", logprob "
            f"FROM read_parquet([{files}], filename = true)"
        )
        scores = (
            f"SELECT own.folder, own.id, exp(-avg(logprob)) AS perplexity FROM ({read}) own JOIN ({rows}) scored "
            'ON own.folder = scored.folder AND own.id = scored.id AND "window" < coalesce(own.corpus.windows, 1e9) '
            "GROUP BY ALL"  # longer windows come after
        )
        return f"(SELECT * FROM ({read}) LEFT JOIN ({scores}) USING (folder, id))"

    def _folder(self, ending: str) -> str:
        """The study folder below the place that was opened; a dot for that place itself."""
        begin = len(self._place) + 2
        whole = f"regexp_replace(filename, {_quoted(ending)}, '')"
        return f"coalesce(nullif(substring({whole}, {begin}), ''), '.')"


def _connection_without_files() -> duckdb.DuckDBPyConnection:
    """For SQL that a person wrote. It keeps everything in memory; what it may not do cannot be switched on again."""
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


def _number(instance: str) -> str:
    """Of an instance's id."""
    return f"try_cast(substring({instance}, 2) AS BIGINT)"


def _with_study(source: str) -> str:
    return f"(SELECT * FROM {source} LEFT JOIN (SELECT folder, study FROM studies) USING (folder))"


def _with_workload(read: str) -> str:
    shapes = (
        "SELECT folder, study, shape.name AS workload_name, "
        "CASE WHEN list_contains(shape.unknown, 'concurrency') THEN NULL ELSE shape.concurrency END AS concurrency, "
        "CASE WHEN list_contains(shape.unknown, 'input_tokens') THEN NULL "
        "ELSE try_cast(shape.input_tokens AS INTEGER) END AS input_tokens, "
        "CASE WHEN list_contains(shape.unknown, 'output_tokens') THEN NULL "
        "ELSE try_cast(shape.output_tokens AS INTEGER) END AS output_tokens "
        "FROM (SELECT folder, study, unnest(plan.study.workloads) AS shape FROM locks)"
    )
    return (
        f"(SELECT own.*, shape.* EXCLUDE (folder, workload_name) FROM ({read}) own LEFT JOIN ({shapes}) shape "
        "ON own.folder = shape.folder AND own.point.workload = shape.workload_name)"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _files_below(place: Path) -> tuple[dict[str, list[Path]], dict[Path, str]]:
    """Plain files that tables are read from, by their kind; the hash of each study's records. No link is followed."""
    kinds: dict[str, list[Path]] = {kind: [] for kind in _KINDS_OF_FILES}
    hashes: dict[Path, str] = {}
    for name, folders, files in os.walk(place):
        folder = Path(name)
        folders.sort()
        for kind in kinds:
            above, _, last = kind.rpartition("/")
            if above not in ("", folder.name):
                continue
            found = sorted(folder / file for file in files if fnmatch(file, last))
            kinds[kind] += [path for path in found if path.is_file()]
        if "tables" in folders and "lock.json" in files:
            hashes[folder] = hash_records(folder)
    return kinds, hashes
