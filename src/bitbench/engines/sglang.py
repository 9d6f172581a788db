"""SGLang: its own server with the study's arguments, started by `workers/sglang_server.py`, and what its log says as
facts.

Written against 0.5.23; a line that is not found leaves its fact undefined. On a CPU it computes with torch. Its CUDA
part is written after its source: not yet run on a GPU.
"""

import ast
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from bitbench.engines.kernels import slowness_warnings
from bitbench.engines.options import (
    command_words,
    refuse_context_argument,
    refuse_long_context,
    spelled_arguments,
)
from bitbench.engines.processes import free_port, random_key
from bitbench.engines.server import EngineDefaults, ServerInstance, ServerPlan, printed_server_facts
from bitbench.ports import Endpoint, Instance, Launch
from bitbench.records.trial import InstanceFacts, KernelChoice, KernelPath
from bitbench.study.base import Json
from bitbench.study.environment import Environment
from bitbench.study.quality import Scoring
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.variant import ModelFacts, Variant
from bitbench.study.workload import Workload
from bitbench.util.child_processes import isolated_command

_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?: [A-Z]{2}\d+)*\] ")
_ARGUMENTS = "server_args="
_LOADED = re.compile(
    r"^Load weight end\. elapsed=([\d.]+) s, .*?(?:quant=([\w-]+), .*)?mem usage=(-?[\d.]+) GB"
)
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
ENDS_ITSELF = re.compile(
    r" hit an exception: Traceback|^Subprocess \S+ .*crashed with exit code (?!-9\b|-15\b)"
)


def sglang_log_message(line: str) -> str:
    """A log line without the time and the rank."""
    return _PREFIX.sub("", line, count=1)


def read_sglang_facts(log: str, model: ModelFacts) -> InstanceFacts:
    messages = [sglang_log_message(line) for line in log.splitlines()]
    said, arguments = printed_server_facts(messages), _arguments(messages)
    loaded = _first(_LOADED, messages)
    cache = _last(_KV_CACHE, messages)
    tokens = _last(_ALL_TOKENS, messages)
    value_bytes = _VALUE_BYTES.get(cache[1]) if cache else None
    per_token = model.kv_bytes_per_token(value_bytes) if value_bytes else None
    kv_tokens = int(tokens[1]) if tokens else None
    on_cpu = arguments.get("device") == "cpu"
    by_torch = on_cpu and (
        said.get("own_kernels") is False or _first(_WITHOUT_OWN, messages) is not None
    )
    captured = [float(found[1]) for found in map(_CAPTURED.match, messages) if found]
    choices = _choices(arguments, loaded[2] if loaded else None, cache, by_torch=by_torch)
    caching = arguments.get("disable_radix_cache")
    return InstanceFacts(
        engine_version=said.get("engine_version"),
        kernels=tuple(choice.shown for choice in choices),
        kernel_choices=choices,
        # On a CPU it is the difference of what was free on the machine, in which everybody else has a part.
        weight_bytes_loaded=None
        if on_cpu or not loaded
        else _bytes_of_all_ranks(float(loaded[3]), arguments),
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
    arguments: Mapping[str, Json],
    quantization: str | None,
    cache: re.Match[str] | None,
    *,
    by_torch: bool,
) -> tuple[KernelChoice, ...]:
    """SGLang names the backend of its attention; of the linear layers only the format that they are stored in."""
    attention = arguments.get("attention_backend")
    found = (
        [KernelChoice(kind="attention", kernel=str(attention), source="log")] if attention else []
    )
    if quantization:
        found.append(KernelChoice(kind="linear", kernel=quantization, source="log"))
    elif arguments and arguments.get("quantization") is None:
        dtype = _dtype(arguments, cache)
        by = " (torch, not SGLang's kernels)" if by_torch else ""
        found.append(
            KernelChoice(
                kind="linear", kernel=f"dense {dtype}{by}", path=KernelPath.DENSE, source="log"
            )
        )
    return tuple(found)


def _dtype(arguments: Mapping[str, Json], cache: re.Match[str] | None) -> str:
    asked = str(arguments.get("dtype", "auto"))
    return cache[1] if asked == "auto" and cache else asked


def _kv_cache_bytes(
    tokens: int | None,
    per_token: int | None,
    cache: re.Match[str] | None,
    arguments: Mapping[str, Json],
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


_PINNED = Path(__file__).with_name("pinned")
_SERVER = Path(__file__).parent / "workers" / "sglang_server.py"
_MODEL_NAME = "model"
# Beyond the longest request: SGLang refuses an input that leaves fewer than 6 tokens of the context.
_CONTEXT_MARGIN = 16
_PAGE = 128  # tokens; the largest page of its attention backends, and each request may leave its last one almost empty
# Other names of the same arguments; SGLang knows both.
_ALIASES = {
    "tensor-parallel-size": "tp-size",
    "pipeline-parallel-size": "pp-size",
    "data-parallel-size": "dp-size",
}
_PARALLEL = tuple(_ALIASES.values())
# Plain `fp8`, as vLLM spells it, is refused.
_KV_CACHE_TYPES: Mapping[str, Mapping[str, Argument]] = {
    name: {"kv-cache-dtype": name}
    for name in ("auto", "bfloat16", "fp8_e4m3", "fp8_e5m2", "mxfp8", "nvfp4")
}
# At `/metrics`, which needs no key. A counter appears with the first thing that it counts.
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
        # What the worker does to make SGLang importable lasts as long as `worker`.
        import_check=f"import runpy; worker = runpy.run_path({str(_SERVER)!r}); import sglang.launch_server",
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
        return refuse_context_argument(setup, "context-length", workload) or refuse_long_context(
            variant, workload
        )

    def can_freeze(self, setup: EngineSetup) -> bool:
        """Not where several devices work together: their processes watch each other's pulse."""
        chosen = _named_once(spelled_arguments(setup.args))
        return all(chosen.get(name, 1) == 1 for name in _PARALLEL)

    def start(self, launch: Launch) -> Instance:
        port, key = free_port(), random_key()
        return ServerInstance(
            ServerPlan(
                command=command_line(launch, port),
                env=sglang_variables(launch, key),
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
                message_of=sglang_log_message,
            )
        )


def command_line(launch: Launch, port: int) -> list[str]:
    """The server's command: our defaults, overridden by the study's arguments. Holds no secret."""
    python, model = launch.required_python("SGLang"), launch.required_model("SGLang")
    chosen = _named_once(spelled_arguments(launch.setup.args))
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
        # Without a number SGLang takes, and on a CPU really touches, most of the memory that is free.
        defaults["max-total-tokens"] = launch.cached_tokens(_PAGE, _CONTEXT_MARGIN)
    fixed: dict[str, Argument] = {
        "model-path": str(model),
        "served-model-name": _MODEL_NAME,
        "host": "127.0.0.1",
        "port": port,
    }
    options = {**defaults, **chosen, **fixed}
    # SGLang has switches to turn something on, and none to turn it off.
    given = {name: value for name, value in options.items() if value is not False}
    return isolated_command(python, _SERVER, *command_words(given))


def sglang_variables(launch: Launch, key: str) -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "GLOO_SOCKET_IFNAME": "lo",  # else its processes also listen where the machine's name leads
        **launch.setup.env,
        "BITBENCH_API_KEY": key,
    }


def _named_once(options: dict[str, Argument]) -> dict[str, Argument]:
    return {_ALIASES.get(name, name): value for name, value in options.items()}
