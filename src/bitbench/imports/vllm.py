"""`vllm bench serve --save-result` (one object) or `--append-result` (one object per line)."""

from collections.abc import Mapping
from datetime import datetime

from bitbench.core.asked.study import EngineSetup
from bitbench.core.asked.workload import Workload
from bitbench.core.base import Json
from bitbench.core.recorded.trial import TrialMetrics
from bitbench.imports.reading import ImportedRun, Reading, number, objects, whole, words, workload

TOOL = "vllm bench serve"
MILLISECOND = 1e-3


def read(text: str) -> Reading:
    found = objects(text, TOOL, ("model_id", "completed", "duration", "request_throughput"))
    reading = Reading(runs=[_run(one) for one in found])
    for one in found:
        if failed := whole(one.get("failed")):
            reading.notes.append(
                f"{failed} of {one.get('num_prompts')} requests failed; figures are computed from the others."
            )
    reading.notes.append("Latencies count from the actual send, not from the planned one.")
    return reading


def _run(one: Mapping[str, Json]) -> ImportedRun:
    backend = words(one.get("label") or one.get("backend"), "unknown")
    completed = whole(one.get("completed"))
    return ImportedRun(
        words(one["model_id"], "unknown model"),
        EngineSetup(name=backend, engine=backend),
        served_shape(one, completed),
        served_metrics(one, latency="mean_e2el_ms", overall="total_token_throughput"),
        requests=completed or 0,
        started_at=_date(one.get("date")),
        duration_s=number(one.get("duration")),
        cause=None if completed else "No request was completed.",
    )


def served_shape(one: Mapping[str, Json], completed: int | None) -> Workload:
    """As vllm and sglang write it: a limit of requests in flight, or a rate, or all at once; lengths as means."""
    prompts = whole(one.get("num_prompts")) or completed
    rate = number(one.get("request_rate"))  # "inf" is none
    limit = whole(one.get("max_concurrency"))
    return workload(
        concurrency=limit or (None if rate else prompts),
        input_tokens=_each(one.get("total_input_tokens"), completed),
        output_tokens=_each(one.get("total_output_tokens"), completed),
        requests=prompts,
        rate=rate,
    )


def served_metrics(one: Mapping[str, Json], *, latency: str, overall: str) -> TrialMetrics:
    """As vllm and sglang write them, but for the names of two fields."""
    return TrialMetrics(
        latency_s=number(one.get(latency), MILLISECOND),
        ttft_s=number(one.get("mean_ttft_ms"), MILLISECOND),
        tpot_s=number(one.get("mean_tpot_ms"), MILLISECOND),
        itl_p99_s=number(one.get("p99_itl_ms"), MILLISECOND),
        output_throughput=number(one.get("output_throughput")),
        overall_throughput=number(one.get(overall)),
        request_throughput=number(one.get("request_throughput")),
    )


def _each(total: Json, completed: int | None) -> int | None:
    known = number(total)
    return round(known / completed) or None if known and completed else None


def _date(value: Json) -> str | None:
    """Local time of a machine that is not known: kept without a zone."""
    try:
        return datetime.strptime(value, "%Y%m%d-%H%M%S").isoformat() if isinstance(value, str) else None
    except ValueError:
        return None
