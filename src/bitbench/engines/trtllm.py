"""TensorRT-LLM: the trtllm-serve that is on the PATH, with its PyTorch backend.

Written after its source and documents, 1.1 to 1.4. Never run: neither on a GPU nor anywhere else.
"""

import re
import shutil
from pathlib import Path

import yaml

from bitbench.core.asked.quality import Scoring
from bitbench.core.asked.study import Argument, EngineSetup
from bitbench.core.asked.use import Use
from bitbench.core.asked.workload import Workload
from bitbench.core.base import Json
from bitbench.core.environment import Environment
from bitbench.core.ports import NO_ARGUMENTS, NO_KV_CACHE_TYPES, Endpoint, Instance, Launch
from bitbench.core.recorded.trial import InstanceFacts
from bitbench.core.recorded.variant import Variant
from bitbench.engines.limits import refuse_long_context
from bitbench.engines.options import argument_uses, command_words, spelled
from bitbench.engines.processes import free_port
from bitbench.engines.server import ServerInstance, ServerPlan
from bitbench.ground.errors import EngineEnvironmentError, ModelError, StudyFileError
from bitbench.ground.safe_files import SafeFolder

_SERVER = "trtllm-serve"
_BY_HAND = (
    "bitbench cannot install TensorRT-LLM, which needs MPI and CUDA of the system; install it as its own documents say "
    f"and put {_SERVER} on the PATH, or measure a container that runs with the engine `endpoint`."
)
_CONTEXT_MARGIN = 16  # beyond the longest request, as for the other engines
_PARALLEL = ("tensor-parallel-size", "tp-size", "pipeline-parallel-size", "pp-size", "context-parallel-size", "cp-size")
# What the server takes only in its file of settings, by the name under `args`.
_IN_FILE = ("enable-block-reuse", "free-gpu-memory-fraction", "kv-cache-dtype")
_FILE_OPTIONS = ("config", "extra-llm-api-options")
_HARMLESS = frozenset(
    (
        *_PARALLEL,
        *_IN_FILE,
        *("backend", "enable-chunked-prefill", "ep-size", "gpus-per-node", "log-level", "max-batch-size"),
        *("max-num-tokens", "max-seq-len", "moe-expert-parallel-size", "num-postprocess-workers"),
    )
)

_PREFIX = re.compile(
    r"^\[[\d/]+-[\d:]+\] \[TRT-LLM\](?: \[RANK \d+\])? \[\w\] |^\[TensorRT-LLM\]\[\w+\] (?:\[RANK \d+\] ?)?"
)
_VERSION = re.compile(r"TensorRT[- ]LLM version: (\S+)")
_WEIGHTS = re.compile(
    r"Memory used after loading model weights \(inside torch\) in memory usage profiling: ([\d.]+) GiB"
)
_KV_CACHE = re.compile(r"Allocated ([\d.]+) GiB for max tokens in paged KV cache \((\d+)\)")
_REUSE = re.compile(r"KV cache block reuse is (disabled|enabled)")
_UNSUPPORTED = re.compile(
    r"^Error: (No such option|Invalid value|Got unexpected extra argument)"
    r"|^(ValueError|NotImplementedError|KeyError|RuntimeError): .*(not supported|[Uu]nsupported|not support"
    r"|not implemented|Unrecognized model|No GPU devices found)"
    r"|^NotImplementedError"
)


