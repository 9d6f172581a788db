"""`vllm bench serve --save-result` (one object) or `--append-result` (one object per line)."""

from collections.abc import Mapping
from datetime import datetime

from bitbench.features.interop.readers.reading import (
    ImportedRun,
    Reading,
    imported_count,
    imported_json_objects,
    imported_number,
    imported_text_or,
    imported_workload,
)
from bitbench.records.trial import TrialMetrics
from bitbench.study.base import Json
from bitbench.study.study import EngineSetup
from bitbench.study.workload import Workload

TOOL = "vllm bench serve"
MILLISECOND = 1e-3


def read(text: str) -> Reading:
    found = imported_json_objects(text, TOOL, ("model_id", "completed", "duration", "request_throughput"))
    reading = Reading(runs=[_run(result) for result in found])
    for result in found:
        if failed := imported_count(result.get("failed")):
            reading.notes.append(
                f"{failed} of {result.get('num_prompts')} requests failed; figures are computed from the others."
            )
    reading.notes.append("Latencies count from the actual send, not from the planned one.")
    return reading


def _run(result: Mapping[str, Json]) -> ImportedRun:
    backend = imported_text_or(result.get("label") or result.get("backend"), "unknown")
    completed = imported_count(result.get("completed"))
    return ImportedRun(
        imported_text_or(result["model_id"], "unknown model"),
        EngineSetup(name=backend, engine=backend),
        imported_vllm_workload(result, completed),
        imported_vllm_metrics(result, latency="mean_e2el_ms", overall="total_token_throughput"),
        requests=completed or 0,
        started_at=_date(result.get("date")),
        duration_s=imported_number(result.get("duration")),
        cause=None if completed else "No request was completed.",
    )


def imported_vllm_workload(result: Mapping[str, Json], completed: int | None) -> Workload:
    """As vllm and sglang write it: a limit of requests in flight, or a rate, or all at once; lengths as means."""
    prompts = imported_count(result.get("num_prompts")) or completed
    rate = imported_number(result.get("request_rate"))  # "inf" is none
    limit = imported_count(result.get("max_concurrency"))
    return imported_workload(
        concurrency=limit or (None if rate else prompts),
        input_tokens=_each(result.get("total_input_tokens"), completed),
        output_tokens=_each(result.get("total_output_tokens"), completed),
        requests=prompts,
        rate=rate,
    )


def imported_vllm_metrics(result: Mapping[str, Json], *, latency: str, overall: str) -> TrialMetrics:
    """As vllm and sglang write them, but for the names of two fields."""
    return TrialMetrics(
        latency_s=imported_number(result.get(latency), MILLISECOND),
        ttft_s=imported_number(result.get("mean_ttft_ms"), MILLISECOND),
        tpot_s=imported_number(result.get("mean_tpot_ms"), MILLISECOND),
        itl_p99_s=imported_number(result.get("p99_itl_ms"), MILLISECOND),
        output_throughput=imported_number(result.get("output_throughput")),
        overall_throughput=imported_number(result.get(overall)),
        request_throughput=imported_number(result.get("request_throughput")),
    )


def _each(total: Json, completed: int | None) -> int | None:
    known = imported_number(total)
    return round(known / completed) or None if known and completed else None


def _date(value: Json) -> str | None:
    """Local time of a machine that is not known: kept without a zone."""
    try:
        return datetime.strptime(value, "%Y%m%d-%H%M%S").isoformat() if isinstance(value, str) else None
    except ValueError:
        return None
