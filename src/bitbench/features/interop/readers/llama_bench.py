"""`llama-bench -o json` (an array) or `-o jsonl`: one object per test, with every repetition in it.

A test processes a prompt (pp), generates (tg), or does both (pg); repetitions run in one process, so they are trials of
one start.
"""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from bitbench.features.interop.readers.reading import (
    ImportedRun,
    Reading,
    imported_count,
    imported_json_objects,
    imported_name,
    imported_number,
    imported_text,
    imported_text_or,
    imported_workload,
)
from bitbench.records.trial import InstanceFacts, TrialMetrics
from bitbench.study.base import Json
from bitbench.study.study import Argument, EngineSetup

TOOL = "llama-bench"
NANOSECOND = 1e-9
ARGUMENTS = ("n_threads", "n_gpu_layers", "n_batch", "n_ubatch", "type_k", "type_v", "flash_attn", "split_mode")


def read(text: str) -> Reading:
    found = imported_json_objects(text, TOOL, ("model_filename", "n_prompt", "n_gen", "avg_ns"))
    first = found[0]
    host: dict[str, Json] = {"cpu_model": imported_text(first.get("cpu_info"))}
    if gpu := imported_text(first.get("gpu_info")):
        host["accelerators"] = [{"name": gpu}]
    notes = ["No server and no requests: a test is one batch of tokens, without sampling or tokenizing."]
    if not all(test.get("samples_ns") for test in found):
        notes.append("The file lacks single repetitions (samples_ns): one figure per test, no spread.")
    return Reading(runs=[run for test in found for run in _runs(test)], notes=notes, host=host)


def _runs(test: Mapping[str, Json]) -> Iterator[ImportedRun]:
    prompt, generated, depth = (imported_count(test.get(key)) or 0 for key in ("n_prompt", "n_gen", "n_depth"))
    parts = [f"pp{prompt}" if prompt else "", f"tg{generated}" if generated else "", f"d{depth}" if depth else ""]
    shape = imported_workload(
        concurrency=1,
        input_tokens=prompt or None,
        output_tokens=generated or None,
        name=imported_name("-".join(part for part in parts if part), "test"),
    )
    arguments: dict[str, Argument] = {
        name: test[name] for name in ARGUMENTS if isinstance(test.get(name), (bool, int, float, str))
    }
    backend = imported_text_or(test.get("backends"), "unknown backend")
    for nanoseconds in test.get("samples_ns") or [test["avg_ns"]]:
        seconds = imported_number(nanoseconds, NANOSECOND)
        yield ImportedRun(
            PurePosixPath(imported_text_or(test["model_filename"], "unknown model")).name,
            EngineSetup(name=f"llama.cpp, {backend}", engine="llama.cpp", args=arguments),
            shape,
            _metrics(prompt, generated, seconds),
            facts=InstanceFacts(engine_version=_version(test), kernels=(backend,)),
            requests=1,
            weight_bytes=imported_count(test.get("model_size")),
            started_at=imported_text(test.get("test_time")),
            duration_s=seconds,
        )


def _metrics(prompt: int, generated: int, seconds: float | None) -> TrialMetrics:
    if seconds is None:
        return TrialMetrics()
    only_prompt, only_output = prompt and not generated, generated and not prompt
    return TrialMetrics(
        latency_s=seconds,
        ttft_s=seconds if only_prompt else None,
        tpot_s=seconds / generated if only_output else None,
        input_throughput=prompt / seconds if only_prompt else None,
        output_throughput=generated / seconds if generated else None,
        overall_throughput=(prompt + generated) / seconds,
    )


def _version(test: Mapping[str, Json]) -> str | None:
    known = [str(test[key]) for key in ("build_number", "build_commit") if test.get(key)]
    return " ".join(known) or None
