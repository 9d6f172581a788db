"""What vLLM says in its log, as facts. Written against 0.32; a line that is not found leaves its fact undefined."""

import math
import re
from collections.abc import Iterator
from datetime import datetime

from bitbench.engines.slow_kernels import slowness_warnings
from bitbench.engines.vllm_kernels import read_choices
from bitbench.records.trial import InstanceFacts
from bitbench.study.variant import ModelFacts

_PREFIX = re.compile(r"^(\([^)]*pid=\d+\) )?((?:INFO|WARNING|ERROR|DEBUG) (\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]]*\] ?)?")
_VERSION = re.compile(r"V1 LLM engine \(v([^)]+)\)|\bversion (\d+\.\d+\S*)")
_KERNEL = re.compile(
    r"^(?:Selected \S+ for \S+|Using \S+Kernel for \S+|Using \S+ (?:attention )?backend\b|Using .+ MoE backend\b)"
)
_NOT_QUANTIZED = re.compile(r"V1 LLM engine .*\bdtype=torch\.(\w+),.*\bquantization=None\b")
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_CONFIGURATION = re.compile(r"V1 LLM engine .* with config: (.*)")
_MODEL_GIB = re.compile(r"Model loading took ([\d.]+) GiB")
_KV_GIB = re.compile(
    r"(?:Explicitly|Auto) set \(([\d.]+)/[\d.]+\) GiB for KV cache|Available KV cache memory: ([\d.]+) GiB"
    r"|reserved ([\d.]+) GiB memory for KV Cache as specified by kv_cache_memory_bytes"
)
_WEIGHTS = re.compile(r"Loading weights took ([\d.]+) seconds")
_COMPILATION = re.compile(r"init engine .* took [\d.]+ s \(compilation: ([\d.]+) s")
_PREFIX_CACHING = re.compile(r"enable_prefix_caching=(True|False)")
_CORES = re.compile(r"local_rank=0, core ids=\[([\d, ]*)\]")
_RESERVED = re.compile(r"reserved_cpus=\[([\d, ]+)\]")
_COMPILED_FROM_CACHE = re.compile(r"[Dd]irectly load .*compil|reusing compiled|[Ll]oaded AOT compiled function")
_REPLICAS = "data_parallel_size"
_RANKS = ("tensor_parallel_size", "pipeline_parallel_size", _REPLICAS)
_GRAPHS = re.compile(r"Graph capturing finished in (\d+) secs, took ([\d.]+) GiB")
_BATCHED_TOKENS = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
_NO_FLASHINFER = re.compile(r"FlashInfer(?: kernels are disabled|'s precompiled kernels are missing).*")
_QUANTIZED = re.compile(r"\bquantization=(?!None\b)([\w-]+)")
_MISSING_PRELOAD = re.compile(r"(lib\w+) is not found in LD_PRELOAD")

# Of a number in the KV cache, by vLLM's names; its other formats keep scales besides and are left undefined.
_VALUE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}

# A start that ends with one of these is not a crash: vLLM says that it cannot run this. The line of a kernel that
# refuses comes before the generic ones, so that the cause names the quantization type.
UNSUPPORTED = re.compile(
    r"cannot implement due to: Quant type"
    r"|Bfloat16 is only supported on GPUs with compute capability"
    r"|^RuntimeError: Int8 not supported on SM\d+"
    r"|Quantization scheme is not supported for the current GPU"
    r"|The quantization method .* is not supported for the current GPU"
    r"|Failed to find a kernel that can implement the (?!WNA16).* layer"  # of WNA16 a line of its own says more
    r"|No compressed-tensors compatible scheme was found"
    r"|No valid attention backend found for"
    r"|no kernel image is available for execution on the device"
    r"|is greater than the derived max_model_len"
    r"|^api_server\.py: error: "
    r"|^(ValueError|NotImplementedError|KeyError): .*(not supported|[Uu]nsupported|not support|not implemented"
    r"|[Uu]nknown quantization|must be divisible|not divisible)"
    r"|^NotImplementedError"
    r"|^\s*Value error, .*(not supported|[Uu]nsupported|not support|[Uu]nknown quantization)"
)


def message_of(line: str) -> str:
    """A log line without the name of the process, the level, the time and the place."""
    return _PREFIX.sub("", line, count=1)


