"""`guidellm benchmark --output-path benchmarks.json`: a report with one benchmark per load that was tried."""

from bitbench.features.interop.readers.reading import (
    ImportedRun,
    Reading,
    imported_count,
    imported_field,
    imported_json_object,
    imported_number,
    imported_text_or,
    imported_workload,
)
from bitbench.records.trial import TrialMetrics
from bitbench.study.base import Json
from bitbench.study.plan import UNKNOWN_ENGINE
from bitbench.study.study import EngineSetup
from bitbench.study.workload import Workload

TOOL = "guidellm"
MILLISECOND = 1e-3
ONE_AT_A_TIME = "synchronous"


def read(text: str) -> Reading:
    report = imported_json_object(text, TOOL, ("benchmarks",))
    benchmarks = report["benchmarks"] if isinstance(report["benchmarks"], list) else []
    reading = Reading(notes=["Figures are means over successful requests; the file does not name the engine."])
    for number_of, benchmark in enumerate(benchmarks, start=1):
        reading.runs.append(_run(report, benchmark))
        failed = imported_count(imported_field(benchmark, "metrics", "request_totals", "errored"))
        if failed:
            reading.notes.append(
                f"Benchmark {number_of}: {failed} requests failed; figures are computed from the others."
            )
    return reading


def _run(report: Json, benchmark: Json) -> ImportedRun:
    metrics = imported_field(benchmark, "metrics")
    completed = imported_count(imported_field(metrics, "request_totals", "successful"))
    model = (
        imported_field(benchmark, "config", "backend", "model")
        or imported_field(benchmark, "config", "model")
        or imported_field(report, "args", "model")
    )
    percentiles = imported_field(metrics, "inter_token_latency_ms", "successful", "percentiles")
    return ImportedRun(
        imported_text_or(model, "unknown model"),
        EngineSetup(name=UNKNOWN_ENGINE, engine=UNKNOWN_ENGINE),
        _shape(benchmark, completed),
        TrialMetrics(
            latency_s=_mean(metrics, "request_latency"),
            ttft_s=_mean(metrics, "time_to_first_token_ms", MILLISECOND),
            tpot_s=_mean(metrics, "inter_token_latency_ms", MILLISECOND),
            itl_p99_s=imported_number(imported_field(percentiles, "p99"), MILLISECOND),
            output_throughput=_mean(metrics, "output_tokens_per_second"),
            overall_throughput=_mean(metrics, "tokens_per_second"),
            request_throughput=_mean(metrics, "requests_per_second"),
        ),
        requests=completed or 0,
        duration_s=imported_number(imported_field(benchmark, "duration")),
        cause=None if completed else "No request was completed.",
    )


def _mean(metrics: Json, name: str, factor: float = 1.0) -> float | None:
    return imported_number(imported_field(metrics, name, "successful", "mean"), factor)


def _shape(benchmark: Json, completed: int | None) -> Workload:
    strategy = imported_field(benchmark, "config", "strategy")
    kind = imported_field(strategy, "type_")
    streams = (
        1
        if kind == ONE_AT_A_TIME
        else imported_count(imported_field(strategy, "streams") or imported_field(strategy, "max_concurrency"))
    )
    return imported_workload(
        concurrency=streams,
        input_tokens=imported_count(_mean(imported_field(benchmark, "metrics"), "prompt_token_count")),
        output_tokens=imported_count(_mean(imported_field(benchmark, "metrics"), "output_token_count")),
        requests=completed,
        rate=None if streams else imported_number(imported_field(strategy, "rate")),
    )
