"""All studies below a folder or an object-store URL as DuckDB tables. Reads only.

There are two connections. `_reader` opens files, with SQL that is written here. `_asked` runs the SQL of a person: it
cannot open a file, load an extension or change a setting, and is handed its tables as Arrow data. Request rows, of
which there may be millions, are handed over as a dataset that is read where it lies.

A table is made when a query names it: listing a million request files for a question about trials would be waste. A
line of a study that is just being written is left out until it is complete; a damaged one is left out and named.
"""

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bitbench.feature import offered
from bitbench.features.query.tables import (
    TABLES,
    damaged_query_table_lines,
    damaged_query_table_rows,
    request_table_for_query,
    sql_empty_table,
    sql_value,
)
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
        "purpose": "VARCHAR",
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


class Catalog(Protocol):
    """The tables of many studies, kept ready at the place where these lie; those that it lacks it explains."""

    tables: Collection[str]

    def table(self, name: str) -> "pa.Table": ...
    def lacks(self, name: str) -> str: ...


class Studies:
    """All studies below `place`. `damaged`: the lines that the tables made so far leave out, as `FILE:NUMBER`."""

    def __init__(self, place: str) -> None:
        is_remote = "://" in place
        self._place = place.rstrip("/") if is_remote else str(Path(place).resolve())
        self._catalog = _catalog(self._place) if is_remote else None
        self._remote = _remote(place) if is_remote and self._catalog is None else None
        self._reader = duckdb.connect()
        self._reader.execute("SET TimeZone = 'UTC'")
        self._asked = _connection_without_files()
        self._made: set[str] = set()
        self._rows: ds.FileSystemDataset | None = None  # of requests, once they were asked for
        self.damaged: list[str] = []
        if self._remote is not None:
            self._reader.register_filesystem(self._remote)
        elif not is_remote and not Path(place).is_dir():
            raise StoreError(f"no folder {place}; give one that contains study folders, or a URL such as s3://…")

    @property
    def tables(self) -> list[str]:
        """Those that can be asked for at this place."""
        return [name for name in TABLES if self._catalog is None or name in self._catalog.tables]

    def query(self, sql: str) -> tuple[list[str], list[Row]]:
        """Names of the columns and the rows. Raises StoreError with DuckDB's own words."""
        for name in self.tables:
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
            if self._catalog is not None and unknown[1].lower() in TABLES:
                return StoreError(self._catalog.lacks(unknown[1].lower()))
            hint = did_you_mean(unknown[1], self.tables)
            return StoreError(f"there is no table {unknown[1]}; {hint}the tables are {', '.join(self.tables)}")
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
        if self._catalog is not None:
            self._hand_over(name, self._catalog.table(name))
            return
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
        self._asked.register(name, content)
        if name == "studies":
            self._reader.register(name, content)  # other tables are joined with it

    def _select(self, name: str, table: StudyTable) -> str:
        source = self._source(name, table)
        if source is None:
            return sql_empty_table(name)
        return f"SELECT {', '.join(sql_value(column) for column in table.columns)} FROM {source}"

    def _make_requests(self) -> None:
        """A view over the rows: which study they are of is joined when it is asked for."""
        pattern = f"{self._place}/**/{TABLES['requests'].files}"
        places = self._read(
            f"SELECT filename, {self._folder('/requests/[^/]*$')}, "
            "regexp_extract(filename, '([^/.]+)[^/]*[.]parquet$', 1) "
            f"FROM (SELECT file AS filename FROM glob({_quoted(pattern)}))"
        )
        self._rows = request_table_for_query(places, self._remote)
        self._asked.register("request_rows", self._rows)
        columns = ", ".join(f'"{column.name}"' for column in TABLES["requests"].columns)
        self._asked.execute(f"CREATE VIEW requests AS SELECT {columns} FROM {_with_study('request_rows')}")

    def _source(self, name: str, table: StudyTable) -> str | None:
        """What a view selects from; None where there is no such file."""
        if name == "kernels":
            return self._kernels()
        pattern = f"{self._place}/**/{table.files}"
        if not self._has(pattern):
            return self._empty_locks() if name == "studies" else None
        if name == "studies":
            read = self._json(pattern, _SOURCES[name], lines=False)
            self._reader.execute(f"CREATE TEMP TABLE locks AS SELECT *, plan.study.name AS study FROM ({read})")
            return "locks"
        read = self._lines(name, self._json(pattern, _SOURCES[name], lines=True))
        if name == "quality":
            return _with_study(self._with_perplexity(read))
        return _with_workload(self._without_lost(read)) if name == "trials" else _with_study(f"({read})")

    def _without_lost(self, read: str) -> str:
        """As `records.lost` has it: what a block had before its machine was lost does not count. Ids count upwards."""
        pattern = f"{self._place}/**/{TABLES['instances'].files}"
        if not self._has(pattern):
            return read
        fields = {"id": "VARCHAR", "block": "INTEGER", "outcome": "VARCHAR"}
        lost = (
            f"SELECT folder, block, max({_number('id')}) AS number FROM ({self._json(pattern, fields, lines=True)}) "
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

    def _has(self, pattern: str) -> bool:
        return bool(self._read(f"SELECT 1 FROM glob({_quoted(pattern)}) LIMIT 1"))

    def _read(self, sql: str) -> list[Row]:
        return self._reader.execute(sql).fetchall()

    def _json(self, pattern: str, fields: dict[str, str], *, lines: bool, ending: str = "/[^/]*$") -> str:
        columns = ", ".join(f'"{name}": {_quoted(kind)}' for name, kind in fields.items())
        form = (
            "format = 'newline_delimited', ignore_errors = true"
            if lines
            else f"format = 'unstructured', maximum_object_size = {LARGEST_OBJECT_BYTES}"
        )
        return (
            f"SELECT *, {self._folder(ending)} AS folder "
            f"FROM read_json({_quoted(pattern)}, columns = {{{columns}}}, filename = true, {form})"
        )

    def _kernels(self) -> str:
        """Of our own bench, and of tables that were imported: these give one time per column, and nothing else."""
        parts = [sql_empty_table("kernels")]
        if self._has(pattern := f"{self._place}/**/{TABLES['kernels'].files}"):
            read = self._json(pattern, _SOURCES["kernels"], lines=False)
            parts.append(
                "SELECT folder, machine.*, timing.* EXCLUDE (seconds), list_median(timing.seconds) AS median_s, "
                "len(timing.seconds) AS rounds FROM "
                f"(SELECT folder, machine, unnest(timings) AS timing FROM ({read}) WHERE machine IS NOT NULL)"
            )
        if self._has(pattern := f"{self._place}/**/published/kernels.json"):
            read = self._json(pattern, _SOURCES["imported kernels"], lines=False, ending="/published/[^/]*$")
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
            self.damaged += damaged_query_table_lines(file, name, self._remote)
        for file, record_id in self._read(f"{lines} NOT NULL GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL LIMIT 1"):
            raise StoreError(f"{file} has lines of id {record_id} with different content; remove all but one")
        return f"SELECT * FROM {name}_lines WHERE id IS NOT NULL"

    def _with_perplexity(self, read: str) -> str:
        pattern = f"{self._place}/**/quality/*.parquet"
        if not self._has(pattern):
            return f"(SELECT *, CAST(NULL AS DOUBLE) AS perplexity FROM ({read}))"
        rows = (
            f"SELECT {self._folder('/quality/[^/]*$')} AS folder, "
            "regexp_extract(filename, '([^/.]+)[^/]*[.]parquet$', 1) AS id, \"window\", logprob "
            f"FROM read_parquet({_quoted(pattern)}, filename = true)"
        )
        scores = (
            f"SELECT own.folder, own.id, exp(-avg(logprob)) AS perplexity FROM ({read}) own JOIN ({rows}) scored "
            'ON own.folder = scored.folder AND own.id = scored.id AND "window" < coalesce(own.corpus.windows, 1e9) '
            "GROUP BY ALL"  # longer windows come after
        )
        return f"(SELECT * FROM ({read}) LEFT JOIN ({scores}) USING (folder, id))"

    def _folder(self, ending: str) -> str:
        """The study folder below the place that was opened; a dot for that place itself."""
        begin = len(self._place) + 2 + self._prefix_growth()
        whole = f"regexp_replace(filename, {_quoted(ending)}, '')"
        return f"coalesce(nullif(substring({whole}, {begin}), ''), '.')"

    def _prefix_growth(self) -> int:
        """Some object stores spell a path differently from how it was asked for (memory:// becomes memory:///)."""
        if "://" not in self._place:
            return 0
        path = self._place.partition("://")[2]
        found = self._read(f"SELECT file FROM glob({_quoted(self._place + '/**')}) LIMIT 1")
        written = str(found[0][0]).partition("://")[2] if found else path
        return written.find(path) if path in written else 0


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


def _catalog(place: str) -> Catalog | None:
    """Return the tables that a feature keeps at a place; None where its files have to be read."""
    offer = offered("catalogs").get(place.partition("://")[0])
    catalog: Catalog | None = None if offer is None else offer.load()(place)
    return catalog


def _remote(place: str) -> Any:
    """fsspec knows object stores; it is no part of the core install."""
    protocol = place.partition("://")[0]
    try:
        import fsspec

        return fsspec.filesystem(protocol)
    except ImportError as error:
        raise StoreError(
            f"{protocol}:// needs fsspec and its driver for this store ({error}); for S3: `pip install "
            f"bitbench[remote] s3fs`"
        ) from error
    except ValueError as error:
        raise StoreError(f"unknown store {protocol}://: {error}") from error