def read_facts(log: str, model: ModelFacts) -> InstanceFacts:
    messages = [message_of(line) for line in log.splitlines()]
    configuration = _first(_CONFIGURATION, messages) or ""
    value_bytes = _kv_value_bytes(configuration)
    tokens = _first(_KV_TOKENS, messages)
    caching = _first(_PREFIX_CACHING, messages)
    return InstanceFacts(
        engine_version=_first(_VERSION, messages),
        kernels=_kernels(messages),
        kernel_choices=read_choices(messages),
        weight_bytes_loaded=_bytes_of_all_ranks(_first(_MODEL_GIB, messages), configuration),
        kv_cache_bytes=_bytes_of_all_ranks(_first(_KV_GIB, messages), configuration),
        kv_cache_tokens=int(tokens.replace(",", "")) * _size_of(_REPLICAS, configuration) if tokens else None,
        kv_bytes_per_token=model.kv_bytes_per_token(value_bytes) if value_bytes else None,
        weight_load_s=_seconds(_first(_WEIGHTS, messages)),
        compile_s=_compile_seconds(log, messages),
        prefix_caching=caching == "True" if caching else None,
        notes=tuple(_notes(messages, configuration)),
        warnings=slowness_warnings(messages),
    )


def _kernels(messages: list[str]) -> tuple[str, ...]:
    """In vLLM's words; of a model without quantized layers it says only that."""
    named = tuple(dict.fromkeys(message for message in messages if _KERNEL.match(message)))
    if not named and (dense := next(filter(None, map(_NOT_QUANTIZED.search, messages)), None)):
        return (f"dense {dense[1]}: no layer is quantized",)
    return named


def _bytes_of_all_ranks(gib: str | None, configuration: str) -> int | None:
    """vLLM says it of one rank, to a hundredth of a GiB (5 MiB); ranks are even. On the CPU it does not say what the
    model takes."""
    ranks = math.prod(_size_of(name, configuration) for name in _RANKS)
    return round(float(gib) * 2**30) * ranks if gib else None


def _size_of(name: str, configuration: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", configuration)
    return int(found[1]) if found else 1


def _kv_value_bytes(configuration: str) -> int | None:
    model = re.search(r"\bdtype=torch\.(\w+)", configuration)
    cache = re.search(r"\bkv_cache_dtype=(\w+)", configuration)
    if model is None or cache is None:
        return None
    return _VALUE_BYTES.get(model[1] if cache[1] == "auto" else cache[1])


def _compile_seconds(log: str, messages: list[str]) -> float | None:
    """As vLLM says it on GPUs; on the CPU it only says when its compiling warm-up began and ended (to the second)."""
    said = _seconds(_first(_COMPILATION, messages))
    if said is not None:
        return said
    began = _time_of("Warming up model for the compilation", log)
    ended = _time_of("Warming up done", log)
    return (ended - began).total_seconds() if began and ended else None


def _time_of(message: str, log: str) -> datetime | None:
    for line in log.splitlines():
        found = _PREFIX.match(line)
        if message in line and found and found[3]:
            # The log gives no year; any leap year will do for a difference.
            return datetime.strptime(f"2024-{found[3]}", "%Y-%m-%d %H:%M:%S")
    return None


def _notes(messages: list[str], configuration: str) -> list[str]:
    return [*_notes_of_processors(messages), *_notes_of_gpus(messages, configuration)]


def _notes_of_gpus(messages: list[str], configuration: str) -> Iterator[str]:
    """Not yet run on a GPU."""
    if "device_config=cuda" not in configuration:
        return
    if tokens := _first(_BATCHED_TOKENS, messages):
        yield f"a step of prefill takes at most {int(tokens):,} tokens (max-num-batched-tokens; vLLM chooses by device)"
    graphs = next(filter(None, map(_GRAPHS.search, messages)), None)
    if graphs:
        yield f"CUDA graphs were captured in {graphs[1]} s and take {graphs[2]} GiB"
    if missing := _first(_NO_FLASHINFER, messages):
        yield f"vLLM runs without FlashInfer, so other kernels are chosen: {missing}"
    quantized = _QUANTIZED.search(configuration)
    if quantized and not any(choice.kind != "attention" for choice in read_choices(messages)):
        yield f"vLLM does not say which kernel computes the layers of {quantized[1]}"


def _notes_of_processors(messages: list[str]) -> list[str]:
    notes = []
    cores, reserved = _first(_CORES, messages), _first(_RESERVED, messages)
    if cores:
        held_back = f", and reserves {reserved} for its scheduler" if reserved else ""
        notes.append(
            f"vLLM computes on CPU {cores}{held_back}; "
            "`env: {VLLM_CPU_OMP_THREADS_BIND: 0-1}` in the study changes this"
        )
    missing = sorted({found[1] for message in messages if (found := _MISSING_PRELOAD.search(message))})
    if missing:
        notes.append(f"vLLM runs without {' and '.join(missing)}, which it recommends to preload (env LD_PRELOAD)")
    if _first(_COMPILED_FROM_CACHE, messages) is not None:
        notes.append("the compiled graph came from vLLM's cache")
    return notes


def _first(pattern: re.Pattern[str], messages: list[str]) -> str | None:
    """The first group that matched in the first message that does; the whole match where there is no group."""
    for message in messages:
        if found := pattern.search(message):
            return next((group for group in found.groups() if group), found[0])
    return None


def _seconds(text: str | None) -> float | None:
    return float(text) if text else None
