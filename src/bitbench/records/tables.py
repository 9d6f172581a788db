"""The tables of a study: their columns, what these mean, and where a value stands in the records."""

from dataclasses import dataclass
from typing import NamedTuple

from bitbench.records.requests import REQUEST_COLUMNS
from bitbench.records.trial import Memory, TrialMetrics
from bitbench.study.metrics import find


class TableColumn(NamedTuple):
    name: str
    arrow_type: str
    meaning: str
    path: str  # of the value, in a record as JSON and what is joined with it


@dataclass(frozen=True)
class StudyTable:
    """`files`: which files of a study folder it is read from."""

    meaning: str
    files: str
    columns: tuple[TableColumn, ...]


def _same(name: str, kind: str, meaning: str) -> TableColumn:
    return TableColumn(name, kind, meaning, name)


def _at(path: str, name: str, kind: str, meaning: str) -> TableColumn:
    return TableColumn(name, kind, meaning, f"{path}.{name}")


def _meaning(column: str) -> str:
    metric = find(column)
    assert metric is not None, f"{column} is not a figure"
    return metric.meaning


FOLDER = TableColumn("folder", "string", "the study folder, below the one that was opened", "folder")
STUDY = TableColumn("study", "string", "name of the study", "study")
CONFIG = (
    TableColumn("variant", "string", "model/recipe; none where the engine has no model", "point.config.variant"),
    TableColumn("engine", "string", "name of the engine's setup in the study", "point.config.engine"),
)
_OWN_CONFIG = tuple(column._replace(path=column.path.removeprefix("point.")) for column in CONFIG)
_OUTCOME = (
    _same(
        "outcome",
        "string",
        "ok, oom, unsupported, timeout, crashed, overloaded, client_bound, disturbed, lost or invalid",
    ),
    _same("cause", "string", "why it is not ok"),
)
_STARTED = _same("started_at", "timestamp", "wall clock, in UTC")

STUDIES = StudyTable(
    "one row per study folder",
    "lock.json",
    (
        FOLDER,
        STUDY,
        TableColumn("description", "string", "what the study file says", "plan.study.description"),
        _same("created_at", "timestamp", "when it was begun, in UTC"),
        _same("bitbench", "string", "version that ran it"),
        TableColumn("imported_from", "string", "tool whose files it was made from", "plan.imported_from.tool"),
        TableColumn("metric", "string", "metric that is ranked", "plan.study.measure.metric"),
        TableColumn("baseline", "string", "config that others are compared with", "plan.study.baseline"),
        _at("host", "cpu_model", "string", "processor"),
        _at("host", "cores", "int32", "physical cores"),
        _at("host", "threads", "int32", "hardware threads"),
        _at("host", "memory_bytes", "int64", "memory of the machine"),
        TableColumn("accelerators", "list<string>", "names of its devices", "host.accelerators.name"),
        _at("host", "os", "string", "operating system"),
    ),
)
TRIALS = StudyTable(
    "one row per trial, warm-up included",
    "trials.jsonl",
    (
        FOLDER,
        STUDY,
        TableColumn("trial", "string", "its id", "id"),
        _same("kind", "string", "measured or warmup; only measured ones count"),
        *CONFIG,
        TableColumn("workload", "string", "name of the workload", "point.workload"),
        _same("concurrency", "int32", "requests in flight that the workload allows"),
        _same("input_tokens", "int32", "tokens of a prompt; null where they vary"),
        _same("output_tokens", "int32", "tokens of an answer; null where they vary"),
        TableColumn("instance", "string", "the start of the engine that it ran in", "instance_id"),
        _same("block", "int32", "round of starts"),
        _same("index", "int32", "number within its block"),
        TableColumn(
            "purpose",
            "string",
            "selection; or confirmation: of the chosen config after the choice, in no other figure",
            "purpose",
        ),
        _STARTED,
        _same("duration_s", "float64", "how long it took"),
        *_OUTCOME,
        *(_at("metrics", name, "float64", _meaning(name)) for name in TrialMetrics.model_fields),
        *(_at("memory", name, "int64", _meaning(name)) for name in Memory.model_fields),
        _same("requests", "int32", "requests that were sent"),
        _same("failed_requests", "int32", "those without a complete answer"),
    ),
)
INSTANCES = StudyTable(
    "one row per start of an engine",
    "instances.jsonl",
    (
        FOLDER,
        STUDY,
        TableColumn("instance", "string", "its id", "id"),
        *_OWN_CONFIG,
        _same("block", "int32", "round of starts"),
        _same("host", "string", "the machine it ran on; null of an import, and of a server that was running"),
        _STARTED,
        _same("ready_s", "float64", "from start to ready"),
        *_OUTCOME,
        _at("facts", "engine_version", "string", "as the engine reports it"),
        _at("facts", "kernels", "list<string>", "kernels it selected"),
        _at("facts", "command", "list<string>", "how it was started, without secrets"),
        _at("facts", "prefix_caching", "bool", "on or off"),
        _at("facts", "weight_bytes_loaded", "int64", "weights as loaded"),
        _at("facts", "kv_cache_bytes", "int64", "set aside for keys and values"),
        _at("facts", "kv_cache_tokens", "int64", "tokens that fit into it"),
        _at("facts", "kv_bytes_per_token", "int64", "keys and values of one token"),
        _at("facts", "weight_load_s", "float64", "loading of the weights"),
        _at("facts", "compile_s", "float64", "compilation"),
        TableColumn("idle_bytes", "int64", "host memory once ready", "memory.resident_bytes"),
    ),
)
REQUESTS = StudyTable(
    "one row per request",
    "requests/*.parquet",
    (
        FOLDER,
        STUDY,
        TableColumn("trial", "string", "id of its trial", "trial"),
        *(_same(column.name, column.arrow_type, column.meaning) for column in REQUEST_COLUMNS),
    ),
)
QUALITY = StudyTable(
    "one row per measurement of a config's quality",
    "quality.jsonl",
    (
        FOLDER,
        STUDY,
        TableColumn("measurement", "string", "its id", "id"),
        *_OWN_CONFIG,
        TableColumn("instance", "string", "the start of the engine that it ran in", "instance_id"),
        _STARTED,
        _same("duration_s", "float64", "how long it took"),
        *_OUTCOME,
        TableColumn("corpus", "string", "which text", "corpus.description"),
        TableColumn("windows_hash", "string", "equal hashes: the same tokens were scored", "corpus.windows_hash"),
        TableColumn("windows", "int32", "pieces of the text", "corpus.windows"),
        _same("tokens", "int64", "tokens that were scored"),
        _same("perplexity", "float64", _meaning("perplexity")),
    ),
)
TABLES = {"studies": STUDIES, "trials": TRIALS, "instances": INSTANCES, "requests": REQUESTS, "quality": QUALITY}
