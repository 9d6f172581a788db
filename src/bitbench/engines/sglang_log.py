"""What SGLang says in its log, as facts. Written against 0.5.23; a line that is not found leaves its fact undefined."""

import ast
import math
import re
from collections.abc import Iterator, Mapping

from bitbench.engines.server import printed_facts
from bitbench.engines.slow_kernels import slowness_warnings
from bitbench.records.trial import InstanceFacts, KernelChoice, KernelPath
from bitbench.study.base import Json
from bitbench.study.variant import ModelFacts

_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?: [A-Z]{2}\d+)*\] ")
_ARGUMENTS = "server_args="
_LOADED = re.compile(r"^Load weight end\. elapsed=([\d.]+) s, .*?(?:quant=([\w-]+), .*)?mem usage=(-?[\d.]+) GB")
_KV_CACHE = re.compile(
    r"KV [Cc]ache (?:is )?allocated\. dtype: torch\.(\w+), #tokens: (\d+), (?:K size: ([\d.]+) GB, V size|KV size): "
    r"([\d.]+) GB"
)
_ALL_TOKENS = re.compile(r"^max_total_num_tokens=(\d+)")
_CAPTURED = re.compile(r"^Capture .* end\. .*elapsed=([\d.]+) s")
# Said on a CPU where its own kernels are not used, whether they are installed or not.
_WITHOUT_OWN = re.compile(r"only intel amx backend and arm64 are supported")
_CORES = re.compile(r"^init_threads_binding: .*local_omp_cpuid=([\d,-]+)")
_RANKS = ("tp_size", "pp_size")

# Of a number in the KV cache; other types keep scales besides and are left undefined.
_VALUE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1}

# A start that ends with one of these is not a crash: SGLang says that it cannot run this. On a CPU it asks for the
# capability of a GPU before it loads a compressed-tensors checkpoint.
UNSUPPORTED = re.compile(
    r"^AssertionError: (Torch not compiled with CUDA enabled|\w+ on CPU (only works on|requires))"
    r"|^sglang serve: error: "
    r"|is greater than the derived context_length"
    r"|^(ValueError|NotImplementedError|KeyError|AssertionError|RuntimeError): .*(not supported|[Uu]nsupported"
    r"|not support|not implemented|[Uu]nknown quantization|must be divisible|not divisible)"
    r"|^NotImplementedError"
)
# The parent kills itself by SIGKILL when one of its processes ended like this: it is not somebody else's doing.
ENDS_ITSELF = re.compile(r" hit an exception: Traceback|^Subprocess \S+ .*crashed with exit code (?!-9\b|-15\b)")


def message_of(line: str) -> str:
    """A log line without the time and the rank."""
    return _PREFIX.sub("", line, count=1)


def read_facts(log: str, model: ModelFacts) -> InstanceFacts:
    messages = [message_of(line) for line in log.splitlines()]
    said, arguments = printed_facts(messages), _arguments(messages)
    loaded = _first(_LOADED, messages)
    cache = _last(_KV_CACHE, messages)
    tokens = _last(_ALL_TOKENS, messages)
    value_bytes = _VALUE_BYTES.get(cache[1]) if cache else None
    per_token = model.kv_bytes_per_token(value_bytes) if value_bytes else None
    kv_tokens = int(tokens[1]) if tokens else None
    on_cpu = arguments.get("device") == "cpu"
    by_torch = on_cpu and (said.get("own_kernels") is False or _first(_WITHOUT_OWN, messages) is not None)
    captured = [float(found[1]) for found in map(_CAPTURED.match, messages) if found]
    choices = _choices(arguments, loaded[2] if loaded else None, cache, by_torch=by_torch)
    caching = arguments.get("disable_radix_cache")
    return InstanceFacts(
        engine_version=said.get("engine_version"),
        kernels=tuple(choice.shown for choice in choices),
        kernel_choices=choices,
        # On a CPU it is the difference of what was free on the machine, in which everybody else has a part.
        weight_bytes_loaded=None if on_cpu or not loaded else _bytes_of_all_ranks(float(loaded[3]), arguments),
        kv_cache_bytes=_kv_cache_bytes(kv_tokens, per_token, cache, arguments),
        kv_cache_tokens=kv_tokens,
        kv_bytes_per_token=per_token,
        weight_load_s=float(loaded[1]) if loaded else None,
        compile_s=sum(captured) if captured else None,
        prefix_caching=None if caching is None else not caching,
        notes=tuple(_notes(messages, by_torch=by_torch)),
        warnings=slowness_warnings(messages),
    )


def _notes(messages: list[str], *, by_torch: bool) -> Iterator[str]:
    if by_torch:
        yield (
            "SGLang computes with torch here, not with kernels of its own: those for a CPU need AMX, and a build that "
            "no package index has"
        )
    if cores := _first(_CORES, messages):
        changed = "`env: {SGLANG_CPU_OMP_THREADS_BIND: 0-1}` in the study changes this"
        yield f"SGLang computes on CPU {cores[1]}; {changed}"


def _choices(
    arguments: Mapping[str, Json], quantization: str | None, cache: re.Match[str] | None, *, by_torch: bool
) -> tuple[KernelChoice, ...]:
    """SGLang names the backend of its attention; of the linear layers only the format that they are stored in."""
    attention = arguments.get("attention_backend")
    found = [KernelChoice(kind="attention", kernel=str(attention), source="log")] if attention else []
    if quantization:
        found.append(KernelChoice(kind="linear", kernel=quantization, source="log"))
    elif arguments and arguments.get("quantization") is None:
        dtype = _dtype(arguments, cache)
        by = " (torch, not SGLang's kernels)" if by_torch else ""
        found.append(KernelChoice(kind="linear", kernel=f"dense {dtype}{by}", path=KernelPath.DENSE, source="log"))
    return tuple(found)


def _dtype(arguments: Mapping[str, Json], cache: re.Match[str] | None) -> str:
    asked = str(arguments.get("dtype", "auto"))
    return cache[1] if asked == "auto" and cache else asked


def _kv_cache_bytes(
    tokens: int | None, per_token: int | None, cache: re.Match[str] | None, arguments: Mapping[str, Json]
) -> int | None:
    """Exact where the model's shape is known; SGLang rounds to hundredths of a GiB."""
    if tokens is not None and per_token is not None:
        return tokens * per_token
    return _bytes_of_all_ranks(float(cache[3] or 0) + float(cache[4]), arguments) if cache else None


def _bytes_of_all_ranks(gib: float, arguments: Mapping[str, Json]) -> int:
    """SGLang says it of one rank, and calls a GiB a GB; ranks are even."""
    return round(gib * 2**30) * math.prod(int(arguments.get(name) or 1) for name in _RANKS)


def _arguments(messages: list[str]) -> dict[str, Json]:
    """All that it was resolved to, which it prints as Python writes a dict; empty where a value is no plain one."""
    line = next((message for message in messages if message.startswith(_ARGUMENTS)), None)
    if line is None:
        return {}
    try:
        found = ast.literal_eval(line.removeprefix(_ARGUMENTS))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return found if isinstance(found, dict) else {}


def _first(pattern: re.Pattern[str], messages: list[str]) -> re.Match[str] | None:
    return next(filter(None, map(pattern.search, messages)), None)


def _last(pattern: re.Pattern[str], messages: list[str]) -> re.Match[str] | None:
    return _first(pattern, messages[::-1])
