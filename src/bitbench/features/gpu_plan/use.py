"""How many devices a setup uses, and how much of each, from arguments that engines for GPUs spell alike."""

from bitbench.engines.options import pipeline_parallel_size, spelled, tensor_parallel_size
from bitbench.features.gpu_plan.types import DeviceUse
from bitbench.study.study import EngineSetup

_SHARE = ("gpu-memory-utilization", "mem-fraction-static")
_CONTEXT = ("max-model-len", "context-length")
_KV_TYPE = "kv-cache-dtype"
DEFAULT_SHARE = 0.92  # vLLM's own; others leave about as much free


def device_use(setup: EngineSetup) -> DeviceUse:
    chosen = spelled(setup.args)
    share = next((chosen[name] for name in _SHARE if name in chosen), DEFAULT_SHARE)
    is_share = isinstance(share, int | float) and 0 < share <= 1
    kv_bytes = 1 if str(chosen.get(_KV_TYPE, "")).startswith(("fp8", "int8")) else 2
    context = next((chosen[name] for name in _CONTEXT if name in chosen), None)
    return DeviceUse(
        devices=tensor_parallel_size(setup.args) * pipeline_parallel_size(setup.args),
        tensor_parallel=tensor_parallel_size(setup.args),
        memory_share=float(share) if is_share else DEFAULT_SHARE,
        kv_value_bytes=kv_bytes,
        context_tokens=context if type(context) is int and context > 0 else None,
    )
