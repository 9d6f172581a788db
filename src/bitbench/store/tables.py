"""The tables that `bitbench query` offers: their columns, what these mean, and how they are read from study folders."""

from dataclasses import dataclass
from typing import NamedTuple

from bitbench.core.found.metrics import find
from bitbench.core.recorded.requests import REQUEST_COLUMNS
from bitbench.core.recorded.trial import Memory, TrialMetrics

# How DuckDB spells the types of requests/*.parquet.
_TYPES = {
    "int32": "INTEGER", "int16": "SMALLINT", "float64": "DOUBLE", "string": "VARCHAR", "list<float64>": "DOUBLE[]",
}  # fmt: skip


class TableColumn(NamedTuple):
    name: str
    type: str
    meaning: str
    sql: str  # from the columns of the source


@dataclass(frozen=True)
class QueryTable:
    """`files`: which files of a study folder it is read from."""

    meaning: str
    files: str
    columns: tuple[TableColumn, ...]


def _same(name: str, kind: str, meaning: str) -> TableColumn:
    return TableColumn(name, kind, meaning, f'"{name}"')


def _at(path: str, name: str, kind: str, meaning: str) -> TableColumn:
    return TableColumn(name, kind, meaning, f"{path}.{name}")


def _meaning(column: str) -> str:
    metric = find(column)
    assert metric is not None, f"{column} is not a figure"
    return metric.meaning


FOLDER = TableColumn("folder", "VARCHAR", "the study folder, below the one that was opened", "folder")
STUDY = TableColumn("study", "VARCHAR", "name of the study", "study")
CONTENDER = (
    TableColumn("variant", "VARCHAR", "model/recipe; none where the engine has no model", "cell.contender.variant"),
    TableColumn("engine", "VARCHAR", "name of the engine's setup in the study", "cell.contender.engine"),
)
_OWN_CONTENDER = tuple(column._replace(sql=column.sql.removeprefix("cell.")) for column in CONTENDER)
_OUTCOME = (
    _same(
        "outcome",
        "VARCHAR",
        "ok, oom, unsupported, timeout, crashed, overloaded, client_bound, disturbed, lost or invalid",
    ),
    _same("cause", "VARCHAR", "why it is not ok"),
)
_UTC = "try_cast({} AS TIMESTAMPTZ) AT TIME ZONE 'UTC'"
_STARTED = TableColumn("started_at", "TIMESTAMP", "wall clock, in UTC", _UTC.format("started_at"))

