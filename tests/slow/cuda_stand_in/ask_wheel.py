"""Asks vLLM's CUDA wheel what it would do on a GPU, in its own environment, behind the stand-in for NVML.

`python -I ask_wheel.py kernels MODEL ANSWER`: which kernel it chooses for each scheme, which attention for each KV
cache, and from which compute capability on its methods run.
`python -I ask_wheel.py command MODEL ANSWER WORDS`: what its parser and configuration make of a command line (JSON).
MODEL is a folder with a config.json; ANSWER is the JSON file that is written. Nothing is computed, no GPU is needed.
"""

import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

SAID: list[str] = []
LAYER = "model.layers.0.mlp.down_proj"
COLUMNS, ROWS = 9728, 2560  # of that layer in Qwen3-4B
KV_CACHES = ("auto", "fp8", "fp8_e5m2", "int8_per_token_head", "nvfp4", "turboquant_4bit_nc")
PRESETS = {
    "FP8": "float-quantized",
    "FP8_BLOCK": "float-quantized",
    "NVFP4": "nvfp4-pack-quantized",
    "NVFP4A16": "nvfp4-pack-quantized",
    "MXFP4": "mxfp4-pack-quantized",
    "MXFP4A16": "mxfp4-pack-quantized",
    "MXFP8": "mxfp8-quantized",
    "W4AFP8": "pack-quantized",
    "W4A8": "int-quantized",
}


class _Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        SAID.append(record.getMessage())


def schemes() -> dict[str, tuple[Any, Any, str]]:
    """Weights, activations and format of each question."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES

    def weights(
        bits: int, group: int | None = None, symmetric: bool = True, kind: str = "int"
    ) -> Any:
        strategy = "group" if group else "channel"
        return QuantizationArgs(
            num_bits=bits, type=kind, symmetric=symmetric, strategy=strategy, group_size=group
        )

    def per_token(kind: str) -> Any:
        return QuantizationArgs(
            num_bits=8, type=kind, symmetric=True, strategy="token", dynamic=True
        )

    asked = {
        "w8a8-int": (weights(8), per_token("int"), "int-quantized"),
        "w8a16-int": (weights(8), None, "pack-quantized"),
        "w4a16-g64": (weights(4, 64), None, "pack-quantized"),
        "w4a16-g128": (weights(4, 128), None, "pack-quantized"),
        "w4a16-g64-asym": (weights(4, 64, symmetric=False), None, "pack-quantized"),
        "w3a16-g64": (weights(3, 64), None, "pack-quantized"),
        "w2a16-g64": (weights(2, 64), None, "pack-quantized"),
        "fp8-dynamic": (weights(8, kind="float"), per_token("float"), "float-quantized"),
    }
    for name, form in PRESETS.items():
        preset = PRESET_SCHEMES[name]
        asked[name] = preset["weights"], preset.get("input_activations"), form
    return asked


def forget_what_was_said() -> None:
    """vLLM says some things once per process; each question shall hear them."""
    from vllm import logger
    from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
        compressed_tensors_wNa16,
    )

    SAID.clear()
    for name in ("_print_info_once", "_print_warning_once", "_print_debug_once"):
        once = getattr(logger, name, None)
        if hasattr(once, "cache_clear"):
            once.cache_clear()
    compressed_tensors_wNa16.CompressedTensorsWNA16._kernel_backends_being_used.clear()


def linear(weights: Any, activations: Any, form: str, dtype: Any) -> dict[str, Any]:
    import torch
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsConfig,
    )

    def as_json(arguments: Any) -> Any:
        return None if arguments is None else json.loads(arguments.model_dump_json())

    group = {
        "targets": ["Linear"],
        "weights": as_json(weights),
        "input_activations": as_json(activations),
    }
    config = CompressedTensorsConfig.from_config(
        {
            "quant_method": "compressed-tensors",
            "format": form,
            "quantization_status": "compressed",
            "ignore": ["lm_head"],
            "config_groups": {"group_0": group},
        }
    )
    scheme = config._get_scheme_from_parts(
        weight_quant=weights, input_quant=activations, format=form, layer_name=LAYER
    )
    config._check_scheme_supported(scheme.get_min_capability())
    layer = torch.nn.Module()
    layer.prefix = LAYER
    scheme.create_weights(
        layer=layer,
        input_size=COLUMNS,
        output_size=ROWS,
        output_partition_sizes=[ROWS],
        input_size_per_partition=COLUMNS,
        params_dtype=dtype,
        weight_loader=lambda *_, **__: None,
    )
    parts = [type(part).__name__ for part in vars(scheme).values()]
    named = [name for name in parts if name.endswith("Kernel")]
    return {"scheme": type(scheme).__name__, "kernel": named[0] if named else None, "refused": None}


def attention(kind: str, dtype: Any) -> None:
    """It says what it chooses; raises ValueError where there is none."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.selector import AttentionSelectorConfig

    wanted = AttentionSelectorConfig(
        head_size=128, dtype=dtype, kv_cache_dtype=kind, block_size=None
    )
    current_platform.get_attn_backend_cls(None, wanted, num_heads=32)


