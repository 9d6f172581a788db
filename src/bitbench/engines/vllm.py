"""vLLM: its own OpenAI server, as `pip install` gives it, with the study's arguments."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bitbench.engines import vllm_log
from bitbench.engines.cuda_toolkit import complete_toolkit, toolkit_variables
from bitbench.engines.limits import refuse_long_context, refuse_set_context
from bitbench.engines.options import argument_uses, command_words, spelled
from bitbench.engines.processes import free_port, random_key
from bitbench.engines.server import ServerInstance, ServerPlan
from bitbench.engines.starts import Preparation
from bitbench.ports import Endpoint, Instance, Launch
from bitbench.study.capability import Capability
from bitbench.study.environment import Environment
from bitbench.study.quality import Scoring
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.use import Use
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload
from bitbench.util.child_python import isolated
from bitbench.util.errors import EngineEnvironmentError, ModelError

_PINNED = Path(__file__).with_name("pinned")
_SERVER = "vllm.entrypoints.openai.api_server"  # `vllm serve` fails where the package is not called vllm, as on CPUs
_MODEL_NAME = "model"
# Beyond the longest request: vLLM stops one token before its limit, and a later version may add some of its own.
_CONTEXT_MARGIN = 16
_KV_BLOCK = 128  # tokens; each request may leave its last block almost empty
_LEAST_KV_GIB = 1
_FIRST_WITH_BFLOAT16 = Capability(8, 0)  # vLLM refuses the type on GPUs before Ampere
_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
# Arguments that are a number, a switch or one of vLLM's own words. Whatever names a file, a class, a host or a program,
# or takes JSON in which one can be named, is not among them.
_HARMLESS = frozenset(
    (
        *_PARALLEL,
        *("async-scheduling", "block-size", "cpu-offload-gb", "disable-log-stats", "dtype", "enable-chunked-prefill"),
        *("enable-expert-parallel", "enable-prefix-caching", "enforce-eager", "gpu-memory-utilization"),
        *("attention-backend", "kv-cache-dtype", "kv-cache-memory-bytes", "linear-backend"),
        *("long-prefill-token-threshold", "max-logprobs"),
        *("max-long-partial-prefills", "max-model-len", "max-num-batched-tokens", "max-num-partial-prefills"),
        *("max-num-seqs", "max-seq-len-to-capture", "num-gpu-blocks-override", "quantization"),
        *("scheduling-policy", "seed", "swap-space", "uvicorn-log-level"),
    )
)
# How many requests run at once, and how much memory waits for them. Not `max-model-len`, by which some models choose
# how they encode positions, nor what chooses kernels or splits a prompt.
_SPEED_ONLY = frozenset(
    (
        *("disable-log-stats", "gpu-memory-utilization", "kv-cache-memory-bytes", "max-long-partial-prefills"),
        *("max-num-partial-prefills", "max-num-seqs", "num-gpu-blocks-override", "scheduling-policy", "swap-space"),
        "uvicorn-log-level",
    )
)
# What it can do with a model while it loads, on a GPU.
_QUANTIZE = (
    "fp8_per_tensor",
    "fp8_per_channel",
    "fp8_per_block",
    "int8_per_channel_weight_only",
    "nvfp4_per_token",
    "mxfp8",
)
_KV_CACHE_TYPES: Mapping[str, Mapping[str, Argument]] = {
    name: {"kv-cache-dtype": name}
    for name in ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "nvfp4")
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
# What each of its processes imports. One that another version does not have is left for the engine itself.
_PREPARATION = Preparation(
    modules=(
        "vllm.entrypoints.openai.api_server",
        "vllm.entrypoints.launchers.api_server.entry",
        "vllm.v1.engine.core",
        "vllm.v1.engine.utils",
        "vllm.v1.executor.multiproc_executor",
        "vllm.v1.worker.cpu_worker",
        "vllm.model_executor.models.llama",
    ),
    hook=Path(__file__).parent / "workers" / "vllm_forks.py",
)
_DEFAULT_MAX_LOGPROBS = 20  # vLLM's own; more must be asked for at its start


class VllmEngine:
    """`ports.Engine` over `vllm.entrypoints.openai.api_server`."""

    name = "vllm"
    own_environment: Environment | None = Environment(
        name="vllm",
        locks={"cpu": _PINNED / "vllm-cpu.txt", "cuda": _PINNED / "vllm-cuda.txt"},
        import_check="import torch, vllm.entrypoints.openai.api_server",
        main_packages=("vllm", "vllm-cpu", "transformers", "torch", "triton"),
        build=complete_toolkit,
    )
    environment: str | None = "vllm"
    needs_model = True
    scoring: Scoring | None = Scoring.PROMPT_LOGPROBS
    start_s = 60.0  # eager, on two cores; compiling adds two minutes the first time
    overhead_bytes = 3 * 2**30  # most of it the least KV cache
    can_profile = True
    quick_args: Mapping[str, Argument] = MappingProxyType({"enforce-eager": True})
    kv_cache_types = _KV_CACHE_TYPES
    speed_only = _SPEED_ONLY
    metrics: Mapping[str, str] = _METRICS

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:
        if (reason := refuse_set_context(setup, "max-model-len", workload)) is not None:
            return reason
        if variant.at_load and variant.at_load.quantize not in _QUANTIZE:
            return f"vLLM does not support {variant.at_load.quantize} at load; it supports {', '.join(_QUANTIZE)}."
        chosen = spelled(setup.args)
        if isinstance(chosen.get("max-model-len"), int) and "hf-overrides" in chosen:
            return None  # they may lengthen the context that the model's configuration says, as YaRN does
        return refuse_long_context(variant, workload)

    def uses(self, setup: EngineSetup) -> tuple[Use, ...]:
        return argument_uses(setup, _HARMLESS)

    def can_freeze(self, setup: EngineSetup) -> bool:
        """Not where several devices work together: their processes watch each other's pulse."""
        chosen = spelled(setup.args)
        return all(chosen.get(name, 1) == 1 for name in _PARALLEL)

    def deployment(self, launch: Launch) -> tuple[dict[str, str], list[str]]:
        server = ["-m", _SERVER, "--model", str(_model(launch)), *command_words(_options(launch))]
        return {**_cache_variables(launch), **launch.setup.env}, [str(launch.python or "python"), *server]

    def start(self, launch: Launch) -> Instance:
        port, key = free_port(), random_key()
        return ServerInstance(
            ServerPlan(
                command=command_line(launch, port),
                env=environment_variables(launch, key),
                endpoint=Endpoint(
                    url=f"http://127.0.0.1:{port}",
                    model=_MODEL_NAME,
                    api_key=key,
                    extra_body={"ignore_eos": True},
                    metrics=self.metrics,
                ),
                log_file=launch.log_file,
                read_facts=lambda log: vllm_log.read_facts(log, launch.variant.facts),
                unsupported=vllm_log.UNSUPPORTED,
                message_of=vllm_log.message_of,
                preparation=_PREPARATION if _may_be_forked(launch) else None,
            ),
            launch.starts,
        )


