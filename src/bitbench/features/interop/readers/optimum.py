"""optimum-benchmark: benchmark.json with `config` and `report`; its iterations run in one process, as trials.

Prefill and decode are timed in separate passes, so what belongs to one iteration is put together by its number.
"""

from itertools import zip_longest

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
from bitbench.records.trial import InstanceFacts, Memory, TrialMetrics
from bitbench.study.base import Json
from bitbench.study.study import Argument, EngineSetup

TOOL = "optimum-benchmark"
MEGABYTE = 10**6
ARGUMENTS = ("device", "torch_dtype", "attn_implementation", "torch_compile", "quantization_scheme")


def read(text: str) -> Reading:
    content = imported_json_object(text, TOOL, ("config", "report"))
    config, report = content["config"], content["report"]
    backend, inputs = imported_field(config, "backend"), imported_field(config, "scenario", "input_shapes")
    batch = imported_count(imported_field(inputs, "batch_size"))
    generated = imported_count(imported_field(config, "scenario", "generate_kwargs", "max_new_tokens"))
    prompt = imported_count(imported_field(inputs, "sequence_length"))
    model = imported_text_or(imported_field(backend, "model"), "unknown model")
    scheme = imported_field(backend, "quantization_scheme")
    name = imported_text_or(imported_field(backend, "name"), "unknown")
    arguments: dict[str, Argument] = {
        key: value
        for key in ARGUMENTS
        if isinstance(value := imported_field(backend, key), (bool, int, float, str)) and value != ""
    }
    prefills, decodes = (_values(imported_field(report, phase)) for phase in ("prefill", "decode"))
    reading = Reading(
        notes=["Prefill and decode are timed in separate passes; latency is the sum of the two."],
        host=_host(imported_field(config, "environment")),
    )
    for prefill, decode in zip_longest(prefills, decodes):
        reading.runs.append(
            ImportedRun(
                f"{model}/{scheme}" if isinstance(scheme, str) else model,
                EngineSetup(name=name, engine=name, args=arguments),
                imported_workload(concurrency=batch, input_tokens=prompt, output_tokens=generated),
                _metrics(prefill, decode, batch, prompt, generated),
                memory=_memory(report),
                facts=InstanceFacts(
                    engine_version=imported_text(imported_field(backend, "version")),
                    weight_load_s=imported_number(imported_field(report, "load_model", "latency", "mean")),
                ),
                requests=batch or 0,
                model=model,
            )
        )
    return reading


def _values(phase: Json) -> list[float | None]:
    """One time per iteration; older files have only the mean."""
    values = imported_field(phase, "latency", "values")
    found = values if isinstance(values, list) and values else [imported_field(phase, "latency", "mean")]
    return [imported_number(value) for value in found]


def _metrics(
    prefill: float | None, decode: float | None, batch: int | None, prompt: int | None, generated: int | None
) -> TrialMetrics:
    """`decode` is the time of all tokens but the first."""
    if prefill is None or decode is None:
        return TrialMetrics(ttft_s=prefill)
    latency = prefill + decode
    tokens_out = batch * generated if batch and generated else None
    tokens_in = batch * prompt if batch and prompt else None
    return TrialMetrics(
        latency_s=latency,
        ttft_s=prefill,
        tpot_s=decode / (generated - 1) if generated and generated > 1 else None,
        output_throughput=tokens_out / latency if tokens_out else None,
        input_throughput=tokens_in / prefill if tokens_in else None,
        overall_throughput=(tokens_in + tokens_out) / latency if tokens_in and tokens_out else None,
        request_throughput=batch / latency if batch else None,
    )


def _memory(report: Json) -> Memory:
    def most(figure: str) -> int | None:
        known = [
            imported_number(imported_field(report, phase, "memory", figure), MEGABYTE)
            for phase in ("load_model", "prefill", "decode")
        ]
        return round(max((value for value in known if value is not None), default=0)) or None

    return Memory(peak_bytes=most("max_ram"), device_peak_bytes=most("max_process_vram"))


def _host(environment: Json) -> dict[str, Json]:
    gpus = imported_field(environment, "gpu")
    megabytes = imported_number(imported_field(environment, "cpu_ram_mb"), MEGABYTE)
    return {
        "cpu_model": imported_text(imported_field(environment, "cpu")),
        "threads": imported_count(imported_field(environment, "cpu_count")),
        "memory_bytes": round(megabytes) if megabytes else None,
        "os": imported_text(imported_field(environment, "platform")),
        "python": imported_text(imported_field(environment, "python_version")),
        "accelerators": [{"name": str(gpu)} for gpu in gpus] if isinstance(gpus, list) else [],
    }