STUDIES = QueryTable(
    "one row per study folder",
    "lock.json",
    (
        FOLDER,
        STUDY,
        TableColumn("description", "VARCHAR", "what the study file says", "plan.study.description"),
        TableColumn("created_at", "TIMESTAMP", "when it was begun, in UTC", _UTC.format("created_at")),
        _same("bitbench", "VARCHAR", "version that ran it"),
        TableColumn("imported_from", "VARCHAR", "tool whose files it was made from", "plan.imported_from.tool"),
        TableColumn("headline", "VARCHAR", "metric that is ranked", "plan.study.measure.headline"),
        TableColumn("baseline", "VARCHAR", "contender that others are compared with", "plan.study.baseline"),
        _at("host", "cpu_model", "VARCHAR", "processor"),
        _at("host", "cores", "INTEGER", "physical cores"),
        _at("host", "threads", "INTEGER", "hardware threads"),
        _at("host", "memory_bytes", "BIGINT", "memory of the machine"),
        TableColumn("accelerators", "VARCHAR[]", "names of its devices", "[one.name for one in host.accelerators]"),
        _at("host", "os", "VARCHAR", "operating system"),
    ),
)
TRIALS = QueryTable(
    "one row per trial, warm-up included",
    "trials.jsonl",
    (
        FOLDER,
        STUDY,
        TableColumn("trial", "VARCHAR", "its id", "id"),
        _same("kind", "VARCHAR", "measured or warmup; only measured ones count"),
        *CONTENDER,
        TableColumn("workload", "VARCHAR", "name of the workload", "cell.workload"),
        _same("concurrency", "INTEGER", "requests in flight that the workload allows"),
        _same("input_tokens", "INTEGER", "tokens of a prompt; null where they vary"),
        _same("output_tokens", "INTEGER", "tokens of an answer; null where they vary"),
        TableColumn("instance", "VARCHAR", "the start of the engine that it ran in", "instance_id"),
        _same("block", "INTEGER", "round of starts"),
        _same("index", "INTEGER", "number within its block"),
        TableColumn(
            "purpose",
            "VARCHAR",
            "selection; or confirmation: of the chosen contender after the choice, in no other figure",
            "coalesce(purpose, 'selection')",
        ),
        _STARTED,
        _same("duration_s", "DOUBLE", "how long it took"),
        *_OUTCOME,
        *(_at("metrics", name, "DOUBLE", _meaning(name)) for name in TrialMetrics.model_fields),
        *(_at("memory", name, "BIGINT", _meaning(name)) for name in Memory.model_fields),
        _same("requests", "INTEGER", "requests that were sent"),
        _same("failed_requests", "INTEGER", "those without a complete answer"),
    ),
)
INSTANCES = QueryTable(
    "one row per start of an engine",
    "instances.jsonl",
    (
        FOLDER,
        STUDY,
        TableColumn("instance", "VARCHAR", "its id", "id"),
        *_OWN_CONTENDER,
        _same("block", "INTEGER", "round of starts"),
        _same("host", "VARCHAR", "the machine it ran on; null of an import, and of a server that was running"),
        _STARTED,
        _same("ready_s", "DOUBLE", "from start to ready"),
        *_OUTCOME,
        _at("facts", "engine_version", "VARCHAR", "as the engine reports it"),
        _at("facts", "kernels", "VARCHAR[]", "kernels it selected"),
        _at("facts", "command", "VARCHAR[]", "how it was started, without secrets"),
        _at("facts", "prefix_caching", "BOOLEAN", "on or off"),
        _at("facts", "weight_bytes_loaded", "BIGINT", "weights as loaded"),
        _at("facts", "kv_cache_bytes", "BIGINT", "set aside for keys and values"),
        _at("facts", "kv_cache_tokens", "BIGINT", "tokens that fit into it"),
        _at("facts", "kv_bytes_per_token", "BIGINT", "keys and values of one token"),
        _at("facts", "weight_load_s", "DOUBLE", "loading of the weights"),
        _at("facts", "compile_s", "DOUBLE", "compilation"),
        TableColumn("idle_bytes", "BIGINT", "host memory once ready", "memory.resident_bytes"),
    ),
)
REQUESTS = QueryTable(
    "one row per request",
    "requests/*.parquet",
    (
        FOLDER,
        STUDY,
        TableColumn("trial", "VARCHAR", "id of its trial", "trial"),
        *(_same(column.name, _TYPES[column.arrow_type], column.meaning) for column in REQUEST_COLUMNS),
    ),
)
QUALITY = QueryTable(
    "one row per measurement of a contender's quality",
    "quality.jsonl",
    (
        FOLDER,
        STUDY,
        TableColumn("measurement", "VARCHAR", "its id", "id"),
        *_OWN_CONTENDER,
        TableColumn("instance", "VARCHAR", "the start of the engine that it ran in", "instance_id"),
        _STARTED,
        _same("duration_s", "DOUBLE", "how long it took"),
        *_OUTCOME,
        TableColumn("corpus", "VARCHAR", "which text", "corpus.description"),
        TableColumn("windows_hash", "VARCHAR", "equal hashes: the same tokens were scored", "corpus.windows_hash"),
        TableColumn("windows", "INTEGER", "pieces of the text", "corpus.windows"),
        _same("tokens", "BIGINT", "tokens that were scored"),
        _same("perplexity", "DOUBLE", _meaning("perplexity")),
    ),
)
KERNELS = QueryTable(
    "one row per kernel case, shape and batch of `bitbench kernels`, or of an imported kernel table",
    "records.json",
    (
        TableColumn("folder", "VARCHAR", "the folder that `bitbench kernels` or `bitbench import` filled", "folder"),
        _same("case", "VARCHAR", "name of the kernel case; of an imported table, its column"),
        _same("in_features", "INTEGER", "rows of the weight that are read"),
        _same("out_features", "INTEGER", "columns of the result"),
        _same("batch", "INTEGER", "activation rows"),
        _same("labels", "MAP(VARCHAR, INTEGER)", "further parameters, such as main_centroids"),
        _same("weight_bytes", "BIGINT", "as stored"),
        _same("median_s", "DOUBLE", "median over rounds; of an imported table, the time that it prints"),
        _same("rounds", "BIGINT", "how many"),
        _same("error", "DOUBLE", "relative error against double precision"),
        _same("cause", "VARCHAR", "why it was not timed"),
        _same("device", "VARCHAR", "where the kernels ran: cpu or cuda"),
        _same("device_name", "VARCHAR", "of a GPU"),
        _same("cpu_model", "VARCHAR", "processor"),
        _same("threads", "INTEGER", "threads that it used"),
        _same("torch", "VARCHAR", "version of torch"),
        _same("isa", "VARCHAR", "instruction set that a native kernel ran on"),
        _same("imported_from", "VARCHAR", "tool, where bitbench did not measure it"),
    ),
)
TABLES = {
    "studies": STUDIES,
    "trials": TRIALS,
    "instances": INSTANCES,
    "requests": REQUESTS,
    "quality": QUALITY,
    "kernels": KERNELS,
}


def no_rows(name: str) -> str:
    """No row of the right types, as SQL: what is united with it has every column."""
    empty = ", ".join(f'CAST(NULL AS {column.type}) AS "{column.name}"' for column in TABLES[name].columns)
    return f"SELECT {empty} WHERE false"
