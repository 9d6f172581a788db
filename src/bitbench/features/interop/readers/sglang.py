"""`sglang.bench_serving --output-file`: one object per line. Latencies count from the real send."""

from collections.abc import Mapping

from bitbench.features.interop.readers.reading import (
    ImportedRun,
    Reading,
    imported_count,
    imported_field,
    imported_json_objects,
    imported_number,
    imported_text,
    imported_text_or,
)
from bitbench.features.interop.readers.vllm import imported_vllm_metrics, imported_vllm_workload
from bitbench.records.trial import InstanceFacts
from bitbench.study.base import Json
from bitbench.study.study import EngineSetup

TOOL = "sglang.bench_serving"


def read(text: str) -> Reading:
    found = imported_json_objects(text, TOOL, ("backend", "completed", "duration", "output_throughput"))
    return Reading(
        runs=[_run(result) for result in found],
        notes=[
            "Latencies count from the actual send, not from the planned one.",
            "Its input throughput is input tokens / duration; bitbench divides by the time spent waiting for first "
            "tokens, so it was not imported.",
        ],
    )


def _run(result: Mapping[str, Json]) -> ImportedRun:
    backend = imported_text_or(result["backend"], "unknown")
    completed = imported_count(result["completed"])
    server = result.get("server_info")
    model = imported_field(server, "served_model_name") or imported_field(server, "model_path") or result.get("tag")
    return ImportedRun(
        imported_text_or(model, "unknown model"),
        EngineSetup(name=backend, engine=backend),
        imported_vllm_workload(result, completed),
        imported_vllm_metrics(result, latency="mean_e2e_latency_ms", overall="total_throughput"),
        facts=InstanceFacts(engine_version=imported_text(imported_field(server, "version"))),
        requests=completed or 0,
        duration_s=imported_number(result["duration"]),
        cause=None if completed else "No request was completed.",
    )
