"""SGLang: its server with the study's arguments, and the facts in its log.

`workers/sglang_server.py` starts it. Written against 0.5.23. A fact stays undefined if its log line
is missing. On a CPU it computes with torch. The CUDA part follows SGLang's source: not yet run on a
GPU.
"""

import ast
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from bitbench.engines.kernels import list_slowness_warnings
from bitbench.engines.options import (
    format_options,
    normalize_arguments,
    refuse_context_argument,
    refuse_long_context,
)
from bitbench.engines.processes import free_port, make_random_key
from bitbench.engines.server import EngineDefaults, ServerInstance, ServerPlan, parse_printed_facts
from bitbench.ports import Endpoint, Instance, Launch
from bitbench.records.trial import InstanceFacts, KernelChoice, KernelPath
from bitbench.study.base import Json
from bitbench.study.environment import Environment
from bitbench.study.quality import Scoring
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.variant import ModelFacts, Variant
from bitbench.study.workload import Workload
from bitbench.util.child_processes import make_isolated_command

_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?: [A-Z]{2}\d+)*\] ")
_ARGUMENTS = "server_args="
_LOADED = re.compile(
    r"^Load weight end\. elapsed=([\d.]+) s, .*?(?:quant=([\w-]+), .*)?mem usage=(-?[\d.]+) GB"
)
_KV_CACHE = re.compile(
    r"KV [Cc]ache (?:is )?allocated\. dtype: torch\.(\w+), #tokens: (\d+), "
    r"(?:K size: ([\d.]+) GB, V size|KV size): ([\d.]+) GB"
)
_ALL_TOKENS = re.compile(r"^max_total_num_tokens=(\d+)")
_CAPTURED = re.compile(r"^Capture .* end\. .*elapsed=([\d.]+) s")
# Printed on a CPU when its own kernels are not used, whether they are installed or not.
_WITHOUT_OWN = re.compile(r"only intel amx backend and arm64 are supported")
_CORES = re.compile(r"^init_threads_binding: .*local_omp_cpuid=([\d,-]+)")
_RANKS = ("tp_size", "pp_size")

# Bytes of a number in the KV cache. Other types also store scales and are left undefined.
_VALUE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1}

# A start that ends with one of these is not a crash: SGLang reports that it cannot run this. On a
# CPU it asks for the capability of a GPU before it loads a compressed-tensors checkpoint.
UNSUPPORTED = re.compile(
    r"^AssertionError: (Torch not compiled with CUDA enabled|\w+ on CPU (only works on|requires))"
    r"|^sglang serve: error: "
    r"|is greater than the derived context_length"
    r"|^(ValueError|NotImplementedError|KeyError|AssertionError|RuntimeError): "
    r".*(not supported|[Uu]nsupported"
    r"|not support|not implemented|[Uu]nknown quantization|must be divisible|not divisible)"
    r"|^NotImplementedError"
)
# The parent kills itself by SIGKILL after one of its processes ended like this: no other process
# killed it.
ENDS_ITSELF = re.compile(
    r" hit an exception: Traceback|^Subprocess \S+ .*crashed with exit code (?!-9\b|-15\b)"
)


def strip_sglang_log_prefix(line: str) -> str:
    """Return a log line without the time and the rank."""
    return _PREFIX.sub("", line, count=1)


def read_sglang_facts(log: str, model: ModelFacts) -> InstanceFacts:
    """Return the facts of an instance that its log states."""
    messages = [strip_sglang_log_prefix(line) for line in log.splitlines()]
    printed = parse_printed_facts(messages)
    arguments = _parse_printed_arguments(messages)
    on_cpu = arguments.get("device") == "cpu"
    lacks_kernels = printed.get("own_kernels") is False or bool(
        _find_first_match(_WITHOUT_OWN, messages)
    )
    by_torch = on_cpu and lacks_kernels
    quantization: str | None = None
    weight_bytes: int | None = None
    weight_load_s: float | None = None
    if loaded := _find_first_match(_LOADED, messages):
        quantization = loaded[2]
        weight_load_s = float(loaded[1])
        # On a CPU it is the change of the machine's free memory, to which all processes contribute.
        if not on_cpu:
            weight_bytes = _compute_bytes_of_all_ranks(float(loaded[3]), arguments)
    cache = _find_last_match(_KV_CACHE, messages)
    value_bytes = _VALUE_BYTES.get(cache[1]) if cache else None
    per_token = model.kv_bytes_per_token(value_bytes) if value_bytes else None
    tokens = _find_last_match(_ALL_TOKENS, messages)
    kv_tokens = int(tokens[1]) if tokens else None
    captures = filter(None, map(_CAPTURED.match, messages))
    capture_times = [float(capture[1]) for capture in captures]
    compile_s = sum(capture_times) if capture_times else None
    choices = _collect_kernel_choices(arguments, quantization, cache, by_torch=by_torch)
    caching_is_off = arguments.get("disable_radix_cache")
    prefix_caching = None if caching_is_off is None else not caching_is_off
    return InstanceFacts(
        engine_version=printed.get("engine_version"),
        kernels=tuple(choice.shown for choice in choices),
        kernel_choices=choices,
        weight_bytes_loaded=weight_bytes,
        kv_cache_bytes=_compute_kv_cache_bytes(kv_tokens, per_token, cache, arguments),
        kv_cache_tokens=kv_tokens,
        kv_bytes_per_token=per_token,
        weight_load_s=weight_load_s,
        compile_s=compile_s,
        prefix_caching=prefix_caching,
        notes=tuple(_iter_notes(messages, by_torch=by_torch)),
        warnings=list_slowness_warnings(messages),
    )


