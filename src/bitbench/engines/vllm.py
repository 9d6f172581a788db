"""vLLM: its OpenAI server with the study's arguments, and the facts in its log.

Written against 0.32. A fact stays undefined if its log line is missing.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from bitbench.engines.kernels import (
    NOT_QUANTIZED,
    complete_toolkit,
    find_log_match,
    list_slowness_warnings,
    make_toolkit_variables,
    read_choices,
)
from bitbench.engines.options import (
    format_options,
    normalize_arguments,
    refuse_context_argument,
    refuse_long_context,
)
from bitbench.engines.processes import free_port, make_random_key
from bitbench.engines.server import EngineDefaults, ServerInstance, ServerPlan
from bitbench.ports import Endpoint, Instance, Launch
from bitbench.records.trial import InstanceFacts
from bitbench.study.environment import Environment
from bitbench.study.hardware import Capability
from bitbench.study.quality import Scoring
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.variant import ModelFacts, Variant
from bitbench.study.workload import Workload
from bitbench.util.child_processes import make_isolated_command

_PREFIX = re.compile(
    r"^(\([^)]*pid=\d+\) )?((?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?"
)
_VERSION = re.compile(r"V1 LLM engine \(v([^)]+)\)|\bversion (\d+\.\d+\S*)")
_KERNEL = re.compile(
    r"^(?:Selected \S+ for \S+|Using \S+Kernel for \S+|Using \S+ (?:attention )?backend\b"
    r"|Using .+ MoE backend\b)"
)
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_CONFIGURATION = re.compile(r"V1 LLM engine .* with config: (.*)")
_MODEL_GIB = re.compile(r"Model loading took ([\d.]+) GiB")
_KV_GIB = re.compile(
    r"(?:Explicitly|Auto) set \(([\d.]+)/[\d.]+\) GiB for KV cache"
    r"|Available KV cache memory: ([\d.]+) GiB"
    r"|reserved ([\d.]+) GiB memory for KV Cache as specified by kv_cache_memory_bytes"
)
_WEIGHTS = re.compile(r"Loading weights took ([\d.]+) seconds")
_COMPILATION = re.compile(r"init engine .* took [\d.]+ s \(compilation: ([\d.]+) s")
_PREFIX_CACHING = re.compile(r"enable_prefix_caching=(True|False)")
_CORES = re.compile(r"local_rank=0, core ids=\[([\d, ]*)\]")
_RESERVED = re.compile(r"reserved_cpus=\[([\d, ]+)\]")
_REPLICAS = "data_parallel_size"
_RANKS = ("tensor_parallel_size", "pipeline_parallel_size", _REPLICAS)
_GRAPHS = re.compile(r"Graph capturing finished in (\d+) secs, took ([\d.]+) GiB")
_BATCHED_TOKENS = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
_NO_FLASHINFER = re.compile(
    r"FlashInfer(?: kernels are disabled|'s precompiled kernels are missing).*"
)
_QUANTIZED = re.compile(r"\bquantization=(?!None\b)([\w-]+)")
_MISSING_PRELOAD = re.compile(r"(lib\w+) is not found in LD_PRELOAD")

# Bytes of a number in the KV cache, by vLLM's names. Its other formats also store scales and are
# left undefined.
_VALUE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}

# A start that ends with one of these is not a crash: vLLM reports that it cannot run this. The line
# of a kernel that refuses comes before the generic ones, so that the cause names the quantization.
UNSUPPORTED = re.compile(
    r"cannot implement due to: Quant type"
    r"|Bfloat16 is only supported on GPUs with compute capability"
    r"|^RuntimeError: Int8 not supported on SM\d+"
    r"|Quantization scheme is not supported for the current GPU"
    r"|The quantization method .* is not supported for the current GPU"
    # For WNA16, a line of its own says more.
    r"|Failed to find a kernel that can implement the (?!WNA16).* layer"
    r"|No compressed-tensors compatible scheme was found"
    r"|No valid attention backend found for"
    r"|no kernel image is available for execution on the device"
    r"|is greater than the derived max_model_len"
    r"|^api_server\.py: error: "
    r"|^(ValueError|NotImplementedError|KeyError): .*(not supported|[Uu]nsupported|not support"
    r"|not implemented|[Uu]nknown quantization|must be divisible|not divisible)"
    r"|^NotImplementedError"
    r"|^\s*Value error, .*(not supported|[Uu]nsupported|not support|[Uu]nknown quantization)"
)


def strip_vllm_log_prefix(line: str) -> str:
    """Return a log line without the name of the process, the level, the time and the source."""
    return _PREFIX.sub("", line, count=1)


def read_vllm_facts(log: str, model: ModelFacts) -> InstanceFacts:
    """Return the facts of an instance that its log states."""
    messages = [strip_vllm_log_prefix(line) for line in log.splitlines()]
    configuration = find_log_match(_CONFIGURATION, messages) or ""
    caching = find_log_match(_PREFIX_CACHING, messages)
    prefix_caching = caching == "True" if caching else None
    model_gib = find_log_match(_MODEL_GIB, messages)
    cache_gib = find_log_match(_KV_GIB, messages)
    return InstanceFacts(
        engine_version=find_log_match(_VERSION, messages),
        kernels=_list_kernels(messages),
        kernel_choices=read_choices(messages),
        weight_bytes_loaded=_compute_bytes_of_all_ranks(model_gib, configuration),
        kv_cache_bytes=_compute_bytes_of_all_ranks(cache_gib, configuration),
        kv_cache_tokens=_count_kv_cache_tokens(messages, configuration),
        kv_bytes_per_token=_compute_kv_bytes_per_token(configuration, model),
        weight_load_s=_parse_seconds(find_log_match(_WEIGHTS, messages)),
        compile_s=_parse_seconds(find_log_match(_COMPILATION, messages)),
        prefix_caching=prefix_caching,
        notes=(*_iter_processor_notes(messages), *_iter_gpu_notes(messages, configuration)),
        warnings=list_slowness_warnings(messages),
    )


def _list_kernels(messages: list[str]) -> tuple[str, ...]:
    """Return the kernels in vLLM's words. Without quantized layers it prints only the type."""
    lines = tuple(dict.fromkeys(filter(_KERNEL.match, messages)))
    if not lines and (dense := find_log_match(NOT_QUANTIZED, messages)):
        return (f"dense {dense}: no layer is quantized",)
    return lines


