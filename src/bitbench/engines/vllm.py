"""vLLM: its own OpenAI server, as `pip install` gives it, with the study's arguments."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bitbench.core.asked.quality import Scoring
from bitbench.core.asked.study import Argument, EngineSetup
from bitbench.core.asked.use import Use
from bitbench.core.asked.workload import Workload
from bitbench.core.capability import Capability
from bitbench.core.environment import Environment
from bitbench.core.ports import Endpoint, Instance, Launch
from bitbench.core.recorded.variant import Variant
from bitbench.engines import vllm_log
from bitbench.engines.cuda_toolkit import complete_toolkit, toolkit_variables
from bitbench.engines.limits import refuse_long_context
from bitbench.engines.options import argument_uses, command_words, spelled
from bitbench.engines.processes import free_port, random_key
from bitbench.engines.server import ServerInstance, ServerPlan
from bitbench.ground.errors import EngineEnvironmentError, ModelError

_PINNED = Path(__file__).with_name("pinned")
_MODEL_NAME = "model"
# Beyond the longest request: vLLM stops one token before its limit, and a later version may add some of its own.
_CONTEXT_MARGIN = 16
_KV_BLOCK = 128  # tokens; each request may leave its last block almost empty
_KV_VALUE_BYTES = 2  # bf16
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
# What it can do with a model while it loads, on a GPU.
_QUANTIZE = (
    "fp8_per_tensor",
    "fp8_per_channel",
    "fp8_per_block",
    "int8_per_channel_weight_only",
    "nvfp4_per_token",
    "mxfp8",
)
_DEFAULT_MAX_LOGPROBS = 20  # vLLM's own; more must be asked for at its start


class VllmEngine:
    """`core.ports.Engine` over `vllm.entrypoints.openai.api_server`."""

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

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:
        longest = spelled(setup.args).get("max-model-len")
        if isinstance(longest, int) and workload.context_tokens > longest:
            return (
                f"{workload.name} needs a context of {workload.context_tokens:,} tokens, but max-model-len of "
                f"{setup.name} is {longest:,}."
            )
        if variant.at_load and variant.at_load.quantize not in _QUANTIZE:
            return f"vLLM does not support {variant.at_load.quantize} at load; it supports {', '.join(_QUANTIZE)}."
        if isinstance(longest, int) and "hf-overrides" in spelled(setup.args):
            return None  # they may lengthen the context that the model's configuration says, as YaRN does
        return refuse_long_context(variant, workload)

    def uses(self, setup: EngineSetup) -> tuple[Use, ...]:
        return argument_uses(setup, _HARMLESS)

    def can_freeze(self, setup: EngineSetup) -> bool:
        """Not where several devices work together: their processes watch each other's pulse."""
        chosen = spelled(setup.args)
        return all(chosen.get(name, 1) == 1 for name in _PARALLEL)

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
                ),
                log_file=launch.log_file,
                read_facts=lambda log: vllm_log.read_facts(log, launch.variant.facts),
                unsupported=vllm_log.UNSUPPORTED,
                message_of=vllm_log.message_of,
            )
        )


def command_line(launch: Launch, port: int) -> list[str]:
    """The server's command: our defaults, overridden by the study's arguments. Holds no secret."""
    if launch.python is None:
        raise EngineEnvironmentError("vLLM needs its environment; create it with: bitbench env create vllm")
    if launch.variant.path is None:
        raise ModelError("vLLM needs a model; add one under `models` in the study.")
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
    fixed: dict[str, Argument] = {
        "model": str(launch.variant.path),
        "served-model-name": _MODEL_NAME,
        "host": "127.0.0.1",
        "port": port,
    }
    if launch.trace_folder is not None:
        fixed["profiler-config"] = profiler_config(launch.trace_folder)
    options = {**defaults, **spelled(launch.setup.args), **fixed}
    module = ["-I", "-m", "vllm.entrypoints.openai.api_server"]
    return [str(launch.python), *module, *command_words(options)]


def environment_variables(launch: Launch, key: str) -> dict[str, str]:
    """The size of the KV cache is for a CPU; on a GPU vLLM takes what is left, or `kv-cache-memory-bytes`."""
    return {
        **(toolkit_variables(launch.python) if launch.python else {}),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(_kv_cache_gib(launch)),
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
    """bfloat16, but for GPUs that have none."""
    has_none = launch.capability is not None and launch.capability < _FIRST_WITH_BFLOAT16
    return "float16" if has_none else "bfloat16"


def _context(launch: Launch) -> int:
    wanted = launch.context_tokens + _CONTEXT_MARGIN
    return min(wanted, launch.variant.facts.context_tokens or wanted)


def _kv_cache_gib(launch: Launch) -> int:
    """Room for every request at its full length, so that none waits for another's cache."""
    per_token = launch.variant.facts.kv_bytes_per_token(_KV_VALUE_BYTES)
    if per_token is None:
        return _LEAST_KV_GIB
    tokens = launch.concurrency * math.ceil(_context(launch) / _KV_BLOCK) * _KV_BLOCK
    return max(_LEAST_KV_GIB, math.ceil(tokens * per_token / 2**30))