def _iter_notes(messages: list[str], *, by_torch: bool) -> Iterator[str]:
    if by_torch:
        yield (
            "SGLang computes with torch here, not with kernels of its own: "
            "those for a CPU need AMX, and a build that no package index has"
        )
    if cores := _find_first_match(_CORES, messages):
        advice = "`env: {SGLANG_CPU_OMP_THREADS_BIND: 0-1}` in the study changes this"
        yield f"SGLang computes on CPU {cores[1]}; {advice}"


def _collect_kernel_choices(
    arguments: Mapping[str, Json],
    quantization: str | None,
    cache: re.Match[str] | None,
    *,
    by_torch: bool,
) -> tuple[KernelChoice, ...]:
    """Return the attention's backend and the format of the linear layers.

    SGLang does not name the kernels of linear layers.
    """
    choices = []
    if attention := arguments.get("attention_backend"):
        choices.append(KernelChoice(kind="attention", kernel=str(attention), source="log"))
    if quantization:
        choices.append(KernelChoice(kind="linear", kernel=quantization, source="log"))
    elif arguments and arguments.get("quantization") is None:
        kernel = f"dense {_find_dtype(arguments, cache)}"
        if by_torch:
            kernel += " (torch, not SGLang's kernels)"
        path = KernelPath.DENSE
        choices.append(KernelChoice(kind="linear", kernel=kernel, path=path, source="log"))
    return tuple(choices)


def _find_dtype(arguments: Mapping[str, Json], cache: re.Match[str] | None) -> str:
    requested = str(arguments.get("dtype", "auto"))
    return cache[1] if requested == "auto" and cache else requested


def _compute_kv_cache_bytes(
    tokens: int | None,
    per_token: int | None,
    cache: re.Match[str] | None,
    arguments: Mapping[str, Json],
) -> int | None:
    """Return the exact size if the model's shape is known, else SGLang's hundredths of a GiB."""
    if tokens is not None and per_token is not None:
        return tokens * per_token
    if cache is None:
        return None
    return _compute_bytes_of_all_ranks(float(cache[3] or 0) + float(cache[4]), arguments)


def _compute_bytes_of_all_ranks(gib: float, arguments: Mapping[str, Json]) -> int:
    """Return the bytes of all ranks from one rank's GiB, which SGLang calls GB. Ranks are equal."""
    return round(gib * 2**30) * math.prod(int(arguments.get(name) or 1) for name in _RANKS)


def _parse_printed_arguments(messages: list[str]) -> dict[str, Json]:
    """Return the resolved arguments that SGLang prints as a Python dict.

    Return {} if they are missing or contain a value that is not a literal.
    """
    line = next((message for message in messages if message.startswith(_ARGUMENTS)), None)
    if line is None:
        return {}
    try:
        arguments = ast.literal_eval(line.removeprefix(_ARGUMENTS))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _find_first_match(pattern: re.Pattern[str], messages: list[str]) -> re.Match[str] | None:
    return next(filter(None, map(pattern.search, messages)), None)


def _find_last_match(pattern: re.Pattern[str], messages: list[str]) -> re.Match[str] | None:
    return _find_first_match(pattern, messages[::-1])


