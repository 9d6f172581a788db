"""Compress one model: `python -I llmcompressor_worker.py JOB.json`.

It runs in the quantize environment. It writes lines of JSON to its output ({"event": "stage" |
"part" | "done" | "failed", …}) and everything else to its error stream. It imports nothing of
bitbench.
"""

import importlib.metadata
import re
import sys
from pathlib import Path
from typing import Any

# In isolated mode, Python searches no folder of ours.
sys.path += [str(Path(__file__).parents[2] / "util" / "isolated"), str(Path(__file__).parent)]
from calibration_text import calibration_text_pieces  # type: ignore[import-not-found]
from job_worker import (  # type: ignore[import-not-found]
    Json,
    Reports,
    job_worker_peak_bytes,
    run_as_job_worker,
)

# One scale for all keys of a layer and one for all values, from the calibration text.
KV_CACHE_SCHEME = {
    "num_bits": 8,
    "type": "float",
    "strategy": "tensor",
    "symmetric": True,
    "dynamic": False,
}
REPORTED_PACKAGES = ("llmcompressor", "compressed-tensors", "torch", "transformers")


def _work(job: Json, reports: Reports) -> Json:
    return {"facts": _run_llmcompressor(job, reports)}


def _run_llmcompressor(job: Json, reports: Reports) -> Json:
    import torch
    from llmcompressor import oneshot
    from llmcompressor.modeling.moe.linearize import linearize_moe
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(job["seed"])
    has_accelerator = torch.accelerator.is_available()
    if not has_accelerator:
        _leave_memory_unpinned()
    tokenizer = AutoTokenizer.from_pretrained(job["model"], local_files_only=True)
    dtype = torch.bfloat16 if has_accelerator or _has_bf16() else torch.float32
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=dtype, local_files_only=True)
    linearize_moe(model)  # experts become linear layers, which are the only ones that are rounded
    modifiers = [MODIFIERS[step["step"]](step) for step in job["steps"]]
    report_parts(reports)
    options: Json = {}
    samples: list[Json] = []
    unreached: set[str] = set()
    if job["calibration"]:
        samples = _make_calibration_samples(job, tokenizer)
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
    rounded: list[str] = []
    for modifier in modifiers:
        rounded += getattr(modifier, "_rtn_fallback_module_names", [])
    return {
        "versions": {name: importlib.metadata.version(name) for name in REPORTED_PACKAGES},
        "peak_memory_bytes": job_worker_peak_bytes(),
        "samples": len(samples) or None,
        "tokens": sum(sample["input_ids"].shape[1] for sample in samples) or None,
        "unreached": sorted(unreached),
        "rounded_instead": rounded,
    }


def _has_bf16() -> bool:
    """Return True if this processor has bf16 instructions.

    Without them, calibration in bf16 takes several times as long.
    """
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(
        Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    )


def _make_smoothquant_modifier(step: Json) -> Any:
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    return SmoothQuantModifier(smoothing_strength=step["strength"])


def _make_sparsegpt_modifier(step: Json) -> Any:
    from llmcompressor.modifiers.pruning.sparsegpt import SparseGPTModifier

    ignore = [llmcompressor_ignore_pattern(name) for name in step["ignore"]]
    return SparseGPTModifier(sparsity=step["sparsity"], mask_structure=step["mask"], ignore=ignore)


def _make_awq_modifier(step: Json) -> Any:
    from llmcompressor.modifiers.transform.awq import AWQModifier

    return AWQModifier(n_grid=step["grid"], duo_scaling=step["duo_scaling"])


def _make_gptq_modifier(step: Json) -> Any:
    from llmcompressor.modifiers.gptq import GPTQModifier

    return GPTQModifier(
        block_size=step["block_size"],
        dampening_frac=step["dampening"],
        **llmcompressor_layer_options(step),
    )


def _make_quantization_modifier(step: Json) -> Any:
    from llmcompressor.modifiers.quantization import QuantizationModifier

    return QuantizationModifier(**llmcompressor_layer_options(step))


