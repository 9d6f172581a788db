"""All studies below a folder or an object-store URL as DuckDB tables. Reads only; nothing is copied.

A table is made when a query names it: listing a million request files for a question about trials would be waste. A
line of a study that is just being written is left out until it is complete.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from bitbench.core.recorded.trial import Memory, TrialMetrics
from bitbench.ground.errors import StoreError
from bitbench.store.tables import TABLES, QueryTable

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[Any, ...]  # what DuckDB returns for a row: as many types as its columns have
LARGEST_OBJECT_BYTES = 256 * 2**20  # of a lock or of kernel records; DuckDB's own limit is 16 MiB

_CONTENDER = "STRUCT(variant VARCHAR, engine VARCHAR)"
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
        "plan": "STRUCT(study STRUCT(name VARCHAR, description VARCHAR, baseline VARCHAR, measure STRUCT(headline "
        "VARCHAR), workloads STRUCT(name VARCHAR, concurrency INTEGER, input_tokens JSON, output_tokens JSON, "
        '"unknown" VARCHAR[])[]), imported_from STRUCT(tool VARCHAR))',
    },
    "trials": {
        **_PLACE,
        "kind": "VARCHAR",
        "cell": f"STRUCT(contender {_CONTENDER}, workload VARCHAR)",
        "block": "INTEGER",
        "index": "INTEGER",
        "purpose": "VARCHAR",
        "duration_s": "DOUBLE",
        "metrics": _struct(dict.fromkeys(TrialMetrics.model_fields, "DOUBLE")),
        "memory": _struct(dict.fromkeys(Memory.model_fields, "BIGINT")),
        "requests": "INTEGER",
        "failed_requests": "INTEGER",
    },
    "instances": {
        **{name: kind for name, kind in _PLACE.items() if name != "instance_id"},
        "contender": _CONTENDER,
        "block": "INTEGER",
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
        "contender": _CONTENDER,
        "duration_s": "DOUBLE",
        "corpus": "STRUCT(description VARCHAR, windows_hash VARCHAR, windows INTEGER)",
        "tokens": "BIGINT",
        "scores_file": "VARCHAR",
    },
    "kernels": {
        "machine": "STRUCT(device VARCHAR, device_name VARCHAR, cpu_model VARCHAR, threads INTEGER, torch VARCHAR, "
        "isa VARCHAR)",
        "timings": 'STRUCT("case" VARCHAR, in_features INTEGER, out_features INTEGER, batch INTEGER, labels '
        "MAP(VARCHAR, INTEGER), weight_bytes BIGINT, error DOUBLE, cause VARCHAR, seconds DOUBLE[])[]",
    },
    "imported kernels": {
        "source": "STRUCT(tool VARCHAR)",
        "rows": "STRUCT(in_features INTEGER, out_features INTEGER, batch INTEGER, labels MAP(VARCHAR, INTEGER), "
        "seconds MAP(VARCHAR, DOUBLE))[]",
    },
}  # fmt: skip


class Studies:
    """One connection to all studies below `place`."""

    def __init__(self, place: str) -> None:
        is_remote = "://" in place
        self._place = place.rstrip("/") if is_remote else str(Path(place).resolve())
        self._connection = duckdb.connect()
        self._made: set[str] = set()
        if is_remote:
            self._connection.register_filesystem(_remote(place))
        elif not Path(place).is_dir():
            raise StoreError(f"no folder {place}; give one that contains study folders, or a URL such as s3://…")
        self._connection.execute("SET TimeZone = 'UTC'")

    def query(self, sql: str) -> tuple[list[str], list[Row]]:
        """Names of the columns and the rows. Raises StoreError with DuckDB's own words."""
        for name in TABLES:
            if re.search(rf"\b{name}\b", sql, re.IGNORECASE):
                self._make(name)
        try:
            found = self._connection.execute(sql)
            rows = found.fetchall()
        except duckdb.Error as error:
            raise StoreError(f"the query failed: {error}") from error
        return [str(column[0]) for column in found.description or ()], rows

    def arrow(self, name: str) -> "pa.Table":
        """A whole table, with its types."""
        self._make(name)
        return self._connection.sql(f"SELECT * FROM {name}").to_arrow_table()

    def count(self, name: str) -> int:
        """Rows of a table."""
        _, rows = self.query(f"SELECT count(*) FROM {name}")
        return int(rows[0][0])

    def described(self, name: str) -> list[tuple[str, str]]:
        """Columns and types, as DuckDB sees them."""
        self._make(name)
        return [(str(row[0]), str(row[1])) for row in self._connection.execute(f"DESCRIBE {name}").fetchall()]

    def _make(self, name: str) -> None:
        if name in self._made:
            return
        self._made.add(name)
        table = TABLES[name]
        if name not in ("studies", "kernels"):
            self._make("studies")
        source = self._source(name, table)
        columns = ", ".join(f'CAST({column.sql} AS {column.type}) AS "{column.name}"' for column in table.columns)
        select = _no_rows(name) if source is None else f"SELECT {columns} FROM {source}"
        try:
            self._connection.execute(f"CREATE VIEW {name} AS {select}")
        except duckdb.Error as error:
            raise StoreError(f"{table.files} below {self._place} cannot be read: {error}") from error

    def _source(self, name: str, table: QueryTable) -> str | None:
        """What a view selects from; None where there is no such file."""
        if name == "kernels":
            return self._kernels()
        pattern = f"{self._place}/**/{table.files}"
        if not self._has(pattern):
            return None
        if name == "requests":
            return _with_study(self._requests(pattern))
        read = self._json(pattern, _SOURCES[name], lines=table.files.endswith(".jsonl"))
        if name == "studies":
            self._connection.execute(f"CREATE VIEW locks AS SELECT *, plan.study.name AS study FROM ({read})")
            return "locks"
        if name == "quality":
            return _with_study(self._with_perplexity(read))
        return _with_workload(read) if name == "trials" else _with_study(f"({read})")

    def _has(self, pattern: str) -> bool:
        found = self._connection.execute(f"SELECT 1 FROM glob({_quoted(pattern)}) LIMIT 1").fetchone()
        return found is not None

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
            # What is not complete yet is read as a row of nulls.
            f"{' WHERE id IS NOT NULL' if lines else ''}"
        )

    def _kernels(self) -> str:
        """Of our own bench, and of tables that were imported: these give one time per column, and nothing else."""
        parts = [_no_rows("kernels")]
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

    def _requests(self, pattern: str) -> str:
        """Files of older versions lack columns."""
        empty = _no_rows("requests", without=("folder", "study", "trial"))
        return (
            f"(SELECT *, {self._folder('/requests/[^/]*$')} AS folder, "
            "regexp_extract(filename, '([^/]+)[.]parquet$', 1) AS trial FROM "
            f"(SELECT * FROM read_parquet({_quoted(pattern)}, filename = true, union_by_name = true) "
            f"UNION ALL BY NAME {empty}))"
        )

    def _with_perplexity(self, read: str) -> str:
        pattern = f"{self._place}/**/quality/*.parquet"
        if not self._has(pattern):
            return f"(SELECT *, CAST(NULL AS DOUBLE) AS perplexity FROM ({read}))"
        scores = (
            f"SELECT {self._folder('/quality/[^/]*$')} AS folder, "
            "regexp_extract(filename, '([^/]+)[.]parquet$', 1) AS id, exp(-avg(logprob)) AS perplexity "
            f"FROM read_parquet({_quoted(pattern)}, filename = true) GROUP BY ALL"
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
        found = self._connection.execute(f"SELECT file FROM glob({_quoted(self._place + '/**')}) LIMIT 1").fetchone()
        written = str(found[0]).partition("://")[2] if found else path
        return written.find(path) if path in written else 0


def _no_rows(name: str, without: Sequence[str] = ()) -> str:
    """No row of the right types: what is united with it has every column."""
    own = [column for column in TABLES[name].columns if column.name not in without]
    empty = ", ".join(f'CAST(NULL AS {column.type}) AS "{column.name}"' for column in own)
    return f"SELECT {empty} WHERE false"


def _with_study(source: str) -> str:
    return f"(SELECT * FROM {source} LEFT JOIN (SELECT folder, study FROM studies) USING (folder))"


def _with_workload(read: str) -> str:
    shapes = (
        "SELECT folder, study, one.name AS workload_name, "
        "CASE WHEN list_contains(one.unknown, 'concurrency') THEN NULL ELSE one.concurrency END AS concurrency, "
        "CASE WHEN list_contains(one.unknown, 'input_tokens') THEN NULL "
        "ELSE try_cast(one.input_tokens AS INTEGER) END AS input_tokens, "
        "CASE WHEN list_contains(one.unknown, 'output_tokens') THEN NULL "
        "ELSE try_cast(one.output_tokens AS INTEGER) END AS output_tokens "
        "FROM (SELECT folder, study, unnest(plan.study.workloads) AS one FROM locks)"
    )
    return (
        f"(SELECT own.*, shape.* EXCLUDE (folder, workload_name) FROM ({read}) own LEFT JOIN ({shapes}) shape "
        "ON own.folder = shape.folder AND own.cell.workload = shape.workload_name)"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


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


def shown_columns(name: str) -> Sequence[tuple[str, str, str]]:
    """Name, type and meaning of each column, as documented."""
    return [(column.name, column.type, column.meaning) for column in TABLES[name].columns]