def _may_be_forked(launch: Launch) -> bool:
    """Not where it is profiled or has several workers, each bound to cores of its own."""
    chosen = spelled(launch.setup.args)
    is_one = all(chosen.get(name, 1) == 1 for name in _PARALLEL)
    return is_one and launch.trace_folder is None and bool(launch.setup.prefork)


def command_line(launch: Launch, port: int) -> list[str]:
    """The server's command: our defaults, overridden by the study's arguments. Holds no secret."""
    if launch.python is None:
        raise EngineEnvironmentError("vLLM needs its environment; create it with: bitbench env create vllm")
    fixed: dict[str, Argument] = {
        "model": str(_model(launch)),
        "served-model-name": _MODEL_NAME,
        "host": "127.0.0.1",
        "port": port,
    }
    if launch.trace_folder is not None:
        fixed["profiler-config"] = profiler_config(launch.trace_folder)
    options = {**_options(launch), **fixed}
    return isolated(launch.python, "-m", _SERVER, *command_words(options))


def _model(launch: Launch) -> Path:
    if launch.variant.path is None:
        raise ModelError("vLLM needs a model; add one under `models` in the study.")
    return launch.variant.path


def _options(launch: Launch) -> dict[str, Argument]:
    defaults: dict[str, Argument] = {
        "dtype": _dtype(launch),
        "max-model-len": _context(launch),
        "max-num-seqs": launch.concurrency,
        "enable-prefix-caching": False,
    }
    if launch.top_tokens > _DEFAULT_MAX_LOGPROBS:
        defaults["max-logprobs"] = launch.top_tokens
    if launch.variant.at_load is not None:
        defaults["quantization"] = launch.variant.at_load.quantize
    return {**defaults, **spelled(launch.setup.args)}


def _cache_variables(launch: Launch) -> dict[str, str]:
    return {"VLLM_CPU_KVCACHE_SPACE": str(_kv_cache_gib(launch))}


def environment_variables(launch: Launch, key: str) -> dict[str, str]:
    """The size of the KV cache is for a CPU; on a GPU vLLM takes what is left, or `kv-cache-memory-bytes`."""
    return {
        **(toolkit_variables(launch.python) if launch.python else {}),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **_cache_variables(launch),
        **launch.setup.env,
        "VLLM_API_KEY": key,
    }


def profiler_config(trace_folder: Path) -> str:
    """Operators and memory of the workers; no Python stacks, which would cost more than what they are to explain."""
    return json.dumps(
        {
            "profiler": "torch",
            "torch_profiler_dir": str(trace_folder),
            "torch_profiler_with_stack": False,
            "torch_profiler_with_memory": True,
            "ignore_frontend": True,
        }
    )


def _dtype(launch: Launch) -> str:
    """What the plan chose for the processor; else bfloat16, but for GPUs that have none."""
    has_none = launch.capability is not None and launch.capability < _FIRST_WITH_BFLOAT16
    return launch.dtype or ("float16" if has_none else "bfloat16")


def _context(launch: Launch) -> int:
    wanted = launch.context_tokens + _CONTEXT_MARGIN
    return min(wanted, launch.variant.facts.context_tokens or wanted)


def _kv_cache_gib(launch: Launch) -> int:
    dtype = spelled(launch.setup.args).get("dtype", _dtype(launch))
    per_token = launch.variant.facts.kv_bytes_per_token(4 if dtype in ("float32", "float") else 2)
    if per_token is None:
        return _LEAST_KV_GIB
    tokens = launch.cached_tokens(_KV_BLOCK, _CONTEXT_MARGIN, _context(launch))
    return max(_LEAST_KV_GIB, math.ceil(tokens * per_token / 2**30))