# The modifiers of llm-compressor with a step's settings.
MODIFIERS = {
    "smoothquant": _make_smoothquant_modifier,
    "sparsegpt": _make_sparsegpt_modifier,
    "awq": _make_awq_modifier,
    "gptq": _make_gptq_modifier,
    "quantize": _make_quantization_modifier,
}


def llmcompressor_layer_options(step: Json) -> Json:
    """Return the options for the layers and the KV cache of a step."""
    layers: Json = {"ignore": step["ignore"]}
    if step.get("preset"):
        layers |= {"scheme": step["preset"], "targets": ["Linear"]}
    else:
        layers |= {"config_groups": {"group_0": _make_scheme(step)}}
    if step.get("kv_cache"):
        layers |= {"kv_cache_scheme": KV_CACHE_SCHEME}
    return layers


def llmcompressor_ignore_pattern(name: str) -> str:
    """Return a pattern for an ignored layer, or the pattern as it is.

    SparseGPT names a layer `lm_head.`, with a dot, so it would prune the layer despite `lm_head`.
    """
    return name if name.startswith("re:") else rf"re:{re.escape(name)}\.?$"


def _make_scheme(step: Json) -> Json:
    """Return the scheme of weights, per group or per row, and of activations, if they are rounded.

    Activations are rounded per token while the model runs.
    """
    strategy = "group" if step["group_size"] else "channel"
    weights = {
        "num_bits": step["weight_bits"],
        "type": step["type"],
        "symmetric": step["symmetric"],
        "strategy": strategy,
        "group_size": step["group_size"],
    }
    activations = None
    if step["activation_bits"] == 8:
        activations = {
            "num_bits": 8,
            "type": step["type"],
            "symmetric": True,
            "strategy": "token",
            "dynamic": True,
        }
    return {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": activations,
    }


def _make_calibration_samples(job: Json, tokenizer: Any) -> list[Json]:
    import torch

    tensors = [torch.tensor([piece]) for piece in calibration_text_pieces(job, tokenizer)]
    return [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in tensors]


def watch_llmcompressor_experts(model: Any) -> set[str]:
    """Return the names of a mixture's experts. Each leaves the set when its first token comes."""
    unreached: set[str] = set()

    def watch(name: str, module: Any) -> None:
        def discard_name(_: Any, inputs: Any) -> None:
            if inputs[0].numel():
                unreached.discard(name)

        first = next(filter(_is_leaf_with_weight, module.modules()))
        first.register_forward_pre_hook(discard_name)

    for name, module in model.named_modules():
        if re.search(r"\.experts\.\d+$", name):
            unreached.add(name)
            watch(name, module)
    return unreached


def _is_leaf_with_weight(layer: Any) -> bool:
    return not list(layer.children()) and hasattr(layer, "weight")


def _leave_memory_unpinned() -> None:
    """Turn off pinning, since AWQ pins its cache and that fails without an accelerator."""
    from llmcompressor.pipelines.cache import IntermediatesCache

    IntermediatesCache.pin_memory = lambda *_, **__: None


def report_parts(reports: Reports) -> None:
    """Report the parts of the model as each modifier reaches them.

    Each modifier goes through the model once, part by part, or without calibration in one part.
    """
    from llmcompressor.core import LifecycleCallbacks
    from llmcompressor.pipelines.sequential import pipeline

    trace = pipeline.trace_subgraphs
    start = LifecycleCallbacks.calibration_start
    part_end = LifecycleCallbacks.sequential_epoch_end
    state: Json = {"step": -1, "part": 0, "parts": 1, "traced": None}

    def send() -> None:
        reports.send("part", step=state["step"], part=state["part"], parts=state["parts"])

    def traced(*arguments: Any, **options: Any) -> Any:
        subgraphs = trace(*arguments, **options)
        state["traced"] = len(subgraphs)
        return subgraphs

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