_PINNED = Path(__file__).with_name("pinned")
_SERVER = Path(__file__).parent / "workers" / "sglang_server.py"
_MODEL_NAME = "model"
# Tokens beyond the longest request: SGLang refuses an input that leaves fewer than 6 tokens of the
# context.
_CONTEXT_MARGIN = 16
# Tokens of the largest page of its attention backends. Each request may leave its last page almost
# empty.
_PAGE = 128
# Other names of the same arguments. SGLang accepts both.
_ALIASES = {
    "tensor-parallel-size": "tp-size",
    "pipeline-parallel-size": "pp-size",
    "data-parallel-size": "dp-size",
}
_PARALLEL = tuple(_ALIASES.values())
# SGLang refuses vLLM's name `fp8`.
_KV_CACHE_TYPES: Mapping[str, Mapping[str, Argument]] = {
    name: {"kv-cache-dtype": name}
    for name in ("auto", "bfloat16", "fp8_e4m3", "fp8_e5m2", "mxfp8", "nvfp4")
}
# At `/metrics`, which needs no key. A counter appears with the first event that it counts.
_METRICS = {
    "queue_s": "sglang:queue_time_seconds",
    "waiting": "sglang:num_queue_reqs",
    "preemptions": "sglang:num_retracted_requests_total",
    "prompt_tokens": "sglang:prompt_tokens_total",
    "cached_tokens": "sglang:cached_tokens_total",
    "kv_use": "sglang:token_usage",
}


class SglangEngine(EngineDefaults):
    """`ports.Engine` over SGLang's HTTP server."""

    name = "sglang"
    own_environment: Environment | None = Environment(
        name="sglang",
        locks={"cpu": _PINNED / "sglang-cpu.txt", "cuda": _PINNED / "sglang-cuda.txt"},
        # The worker makes SGLang importable for as long as `worker` exists.
        import_check=(
            f"import runpy; worker = runpy.run_path({str(_SERVER)!r}); import sglang.launch_server"
        ),
        main_packages=(
            "sglang",
            "sglang-kernel",
            "sglang-kernel-cpu",
            "transformers",
            "torch",
            "triton",
        ),
    )
    environment: str | None = "sglang"
    scoring: Scoring | None = Scoring.INPUT_LOGPROBS
    start_s = 60.0  # on two cores: three processes import torch and transformers
    overhead_bytes = 2 * 2**30  # these imports
    kv_cache_types = _KV_CACHE_TYPES
    metrics: Mapping[str, str] = _METRICS

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:
        reason = refuse_context_argument(setup, "context-length", workload)
        return reason or refuse_long_context(variant, workload)

    def can_freeze(self, setup: EngineSetup) -> bool:
        """Return False if several devices work together: their processes watch each other."""
        chosen = _resolve_aliases(normalize_arguments(setup.args))
        return all(chosen.get(name, 1) == 1 for name in _PARALLEL)

    def start(self, launch: Launch) -> Instance:
        port = free_port()
        key = make_random_key()
        return ServerInstance(
            ServerPlan(
                command=command_line(launch, port),
                env=make_sglang_variables(launch, key),
                endpoint=Endpoint(
                    url=f"http://127.0.0.1:{port}",
                    model=_MODEL_NAME,
                    api_key=key,
                    extra_body={"ignore_eos": True},
                    metrics=self.metrics,
                ),
                log_file=launch.log_file,
                read_facts=lambda log: read_sglang_facts(log, launch.variant.facts),
                ready_path="/ready",  # its /health generates a token and takes a second
                unsupported=UNSUPPORTED,
                ends_itself=ENDS_ITSELF,
                message_of=strip_sglang_log_prefix,
            )
        )


def command_line(launch: Launch, port: int) -> list[str]:
    """Return the server's command: our defaults, overridden by the study's arguments.

    It contains no secret.
    """
    python = launch.required_python("SGLang")
    model = launch.required_model("SGLang")
    chosen = _resolve_aliases(normalize_arguments(launch.setup.args))
    defaults: dict[str, Argument] = {
        "dtype": launch.dtype or "bfloat16",
        "context-length": launch.context_with(_CONTEXT_MARGIN),
        "max-running-requests": launch.concurrency,
        "disable-radix-cache": True,
        "enable-metrics": True,
        "random-seed": launch.seed,
        "skip-server-warmup": True,  # bitbench's own warm-up is measured
    }
    if "mem-fraction-static" not in chosen:
        # Without a limit SGLang takes, and on a CPU really touches, most of the free memory.
        defaults["max-total-tokens"] = launch.cached_tokens(_PAGE, _CONTEXT_MARGIN)
    fixed: dict[str, Argument] = {
        "model-path": str(model),
        "served-model-name": _MODEL_NAME,
        "host": "127.0.0.1",
        "port": port,
    }
    options = {**defaults, **chosen, **fixed}
    # SGLang has switches to turn options on, but not to turn them off.
    given = {name: value for name, value in options.items() if value is not False}
    return make_isolated_command(python, _SERVER, *format_options(given))


def make_sglang_variables(launch: Launch, key: str) -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "GLOO_SOCKET_IFNAME": "lo",  # else its processes also listen at the machine's own address
        **launch.setup.env,
        "BITBENCH_API_KEY": key,
    }


def _resolve_aliases(options: dict[str, Argument]) -> dict[str, Argument]:
    """Return the options under one of the two names that some of them have."""
    return {_ALIASES.get(name, name): value for name, value in options.items()}