def _compute_bytes_of_all_ranks(gib: str | None, configuration: str) -> int | None:
    """Return the bytes of all ranks from the GiB of one, to about 5 MiB. Ranks have equal parts.

    None if vLLM prints no size, as for the model on a CPU.
    """
    if not gib:
        return None
    ranks = math.prod(_find_parallel_size(name, configuration) for name in _RANKS)
    return round(float(gib) * 2**30) * ranks


def _count_kv_cache_tokens(messages: list[str], configuration: str) -> int | None:
    """Return the tokens that the KV caches of all replicas hold together."""
    tokens = find_log_match(_KV_TOKENS, messages)
    if not tokens:
        return None
    return int(tokens.replace(",", "")) * _find_parallel_size(_REPLICAS, configuration)


def _find_parallel_size(name: str, configuration: str) -> int:
    match = re.search(rf"\b{name}=(\d+)", configuration)
    return int(match[1]) if match else 1


def _compute_kv_bytes_per_token(configuration: str, model: ModelFacts) -> int | None:
    """Return the KV cache's bytes per token, or None if the type of its numbers is unknown."""
    model_type = re.search(r"\bdtype=torch\.(\w+)", configuration)
    cache_type = re.search(r"\bkv_cache_dtype=(\w+)", configuration)
    if model_type is None or cache_type is None:
        return None
    name = model_type[1] if cache_type[1] == "auto" else cache_type[1]
    value_bytes = _VALUE_BYTES.get(name)
    return model.kv_bytes_per_token(value_bytes) if value_bytes else None


def _iter_gpu_notes(messages: list[str], configuration: str) -> Iterator[str]:
    """Yield the notes of a run on GPUs. Not yet tried on one."""
    if "device_config=cuda" not in configuration:
        return
    if tokens := find_log_match(_BATCHED_TOKENS, messages):
        yield (
            f"a step of prefill takes at most {int(tokens):,} tokens "
            "(max-num-batched-tokens; vLLM chooses by device)"
        )
    graphs = next(filter(None, map(_GRAPHS.search, messages)), None)
    if graphs:
        yield f"CUDA graphs were captured in {graphs[1]} s and take {graphs[2]} GiB"
    if missing := find_log_match(_NO_FLASHINFER, messages):
        yield f"vLLM runs without FlashInfer, so other kernels are chosen: {missing}"
    quantized = _QUANTIZED.search(configuration)
    if quantized and not any(choice.kind != "attention" for choice in read_choices(messages)):
        yield f"vLLM does not say which kernel computes the layers of {quantized[1]}"


