"""Compresses one model: `python -I llmcompressor_worker.py JOB.json`, run in the quantize environment.

Writes lines of JSON to its output ({"event": "stage" | "part" | "done" | "failed", …}) and everything else to its
error stream. Imports nothing of bitbench.
"""

import importlib.metadata
import re
import sys
from pathlib import Path
from typing import Any

# Run in isolated mode, python looks nowhere else.
sys.path += [str(Path(__file__).parents[2] / "util" / "isolated"), str(Path(__file__).parent)]
from calibration_text import calibration_text_pieces  # type: ignore[import-not-found]
from job_worker import Json, Reports, job_worker_peak_bytes, run_as_job_worker  # type: ignore[import-not-found]

# One scale for all keys of a layer and one for all values, found on the calibration text.
KV_CACHE_SCHEME = {
    "num_bits": 8,
    "type": "float",
    "strategy": "tensor",
    "symmetric": True,
    "dynamic": False,
}
REPORTED_PACKAGES = ("llmcompressor", "compressed-tensors", "torch", "transformers")


def _work(job: Json, reports: Reports) -> Json:
    return {"facts": _compress_with_llmcompressor(job, reports)}


def _compress_with_llmcompressor(job: Json, reports: Reports) -> Json:
    import torch
    from llmcompressor import oneshot
    from llmcompressor.modeling.moe.linearize import linearize_moe
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(job["seed"])
    if not torch.accelerator.is_available():
        _leave_memory_unpinned()
    tokenizer = AutoTokenizer.from_pretrained(job["model"], local_files_only=True)
    computed_in = (
        torch.bfloat16 if torch.accelerator.is_available() or _has_bf16() else torch.float32
    )
    model = AutoModelForCausalLM.from_pretrained(
        job["model"], dtype=computed_in, local_files_only=True
    )
    linearize_moe(model)  # experts become linear layers, which alone are rounded
    modifiers = [MODIFIERS[step["step"]](step) for step in job["steps"]]
    report_parts(reports)
    options: Json = {}
    samples: list[Json] = []
    unreached: set[str] = set()
    if job["calibration"]:
        samples = _calibration_samples(job, tokenizer)
        loader = torch.utils.data.DataLoader(samples, batch_size=None)
        unreached = watch_llmcompressor_experts(model)
        options = {
            "dataset": loader,
            "num_calibration_samples": len(samples),
            "max_seq_length": job["tokens"],
        }
    oneshot(model=model, processor=tokenizer, recipe=modifiers, **options)
    reports.send("stage", name="writing the checkpoint")
    model.to(torch.bfloat16)
    model.save_pretrained(job["checkpoint"], save_compressed=True)
    tokenizer.save_pretrained(job["checkpoint"])
    return {
        "versions": {name: importlib.metadata.version(name) for name in REPORTED_PACKAGES},
        "peak_memory_bytes": job_worker_peak_bytes(),
        "samples": len(samples) or None,
        "tokens": sum(sample["input_ids"].shape[1] for sample in samples) or None,
        "unreached": sorted(unreached),
        "rounded_instead": [
            name for each in modifiers for name in getattr(each, "_rtn_fallback_module_names", [])
        ],
    }


def _has_bf16() -> bool:
    """Return whether this processor has bf16 instructions. Without them, calibration takes several times as long."""
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(
        Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    )


def _smoothquant_of(step: Json) -> Any:
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    return SmoothQuantModifier(smoothing_strength=step["strength"])


def _sparsegpt_of(step: Json) -> Any:
    from llmcompressor.modifiers.pruning.sparsegpt import SparseGPTModifier

    ignore = [llmcompressor_ignore_pattern(name) for name in step["ignore"]]
    return SparseGPTModifier(sparsity=step["sparsity"], mask_structure=step["mask"], ignore=ignore)


def _awq_of(step: Json) -> Any:
    from llmcompressor.modifiers.transform.awq import AWQModifier

    return AWQModifier(n_grid=step["grid"], duo_scaling=step["duo_scaling"])


def _gptq_of(step: Json) -> Any:
    from llmcompressor.modifiers.gptq import GPTQModifier

    return GPTQModifier(
        block_size=step["block_size"],
        dampening_frac=step["dampening"],
        **llmcompressor_layer_options(step),
    )


