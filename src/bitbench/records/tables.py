"""The columns of requests/*.parquet and the tables of a study: their meaning, and the path of
each value in the records.

Times are in seconds on one monotonic clock, counted from the start of the trial (`started_at` of
the trial record is its wall clock). A value is null if its event did not happen. For example, a
request without a token has no `first_token_s`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from bitbench.records.trial import Memory, TrialMetrics
from bitbench.study.metrics import find_metric


class RequestColumn(NamedTuple):
    """A column of request rows."""

    name: str
    arrow_type: str
    meaning: str
    is_later: bool = False  # True if older rows lack it. It is null there.


REQUEST_COLUMNS = (
    RequestColumn("request", "int32", "number within the trial, in planned order"),
    RequestColumn("planned_s", "float64", "when it should be sent; latencies count from here"),
    RequestColumn(
        "scheduled_s",
        "float64",
        "planned_s where a schedule said when; null where it followed an answer",
    ),
    RequestColumn("sent_s", "float64", "when its bytes were handed to the socket"),
    RequestColumn(
        "first_token_s", "float64", "when the first chunk with text arrived, reasoning or answer"
    ),
    RequestColumn(
        "first_answer_s",
        "float64",
        "when the first chunk of the answer arrived, after any reasoning",
    ),
    RequestColumn("last_token_s", "float64", "when the last chunk with text arrived"),
    RequestColumn("end_s", "float64", "when the stream was complete, or had failed"),
    RequestColumn(
        "chunk_s",
        "list<float64>",
        "arrival of each chunk from the first with text on; it may carry several tokens",
    ),
    RequestColumn(
        "asked_input_tokens",
        "int32",
        "prompt tokens asked for; null for text, whose tokens only the server counts",
    ),
    RequestColumn("asked_output_tokens", "int32", "output tokens asked for"),
    RequestColumn("input_tokens", "int32", "prompt tokens, from the engine's usage"),
    RequestColumn("output_tokens", "int32", "output tokens, from the engine's usage"),
    RequestColumn(
        "cached_tokens",
        "int32",
        "prompt tokens that came from a prefix cache, from the engine's usage; null: unknown",
        is_later=True,
    ),
    RequestColumn(
        "timed_tokens",
        "int32",
        "output tokens after the first chunk, which TPOT divides by; estimated from text where "
        "chunks are fewer than tokens; 0: unknown; null: all but one",
        is_later=True,
    ),
    RequestColumn(
        "status",
        "string",
        "ok, refused, http_error, rate_limited, broken, oversized, contradictory, stalled or "
        "timeout",
    ),
    RequestColumn("http_status", "int16", "status code of the answer"),
    RequestColumn("error", "string", "what went wrong, in the server's words where it gave some"),
)

REQUEST_STATUSES = (
    "ok",  # complete, with usage
    "refused",  # no connection
    "http_error",  # the server answered with an error
    "rate_limited",  # the server said that it has too many requests (HTTP 429)
    "broken",  # the stream ended before it was complete
    # the answer was given up: more bytes, events or time to decode than `util.http.limits` allows
    "oversized",
    "contradictory",  # complete, but its chunks are more than the tokens that its usage counts
    "stalled",  # no byte for longer than the stall limit
    "timeout",  # longer than the request limit in all
)


class TableColumn(NamedTuple):
    """A column of a table of a study."""

    name: str
    arrow_type: str
    meaning: str
    # path of the value in the joined JSON of a record. The default is the name.
    own_path: str | None = None

    @property
    def path(self) -> str:
        return self.own_path or self.name


@dataclass(frozen=True)
class StudyTable:
    """A table of a study. `files` are the files of the study folder that it is read from."""

    meaning: str
    files: str
    columns: tuple[TableColumn, ...]


def _make_column(path: str, name: str, kind: str, meaning: str) -> TableColumn:
    return TableColumn(name, kind, meaning, f"{path}.{name}")


def _find_meaning(column: str) -> str:
    metric = find_metric(column)
    assert metric is not None, f"{column} is not a figure"
    return metric.meaning


FOLDER = TableColumn("folder", "string", "the study folder, below the one that was opened")
STUDY = TableColumn("study", "string", "name of the study")
CONFIG = (
    TableColumn(
        "variant",
        "string",
        "model/recipe; none where the engine has no model",
        "point.config.variant",
    ),
    TableColumn(
        "engine", "string", "name of the engine's setup in the study", "point.config.engine"
    ),
)
_OWN_CONFIG = tuple(
    column._replace(own_path=column.path.removeprefix("point.")) for column in CONFIG
)
_OUTCOME = (
    TableColumn(
        "outcome",
        "string",
        "ok, oom, unsupported, timeout, crashed, overloaded, client_bound, disturbed, lost or "
        "invalid",
    ),
    TableColumn("cause", "string", "why it is not ok"),
)
_STARTED = TableColumn("started_at", "timestamp", "wall clock, in UTC")

STUDIES = StudyTable(
    "one row per study folder",
    "lock.json",
    (
        FOLDER,
        STUDY,
        TableColumn("description", "string", "what the study file says", "plan.study.description"),
        TableColumn("created_at", "timestamp", "when it was begun, in UTC"),
        TableColumn("bitbench", "string", "version that ran it"),
        TableColumn(
            "imported_from",
            "string",
            "tool whose files it was made from",
            "plan.imported_from.tool",
        ),
        TableColumn("metric", "string", "metric that is ranked", "plan.study.measure.metric"),
        TableColumn(
            "baseline", "string", "config that others are compared with", "plan.study.baseline"
        ),
        _make_column("host", "cpu_model", "string", "processor"),
        _make_column("host", "cores", "int32", "physical cores"),
        _make_column("host", "threads", "int32", "hardware threads"),
        _make_column("host", "memory_bytes", "int64", "memory of the machine"),
        TableColumn(
            "accelerators", "list<string>", "names of its devices", "host.accelerators.name"
        ),
        _make_column("host", "os", "string", "operating system"),
    ),
)
TRIALS = StudyTable(
    "one row per trial, warm-up included",
    "trials.jsonl",
    (
        FOLDER,
        STUDY,
        TableColumn("trial", "string", "its id", "id"),
        TableColumn("kind", "string", "measured or warmup; only measured ones count"),
        *CONFIG,
        TableColumn("workload", "string", "name of the workload", "point.workload"),
        TableColumn("concurrency", "int32", "requests in flight that the workload allows"),
        TableColumn("input_tokens", "int32", "tokens of a prompt; null where they vary"),
        TableColumn("output_tokens", "int32", "tokens of an answer; null where they vary"),
        TableColumn("instance", "string", "the start of the engine that it ran in", "instance_id"),
        TableColumn("block", "int32", "round of starts"),
        TableColumn("index", "int32", "number within its block"),
        TableColumn(
            "turn",
            "int32",
            "1: directly after another trial of its turn, and in no figure unless the report says",
        ),
        _STARTED,
        TableColumn("duration_s", "float64", "how long it took"),
        *_OUTCOME,
        *(
            _make_column("metrics", name, "float64", _find_meaning(name))
            for name in TrialMetrics.model_fields
        ),
        *(
            _make_column("memory", name, "int64", _find_meaning(name))
            for name in Memory.model_fields
        ),
        TableColumn("requests", "int32", "requests that were sent"),
        TableColumn("failed_requests", "int32", "those without a complete answer"),
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
        TableColumn("block", "int32", "round of starts"),
        TableColumn(
            "host",
            "string",
            "the machine it ran on; null of an import, and of a server that was running",
        ),
        _STARTED,
        TableColumn("ready_s", "float64", "from start to ready"),
        *_OUTCOME,
        _make_column("facts", "engine_version", "string", "as the engine reports it"),
        _make_column("facts", "kernels", "list<string>", "kernels it selected"),
        _make_column("facts", "command", "list<string>", "how it was started, without secrets"),
        _make_column("facts", "prefix_caching", "bool", "on or off"),
        _make_column("facts", "weight_bytes_loaded", "int64", "weights as loaded"),
        _make_column("facts", "kv_cache_bytes", "int64", "set aside for keys and values"),
        _make_column("facts", "kv_cache_tokens", "int64", "tokens that fit into it"),
        _make_column("facts", "kv_bytes_per_token", "int64", "keys and values of one token"),
        _make_column("facts", "weight_load_s", "float64", "loading of the weights"),
        _make_column("facts", "compile_s", "float64", "compilation"),
        TableColumn("idle_bytes", "int64", "host memory once ready", "memory.resident_bytes"),
    ),
)
REQUESTS = StudyTable(
    "one row per request",
    "requests/*.parquet",
    (
        FOLDER,
        STUDY,
        TableColumn("trial", "string", "id of its trial"),
        *(
            TableColumn(column.name, column.arrow_type, column.meaning)
            for column in REQUEST_COLUMNS
        ),
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
        TableColumn("duration_s", "float64", "how long it took"),
        *_OUTCOME,
        TableColumn("corpus", "string", "which text", "corpus.description"),
        TableColumn(
            "windows_hash",
            "string",
            "equal hashes: the same tokens were scored",
            "corpus.windows_hash",
        ),
        TableColumn("windows", "int32", "pieces of the text", "corpus.windows"),
        TableColumn(
            "condition",
            "string",
            "alone: what figures are from; restarted: for the noise floor",
        ),
        TableColumn("tokens", "int64", "tokens that were scored"),
        TableColumn(
            "perplexity",
            "float64",
            f"{_find_meaning('perplexity')} Over the windows of `window_tokens`.",
        ),
    ),
)
TABLES = {
    "studies": STUDIES,
    "trials": TRIALS,
    "instances": INSTANCES,
    "requests": REQUESTS,
    "quality": QUALITY,
}