def _iter_processor_notes(messages: list[str]) -> Iterator[str]:
    if cores := find_log_match(_CORES, messages):
        reserved = find_log_match(_RESERVED, messages)
        scheduler = f", and reserves {reserved} for its scheduler" if reserved else ""
        yield (
            f"vLLM computes on CPU {cores}{scheduler}; "
            "`env: {VLLM_CPU_OMP_THREADS_BIND: 0-1}` in the study changes this"
        )
    matches = filter(None, map(_MISSING_PRELOAD.search, messages))
    missing = sorted({match[1] for match in matches})
    if missing:
        yield (
            f"vLLM runs without {' and '.join(missing)}, "
            "which it recommends to preload (env LD_PRELOAD)"
        )


def _parse_seconds(text: str | None) -> float | None:
    return float(text) if text else None


_PINNED = Path(__file__).with_name("pinned")
# `vllm serve` fails if the package is not called vllm, as on CPUs.
_SERVER = "vllm.entrypoints.openai.api_server"
_MODEL_NAME = "model"
# Tokens beyond the longest request: vLLM stops one token before its limit, and a later version may
# add some of its own.
_CONTEXT_MARGIN = 16
_KV_BLOCK = 128  # tokens, of which each request may waste almost a block
_LEAST_KV_GIB = 1
_FIRST_WITH_BFLOAT16 = Capability(8, 0)  # vLLM refuses the type on GPUs before Ampere
_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
# The types to which vLLM can quantize a model at load, on a GPU.
_QUANTIZE = (
    "fp8_per_tensor",
    "fp8_per_channel",
    "fp8_per_block",
    "int8_per_channel_weight_only",
    "nvfp4_per_token",
    "mxfp8",
)
_KV_CACHE_NAMES = (
    "auto",
    "bfloat16",
    "float16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "int8_per_token_head",
    "nvfp4",
)
_KV_CACHE_TYPES: Mapping[str, Mapping[str, Argument]] = {
    name: {"kv-cache-dtype": name} for name in _KV_CACHE_NAMES
}
_METRICS = {
    "queue_s": "vllm:request_queue_time_seconds",
    "waiting": "vllm:num_requests_waiting",
    "preemptions": "vllm:num_preemptions_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "cached_tokens": "vllm:prefix_cache_hits_total",
    "kv_use": "vllm:kv_cache_usage_perc",
    "drafts": "vllm:spec_decode_num_drafts_total",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
}
_DEFAULT_MAX_LOGPROBS = 20  # vLLM's default, which can be raised only at its start


class VllmEngine(EngineDefaults):
    """`ports.Engine` over `vllm.entrypoints.openai.api_server`."""

    name = "vllm"
    own_environment: Environment | None = Environment(
        name="vllm",
        locks={"cpu": _PINNED / "vllm-cpu.txt", "cuda": _PINNED / "vllm-cuda.txt"},
        import_check="import torch, vllm.entrypoints.openai.api_server",
        main_packages=("vllm", "vllm-cpu", "transformers", "torch", "triton"),
        finish=complete_toolkit,
    )
    environment: str | None = "vllm"
    scoring: Scoring | None = Scoring.PROMPT_LOGPROBS
    start_s = 60.0  # eager, on two cores. Compiling adds two minutes the first time
    overhead_bytes = 3 * 2**30  # most of it is the smallest KV cache
    can_profile = True
    quick_args: Mapping[str, Argument] = MappingProxyType({"enforce-eager": True})
    kv_cache_types = _KV_CACHE_TYPES
    metrics: Mapping[str, str] = _METRICS

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:
        if (reason := refuse_context_argument(setup, "max-model-len", workload)) is not None:
            return reason
        if variant.at_load and variant.at_load.quantize not in _QUANTIZE:
            return (
                f"vLLM does not support {variant.at_load.quantize} at load; "
                f"it supports {', '.join(_QUANTIZE)}."
            )
        chosen = normalize_arguments(setup.args)
        if isinstance(chosen.get("max-model-len"), int) and "hf-overrides" in chosen:
            return None  # the overrides, such as YaRN, may lengthen the model's context
        return refuse_long_context(variant, workload)

    def can_freeze(self, setup: EngineSetup) -> bool:
        """Return False if several devices work together: their processes watch each other."""
        chosen = normalize_arguments(setup.args)
        return all(chosen.get(name, 1) == 1 for name in _PARALLEL)

    def deployment(self, launch: Launch) -> tuple[dict[str, str], list[str]]:
        server = ["-m", _SERVER, "--model", str(launch.required_model("vLLM"))]
        server += format_options(_make_options(launch))
        variables = {**_make_cache_variables(launch), **launch.setup.env}
        return variables, [str(launch.python or "python"), *server]

    def start(self, launch: Launch) -> Instance:
        port = free_port()
        key = make_random_key()
        return ServerInstance(
            ServerPlan(
                command=command_line(launch, port),
                env=make_vllm_variables(launch, key),
                endpoint=Endpoint(
                    url=f"http://127.0.0.1:{port}",
                    model=_MODEL_NAME,
                    api_key=key,
                    extra_body={"ignore_eos": True},
                    metrics=self.metrics,
                ),
                log_file=launch.log_file,
                read_facts=lambda log: read_vllm_facts(log, launch.variant.facts),
                unsupported=UNSUPPORTED,
                message_of=strip_vllm_log_prefix,
            )
        )