def _quantize_of(step: Json) -> Any:
    from llmcompressor.modifiers.quantization import QuantizationModifier

    return QuantizationModifier(**llmcompressor_layer_options(step))


# What llm-compressor calls a step, with its settings.
MODIFIERS = {
    "smoothquant": _smoothquant_of,
    "sparsegpt": _sparsegpt_of,
    "awq": _awq_of,
    "gptq": _gptq_of,
    "quantize": _quantize_of,
}


def llmcompressor_layer_options(step: Json) -> Json:
    """What becomes of which layers, and of the KV cache."""
    layers: Json = {"ignore": step["ignore"]}
    if step.get("preset"):
        layers |= {"scheme": step["preset"], "targets": ["Linear"]}
    else:
        layers |= {"config_groups": {"group_0": _scheme_of(step)}}
    if step.get("kv_cache"):
        layers |= {"kv_cache_scheme": KV_CACHE_SCHEME}
    return layers


def llmcompressor_ignore_pattern(name: str) -> str:
    """SparseGPT calls a layer `lm_head.`, with a dot, so that `lm_head` alone is not found and would be pruned."""
    return name if name.startswith("re:") else rf"re:{re.escape(name)}\.?$"


def _scheme_of(step: Json) -> Json:
    """Weights per group or per row; activations, where they are rounded at all, per token while the model runs."""
    weights = {
        "num_bits": step["weight_bits"],
        "type": step["type"],
        "symmetric": step["symmetric"],
        "strategy": "group" if step["group_size"] else "channel",
        "group_size": step["group_size"],
    }
    activations = {
        "num_bits": 8,
        "type": step["type"],
        "symmetric": True,
        "strategy": "token",
        "dynamic": True,
    }
    rounded = step["activation_bits"] == 8
    return {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": activations if rounded else None,
    }


def _calibration_samples(job: Json, tokenizer: Any) -> list[Json]:
    import torch

    tensors = [torch.tensor([piece]) for piece in calibration_text_pieces(job, tokenizer)]
    return [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in tensors]


def watch_llmcompressor_experts(model: Any) -> set[str]:
    """The experts of a mixture; each leaves the set when its first token comes."""
    waiting = {
        name: module
        for name, module in model.named_modules()
        if re.search(r"\.experts\.\d+$", name)
    }
    unreached = set(waiting)

    def watch(name: str, module: Any) -> None:
        def came(_: Any, inputs: Any) -> None:
            if inputs[0].numel():
                unreached.discard(name)

        first = next(
            layer
            for layer in module.modules()
            if not list(layer.children()) and hasattr(layer, "weight")
        )
        first.register_forward_pre_hook(came)

    for name, module in waiting.items():
        watch(name, module)
    return unreached


def _leave_memory_unpinned() -> None:
    """AWQ pins what it caches, which fails on a machine without an accelerator."""
    from llmcompressor.pipelines.cache import IntermediatesCache

    IntermediatesCache.pin_memory = lambda *_, **__: None


def report_parts(reports: Reports) -> None:
    """Each modifier goes through the model once, part by part; without calibration in a single part."""
    from llmcompressor.core import LifecycleCallbacks
    from llmcompressor.pipelines.sequential import pipeline

    trace, start, part_end = (
        pipeline.trace_subgraphs,
        LifecycleCallbacks.calibration_start,
        LifecycleCallbacks.sequential_epoch_end,
    )
    state: Json = {"step": -1, "part": 0, "parts": 1, "traced": None}

    def send() -> None:
        reports.send("part", step=state["step"], part=state["part"], parts=state["parts"])

    def traced(*arguments: Any, **options: Any) -> Any:
        found = trace(*arguments, **options)
        state["traced"] = len(found)
        return found

    def started(*arguments: Any, **options: Any) -> Any:
        state.update(step=state["step"] + 1, part=0, parts=state["traced"] or 1, traced=None)
        send()
        return start(*arguments, **options)

    def part_ended(*arguments: Any, **options: Any) -> Any:
        result = part_end(*arguments, **options)
        state["part"] += 1
        send()
        return result

    pipeline.trace_subgraphs = traced
    LifecycleCallbacks.calibration_start = staticmethod(started)
    LifecycleCallbacks.sequential_epoch_end = staticmethod(part_ended)


if __name__ == "__main__":
    sys.exit(run_as_job_worker(sys.argv[1], _work))