def kernels(model: str) -> dict[str, Any]:
    import vllm.config
    import vllm.distributed.parallel_state as parallel
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.model_executor.layers.quantization import (
        QUANTIZATION_METHODS,
        get_quantization_config,
    )
    from vllm.platforms import current_platform

    capability = current_platform.get_device_capability()
    dtype = "bfloat16" if capability.major >= 8 else "float16"
    engine = AsyncEngineArgs(model=model, max_model_len=2048, dtype=dtype).create_engine_config()
    logging.getLogger("vllm").addHandler(
        _Listener()
    )  # not sooner: a configuration sets up the logger anew
    parallel._TP = types.SimpleNamespace(world_size=1, rank_in_group=0, rank=0, local_rank=0)
    answer: dict[str, Any] = {"linear": {}, "attention": {}}
    with vllm.config.set_current_vllm_config(engine):
        for name, (weights, activations, form) in schemes().items():
            forget_what_was_said()
            try:
                found = linear(weights, activations, form, engine.model_config.dtype)
            except Exception as error:
                found = {
                    "scheme": None,
                    "kernel": None,
                    "refused": f"{type(error).__name__}: {error}",
                }
            answer["linear"][name] = {**found, "said": chosen()}
        for kind in KV_CACHES:
            forget_what_was_said()
            refused = None
            try:
                attention(kind, engine.model_config.dtype)
            except ValueError as error:
                refused = f"ValueError: {error}"
            answer["attention"][kind] = {"refused": refused, "said": chosen()}
    least = {}
    for method in QUANTIZATION_METHODS:
        try:
            least[method] = get_quantization_config(method).get_min_capability()
        except (ImportError, ValueError):  # its package is not in the lock
            continue
    return {
        "by_capability": {f"{capability.major}.{capability.minor}": answer},
        "min_capability": least,
    }


def chosen() -> list[str]:
    return [line for line in SAID if line.startswith(("Using ", "Selected "))]


def command(words: list[str]) -> dict[str, Any]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    validate_parsed_serve_args(parsed)
    arguments = AsyncEngineArgs.from_cli_args(parsed)
    config = arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    return {
        "dtype": str(config.model_config.dtype),
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "kv_cache_memory_bytes": config.cache_config.kv_cache_memory_bytes,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "prefix_caching": config.cache_config.enable_prefix_caching,
    }


def has_flashinfer() -> bool:
    from vllm.utils import flashinfer

    return bool(flashinfer.has_flashinfer())


def main() -> None:
    mode, model, answer = sys.argv[1:4]
    found = kernels(model) if mode == "kernels" else command(json.loads(sys.argv[4]))
    Path(answer).write_text(
        json.dumps({**found, "has_flashinfer": has_flashinfer()}, indent=1), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