def command_line(launch: Launch, port: int) -> list[str]:
    """Return the server's command: our defaults, overridden by the study's arguments.

    It contains no secret.
    """
    python = launch.required_python("vLLM")
    fixed: dict[str, Argument] = {
        "model": str(launch.required_model("vLLM")),
        "served-model-name": _MODEL_NAME,
        "host": "127.0.0.1",
        "port": port,
    }
    if launch.trace_folder is not None:
        fixed["profiler-config"] = _format_profiler_config(launch.trace_folder)
    options = {**_make_options(launch), **fixed}
    return make_isolated_command(python, "-m", _SERVER, *format_options(options))


def _make_options(launch: Launch) -> dict[str, Argument]:
    defaults: dict[str, Argument] = {
        "dtype": _choose_dtype(launch),
        "max-model-len": launch.context_with(_CONTEXT_MARGIN),
        "max-num-seqs": launch.concurrency,
        "enable-prefix-caching": False,
    }
    if launch.top_tokens > _DEFAULT_MAX_LOGPROBS:
        defaults["max-logprobs"] = launch.top_tokens
    if launch.variant.at_load is not None:
        defaults["quantization"] = launch.variant.at_load.quantize
    return {**defaults, **normalize_arguments(launch.setup.args)}


def _make_cache_variables(launch: Launch) -> dict[str, str]:
    return {"VLLM_CPU_KVCACHE_SPACE": str(_compute_kv_cache_gib(launch))}


def make_vllm_variables(launch: Launch, key: str) -> dict[str, str]:
    """Return the server's environment variables.

    The size of the KV cache is for a CPU. On a GPU vLLM takes the free memory, or
    `kv-cache-memory-bytes`.
    """
    toolkit = make_toolkit_variables(launch.python) if launch.python else {}
    return {
        **toolkit,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **_make_cache_variables(launch),
        **launch.setup.env,
        "VLLM_API_KEY": key,
    }


def _format_profiler_config(trace_folder: Path) -> str:
    """Return the settings of vLLM's profiler: operators and memory of the workers.

    Python stacks are off, since they would cost more time than the operators they explain.
    """
    return json.dumps(
        {
            "profiler": "torch",
            "torch_profiler_dir": str(trace_folder),
            "torch_profiler_with_stack": False,
            "torch_profiler_with_memory": True,
            "ignore_frontend": True,
        }
    )


def _choose_dtype(launch: Launch) -> str:
    """Return the plan's type for this processor, else bfloat16, or float16 on GPUs without it."""
    if launch.dtype:
        return launch.dtype
    lacks_bfloat16 = launch.capability is not None and launch.capability < _FIRST_WITH_BFLOAT16
    return "float16" if lacks_bfloat16 else "bfloat16"


def _compute_kv_cache_gib(launch: Launch) -> int:
    dtype = normalize_arguments(launch.setup.args).get("dtype", _choose_dtype(launch))
    value_bytes = 4 if dtype in ("float32", "float") else 2
    per_token = launch.variant.facts.kv_bytes_per_token(value_bytes)
    if per_token is None:
        return _LEAST_KV_GIB
    tokens = launch.cached_tokens(_KV_BLOCK, _CONTEXT_MARGIN)
    return max(_LEAST_KV_GIB, math.ceil(tokens * per_token / 2**30))