class TrtllmEngine:
    """`core.ports.Engine` over trtllm-serve."""

    name = "trtllm"
    own_environment: Environment | None = Environment(name="trtllm", locks={}, import_check="", by_hand=_BY_HAND)
    needs_model = True
    scoring: Scoring | None = None  # it returns whole logits of a prompt as JSON, or nothing
    start_s = 90.0
    overhead_bytes = 4 * 2**30
    can_profile = False
    kv_cache_types = NO_KV_CACHE_TYPES
    speed_only = frozenset[str]()
    quick_args = NO_ARGUMENTS

    def __init__(self) -> None:
        self.environment: str | None = None if shutil.which(_SERVER) else "trtllm"

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:
        for name in setup.args:
            if name.lstrip("-").replace("_", "-") in _FILE_OPTIONS:
                raise StudyFileError(
                    f"trtllm's argument {name} is a file that bitbench writes itself, with "
                    f"{', '.join(_IN_FILE)} from `args`; remove it",
                    ("args", name),
                )
        return refuse_long_context(variant, workload)

    def uses(self, setup: EngineSetup) -> tuple[Use, ...]:
        return argument_uses(setup, _HARMLESS)

    def can_freeze(self, setup: EngineSetup) -> bool:
        """Not where several devices work together: their processes watch each other's pulse."""
        chosen = spelled(setup.args)
        return all(chosen.get(name, 1) == 1 for name in _PARALLEL)

    def start(self, launch: Launch) -> Instance:
        """It has no key: it listens on loopback, and has no name for a model but its folder's."""
        if launch.variant.path is None:
            raise ModelError("TensorRT-LLM needs a model; add one under `models` in the study.")
        port = free_port()
        folder, name = launch.log_file.parent, f"{launch.log_file.stem}.trtllm.yaml"
        settings = SafeFolder(folder).write(name, yaml.safe_dump(settings_of(launch)))
        return ServerInstance(
            ServerPlan(
                command=command_line(launch, port, settings),
                env={"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **launch.setup.env},
                endpoint=Endpoint(
                    url=f"http://127.0.0.1:{port}", model=launch.variant.path.name, extra_body={"ignore_eos": True}
                ),
                log_file=launch.log_file,
                read_facts=read_facts,
                unsupported=_UNSUPPORTED,
                message_of=message_of,
            )
        )


def command_line(launch: Launch, port: int, settings: Path) -> list[str]:
    """Its options are spelled with underscores, and its switches can only be turned on."""
    server = shutil.which(_SERVER)
    if server is None:
        raise EngineEnvironmentError(f"TensorRT-LLM's {_SERVER} is not on the PATH. {_BY_HAND}")
    defaults: dict[str, Argument] = {
        "backend": "pytorch",
        "max-batch-size": launch.concurrency,
        "max-seq-len": _context(launch),
    }
    fixed: dict[str, Argument] = {"host": "127.0.0.1", "port": port, "extra-llm-api-options": str(settings)}
    options = {**defaults, **spelled(launch.setup.args), **fixed}
    given = {
        name.replace("-", "_"): value for name, value in options.items() if name not in _IN_FILE and value is not False
    }
    return [server, str(launch.variant.path), *command_words(given)]


def settings_of(launch: Launch) -> dict[str, Json]:
    """The file of settings, which overrides the command line. Block reuse is its prefix cache, and on by itself."""
    chosen = spelled(launch.setup.args)
    cache: dict[str, Json] = {"enable_block_reuse": bool(chosen.get("enable-block-reuse", False))}
    if "free-gpu-memory-fraction" in chosen:
        cache["free_gpu_memory_fraction"] = chosen["free-gpu-memory-fraction"]
    if "kv-cache-dtype" in chosen:
        cache["dtype"] = chosen["kv-cache-dtype"]
    return {"kv_cache_config": cache, "cuda_graph_config": {"max_batch_size": launch.concurrency}}


def message_of(line: str) -> str:
    """A log line without time, level and rank, which its Python and its C++ part write in different ways."""
    return _PREFIX.sub("", line, count=1)


def read_facts(log: str) -> InstanceFacts:
    """Of one rank. The cache is allocated twice, first for a trial run: the last one counts. It names no kernel."""
    messages = [message_of(line) for line in log.splitlines()]
    version, weights, reuse = (_last(pattern, messages) for pattern in (_VERSION, _WEIGHTS, _REUSE))
    cache = _last(_KV_CACHE, messages)
    return InstanceFacts(
        engine_version=version[1] if version else None,
        weight_bytes_loaded=_gib(weights),
        kv_cache_bytes=_gib(cache),
        kv_cache_tokens=int(cache[2]) if cache else None,
        prefix_caching=reuse[1] == "enabled" if reuse else None,
    )


def _gib(found: re.Match[str] | None) -> int | None:
    return round(float(found[1]) * 2**30) if found else None


def _context(launch: Launch) -> int:
    wanted = launch.context_tokens + _CONTEXT_MARGIN
    return min(wanted, launch.variant.facts.context_tokens or wanted)


def _last(pattern: re.Pattern[str], messages: list[str]) -> re.Match[str] | None:
    return next(filter(None, map(pattern.search, reversed(messages))), None)
