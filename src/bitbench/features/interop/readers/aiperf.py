"""`aiperf profile`: profile_export_aiperf.json, one block `{unit, avg, p50, …}` per metric."""

from bitbench.features.interop.readers.reading import (
    ImportedRun,
    Reading,
    imported_count,
    imported_field,
    imported_json_object,
    imported_number,
    imported_text,
    imported_text_or,
    imported_workload,
)
from bitbench.records.trial import TrialMetrics
from bitbench.study.base import Json
from bitbench.study.plan import UNKNOWN_ENGINE
from bitbench.study.study import EngineSetup

TOOL = "aiperf"
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def read(text: str) -> Reading:
    report = imported_json_object(text, TOOL, ("request_throughput",))
    reading = Reading(notes=["The file does not name the engine."])
    if failed := imported_count(imported_field(report, "error_request_count", "avg")):
        reading.notes.append(f"{failed} requests failed; figures are computed from the others.")
    settings = report.get("input_config")
    completed = imported_count(imported_field(report, "request_count", "avg"))
    load = imported_field(settings, "loadgen") or _measured_phase(imported_field(settings, "phases"))
    rate = imported_number(imported_field(load, "request_rate"))
    concurrency = imported_count(imported_field(load, "concurrency"))
    reading.runs.append(
        ImportedRun(
            imported_text_or(_model(settings), "unknown model"),
            EngineSetup(name=UNKNOWN_ENGINE, engine=UNKNOWN_ENGINE),
            imported_workload(
                concurrency=concurrency,
                input_tokens=imported_count(imported_field(report, "input_sequence_length", "avg")),
                output_tokens=imported_count(imported_field(report, "output_sequence_length", "avg")),
                requests=completed,
                rate=None if concurrency else rate,
            ),
            TrialMetrics(
                latency_s=_time(report, "request_latency"),
                ttft_s=_time(report, "time_to_first_token"),
                tpot_s=_time(report, "inter_token_latency"),
                itl_p99_s=_time(report, "inter_chunk_latency", "p99"),
                output_throughput=imported_number(imported_field(report, "output_token_throughput", "avg")),
                overall_throughput=imported_number(imported_field(report, "total_token_throughput", "avg")),
                request_throughput=imported_number(imported_field(report, "request_throughput", "avg")),
            ),
            requests=completed or 0,
            started_at=imported_text(report.get("start_time")),
            duration_s=_time(report, "benchmark_duration"),
            cause="No request was completed."
            if completed is None and not imported_field(report, "request_latency")
            else None,
        )
    )
    return reading


def _time(report: Json, name: str, figure: str = "avg") -> float | None:
    """Its inter-token latency is (last − first token) / (tokens − 1): what bitbench calls time per output token."""
    unit = imported_field(report, name, "unit")
    factor = _SECONDS.get(unit if isinstance(unit, str) else "ms")
    return None if factor is None else imported_number(imported_field(report, name, figure), factor)


def _measured_phase(phases: Json) -> Json:
    """Later versions have a list of phases instead of `loadgen`; the last that is no warm-up counts."""
    named = [phase for phase in phases if imported_field(phase, "name") != "warmup"] if isinstance(phases, list) else []
    return named[-1] if named else None


def _model(settings: Json) -> Json:
    """`endpoint.model_names` first, `models.items[].name` in later versions."""
    names = imported_field(settings, "endpoint", "model_names")
    if isinstance(names, list) and names:
        return names[0]
    items = imported_field(settings, "models", "items")
    return imported_field(items[0], "name") if isinstance(items, list) and items else None
