"""Devices that are not in this machine: what their vendor publishes (`devices.yaml`), how a setup uses them, and what
a plan needs of them."""

from pathlib import Path

import yaml

from bitbench.engines.options import pipeline_parallel_size, spelled_arguments, tensor_parallel_size
from bitbench.planning.plan import PlanAnswer
from bitbench.study.base import Bytes, Record
from bitbench.study.hardware import Capability, parse_capability
from bitbench.study.plan import Config
from bitbench.study.study import EngineSetup
from bitbench.util.errors import UsageError
from bitbench.util.text import did_you_mean


class DeviceClass(Record):
    name: str  # as `--device-class` takes it
    title: str
    capability: str  # compute capability, such as 9.0
    memory_bytes: Bytes
    read_bytes_per_s: float
    flops_per_s: float  # in 16 bits
    int8_ops_per_s: float
    fp8_flops_per_s: float | None = None  # None: it has no such tensor cores

    @property
    def compute_capability(self) -> Capability:
        return parse_capability(self.capability)


class DeviceUse(Record):
    """How an engine's setup uses devices."""

    devices: int = 1  # that share the layers of one copy of the model
    memory_share: float  # of each device's memory that it may take
    kv_value_bytes: int = 2  # of a number in the KV cache
    context_tokens: int | None = (
        None  # that it makes room for at its start; None: for what is asked
    )


class DeviceNeed(Record):
    """What a config takes of each device, at the longest workload that fits."""

    config: Config
    use: DeviceUse
    kernel: str | None  # that its linear layers are expected to run on; None: unknown
    weight_bytes: int | None  # on all devices together; None: unknown
    request_kv_bytes: int | None = None  # of one request, on each device
    needed_bytes: (
        int | None
    )  # on each device, at least: its weights, the KV cache of one request, and some besides
    room_bytes: int  # that it may take of each
    too_long: tuple[str, ...] = ()  # workloads that do not fit
    waits: tuple[str, ...] = ()  # workloads whose requests do not all fit into the KV cache at once
    fits: bool  # at least one workload does


class DevicePlan(Record):
    """A plan for devices that are not here. Seconds: at least, and at most; an estimate."""

    device: DeviceClass
    devices: int
    needs: tuple[DeviceNeed, ...]
    seconds: tuple[float, float]
    untimed: tuple[Config, ...] = ()  # whose time is not in it, since its cost per step is unknown


class GpuPlanAnswer(PlanAnswer):
    """As `plan`, there; what each config takes of the devices, and the hours."""

    on_device: DevicePlan


_FILE = Path(__file__).with_name("devices.yaml")
DEVICE_CLASSES = {
    row["name"]: DeviceClass.model_validate(row)
    for row in yaml.safe_load(_FILE.read_text(encoding="utf-8"))
}


def gpu_plan_device_class(name: str) -> DeviceClass:
    """Raises UsageError."""
    if name not in DEVICE_CLASSES:
        raise UsageError(
            f"--device-class {name}: {did_you_mean(name, DEVICE_CLASSES)}known are {', '.join(DEVICE_CLASSES)}"
        )
    return DEVICE_CLASSES[name]


_SHARE = ("gpu-memory-utilization", "mem-fraction-static")
_CONTEXT = ("max-model-len", "context-length")
_KV_TYPE = "kv-cache-dtype"
DEFAULT_SHARE = 0.92  # vLLM's own; others leave about as much free


def gpu_plan_device_use(setup: EngineSetup) -> DeviceUse:
    chosen = spelled_arguments(setup.args)
    share = next((chosen[name] for name in _SHARE if name in chosen), DEFAULT_SHARE)
    is_share = isinstance(share, int | float) and 0 < share <= 1
    kv_bytes = (
        1 if str(chosen.get(_KV_TYPE, setup.kv_cache or "")).startswith(("fp8", "int8")) else 2
    )
    context = next((chosen[name] for name in _CONTEXT if name in chosen), None)
    return DeviceUse(
        devices=tensor_parallel_size(setup.args) * pipeline_parallel_size(setup.args),
        memory_share=float(share) if is_share else DEFAULT_SHARE,
        kv_value_bytes=kv_bytes,
        context_tokens=context if type(context) is int and context > 0 else None,
    )
