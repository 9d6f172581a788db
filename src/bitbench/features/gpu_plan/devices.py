"""GPUs that are not in this machine: their published data (`devices.yaml`), how a setup uses them,
and what a plan needs of them."""

from pathlib import Path

import yaml

from bitbench.engines.options import (
    normalize_arguments,
    pipeline_parallel_size,
    tensor_parallel_size,
)
from bitbench.planning.plan import PlanAnswer
from bitbench.study.base import Bytes, Record
from bitbench.study.hardware import Capability, parse_capability
from bitbench.study.plan import Config
from bitbench.study.study import EngineSetup
from bitbench.util.errors import UsageError
from bitbench.util.text import suggest_name


class DeviceClass(Record):
    """A kind of GPU, with the data that its vendor publishes."""

    name: str  # value of `--device-class`
    title: str
    capability: str  # compute capability, such as 9.0
    memory_bytes: Bytes
    read_bytes_per_s: float
    flops_per_s: float  # in 16 bits
    int8_ops_per_s: float
    fp8_flops_per_s: float | None = None  # None without such tensor cores

    @property
    def compute_capability(self) -> Capability:
        return parse_capability(self.capability)


class DeviceUse(Record):
    """The use of devices by an engine's setup."""

    devices: int = 1  # devices that share one copy of the model
    memory_share: float  # allowed share of each device's memory
    kv_value_bytes: int = 2  # bytes of a number in the KV cache
    # Tokens that the engine reserves at its start, None if it follows the workload.
    context_tokens: int | None = None


class DeviceNeed(Record):
    """The memory that a config needs on each device, at the longest workload that fits."""

    config: Config
    use: DeviceUse
    kernel: str | None  # expected for its linear layers, None if unknown
    weight_bytes: int | None  # on all devices together, None if unknown
    request_kv_bytes: int | None = None  # of one request, on each device
    # The least on each device: weights, KV cache of one request, and an overhead.
    needed_bytes: int | None
    room_bytes: int  # that it may use on each device
    too_long: tuple[str, ...] = ()  # workloads that do not fit
    waits: tuple[str, ...] = ()  # workloads whose requests do not all fit into the KV cache at once
    fits: bool  # at least one workload fits


class DevicePlan(Record):
    """A plan for devices that are not here. `seconds` is an estimated minimum and maximum."""

    device: DeviceClass
    devices: int
    needs: tuple[DeviceNeed, ...]
    seconds: tuple[float, float]
    untimed: tuple[Config, ...] = ()  # left out of `seconds`, since their cost per step is unknown


class GpuPlanAnswer(PlanAnswer):
    """The answer of `bitbench plan-gpu --json`: a plan, the memory of each config, and the
    hours."""

    on_device: DevicePlan


_FILE = Path(__file__).with_name("devices.yaml")
DEVICE_CLASSES = {
    row["name"]: DeviceClass.model_validate(row)
    for row in yaml.safe_load(_FILE.read_text(encoding="utf-8"))
}


def get_device_class(name: str) -> DeviceClass:
    """Return the GPU of this name. Raise UsageError with the known names."""
    if name not in DEVICE_CLASSES:
        raise UsageError(
            f"--device-class {name}: {suggest_name(name, DEVICE_CLASSES)}"
            f"known are {', '.join(DEVICE_CLASSES)}"
        )
    return DEVICE_CLASSES[name]


_SHARE = ("gpu-memory-utilization", "mem-fraction-static")
_CONTEXT = ("max-model-len", "context-length")
_KV_TYPE = "kv-cache-dtype"
DEFAULT_SHARE = 0.92  # vLLM's default, other engines leave about as much free


def make_device_use(setup: EngineSetup) -> DeviceUse:
    """Return how a setup uses devices, by its engine arguments."""
    args = normalize_arguments(setup.args)
    share = next((args[name] for name in _SHARE if name in args), DEFAULT_SHARE)
    is_share = isinstance(share, int | float) and 0 < share <= 1
    kv_type = str(args.get(_KV_TYPE, setup.kv_cache or ""))
    context = next((args[name] for name in _CONTEXT if name in args), None)
    return DeviceUse(
        devices=tensor_parallel_size(setup.args) * pipeline_parallel_size(setup.args),
        memory_share=float(share) if is_share else DEFAULT_SHARE,
        kv_value_bytes=1 if kv_type.startswith(("fp8", "int8")) else 2,
        context_tokens=context if type(context) is int and context > 0 else None,
    )
