"""`aiperf profile`: profile_export_aiperf.json, one block `{unit, avg, p50, …}` per metric."""

from bitbench.features.interop.readers.reading import (
    ImportedRun,
    Reading,
    at,
    number,
    one_object,
    text_or_none,
    whole,
    words,
    workload,
)
from bitbench.records.trial import TrialMetrics
from bitbench.study.base import Json
from bitbench.study.plan import UNKNOWN_ENGINE
from bitbench.study.study import EngineSetup

TOOL = "aiperf"
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def read(text: str) -> Reading:
    report = one_object(text, TOOL, ("request_throughput",))
    reading = Reading(notes=["The file does not name the engine."])
    if failed := whole(at(report, "error_request_count", "avg")):
        reading.notes.append(f"{failed} requests failed; figures are computed from the others.")
    settings = report.get("input_config")
    completed = whole(at(report, "request_count", "avg"))
    load = at(settings, "loadgen") or _measured_phase(at(settings, "phases"))
    rate = number(at(load, "request_rate"))
    concurrency = whole(at(load, "concurrency"))
    reading.runs.append(
        ImportedRun(
            words(_model(settings), "unknown model"),
            EngineSetup(name=UNKNOWN_ENGINE, engine=UNKNOWN_ENGINE),
            workload(
                concurrency=concurrency,
                input_tokens=whole(at(report, "input_sequence_length", "avg")),
                output_tokens=whole(at(report, "output_sequence_length", "avg")),
                requests=completed,
                rate=None if concurrency else rate,
            ),
            TrialMetrics(
                latency_s=_time(report, "request_latency"),
                ttft_s=_time(report, "time_to_first_token"),
                tpot_s=_time(report, "inter_token_latency"),
                itl_p99_s=_time(report, "inter_chunk_latency", "p99"),
                output_throughput=number(at(report, "output_token_throughput", "avg")),
                overall_throughput=number(at(report, "total_token_throughput", "avg")),
                request_throughput=number(at(report, "request_throughput", "avg")),
            ),
            requests=completed or 0,
            started_at=text_or_none(report.get("start_time")),
            duration_s=_time(report, "benchmark_duration"),
            cause="No request was completed." if completed is None and not at(report, "request_latency") else None,
        )
    )
    return reading


def _time(report: Json, name: str, figure: str = "avg") -> float | None:
    """Its inter-token latency is (last − first token) / (tokens − 1): what bitbench calls time per output token."""
    unit = at(report, name, "unit")
    factor = _SECONDS.get(unit if isinstance(unit, str) else "ms")
    return None if factor is None else number(at(report, name, figure), factor)


def _measured_phase(phases: Json) -> Json:
    """Later versions have a list of phases instead of `loadgen`; the last that is no warm-up counts."""
    named = [phase for phase in phases if at(phase, "name") != "warmup"] if isinstance(phases, list) else []
    return named[-1] if named else None


def _model(settings: Json) -> Json:
    """`endpoint.model_names` first, `models.items[].name` in later versions."""
    names = at(settings, "endpoint", "model_names")
    if isinstance(names, list) and names:
        return names[0]
    items = at(settings, "models", "items")
    return at(items[0], "name") if isinstance(items, list) and items else None
