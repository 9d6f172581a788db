"""Devices that are not in this machine: what their vendor publishes, how a setup uses them, and what a plan needs of
them.

Peak rates are dense ones (the half of those that datasheets give "with sparsity"), of the tensor cores, which add up
in 32 bits (on GeForce cards that halves them); memory is what the driver reports, which is less than the number in
the name.
"""

from bitbench.engines.options import pipeline_parallel_size, spelled_arguments, tensor_parallel_size
from bitbench.measure.plan import PlanAnswer
from bitbench.study.base import Record
from bitbench.study.hardware import Capability, parse_capability
from bitbench.study.plan import Config
from bitbench.study.study import EngineSetup
from bitbench.util.errors import UsageError
from bitbench.util.text import did_you_mean


class DeviceClass(Record):
    name: str  # as `--device-class` takes it
    title: str
    capability: str  # compute capability, such as 9.0
    memory_bytes: int
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
    tensor_parallel: int = 1  # of these, those that share every layer and sum their parts
    memory_share: float  # of each device's memory that it may take
    kv_value_bytes: int = 2  # of a number in the KV cache
    context_tokens: int | None = None  # that it makes room for at its start; None: for what is asked


class DeviceNeed(Record):
    """What a config takes of each device, at the longest workload that fits."""

    config: Config
    use: DeviceUse
    kernel: str | None  # that its linear layers are expected to run on; None: unknown
    weight_bytes: int | None  # on all devices together; None: unknown
    active_weight_bytes: int | None = None  # of a mixture, what one token reads of them
    summed_bytes: int | None = None  # that tensor parallelism sums between devices for one token; None: no such
    kv_bytes: int | None  # of every request at its full length, on each device
    request_kv_bytes: int | None = None  # of one request, on each device
    needed_bytes: int | None  # on each device, at least: its weights, the KV cache of one request, and some besides
    room_bytes: int  # that it may take of each
    too_long: tuple[str, ...] = ()  # workloads that do not fit
    waits: tuple[str, ...] = ()  # workloads whose requests do not all fit into the KV cache at once
    fits: bool  # at least one workload does


class DevicePlan(Record):
    """A plan for devices that are not here. Seconds and cost: at least, and at most; an estimate."""

    device: DeviceClass
    devices: int
    needs: tuple[DeviceNeed, ...]
    seconds: tuple[float, float]
    untimed: tuple[Config, ...] = ()  # whose time is not in it, since its cost per step is unknown
    price_per_hour: float | None = None  # of one device
    cost: tuple[float, float] | None = None


class GpuPlanAnswer(PlanAnswer):
    """As `plan`, there; what each config takes of the devices, hours and cost."""

    on_device: DevicePlan


_GB = 1e9
_TERA = 1e12
_MIB = 2**20

DEVICE_CLASSES = {
    device.name: device
    for device in (
        DeviceClass(
            name="b200",
            title="NVIDIA B200 180 GB",
            capability="10.0",
            memory_bytes=183_359 * _MIB,
            read_bytes_per_s=8_000 * _GB,
            flops_per_s=2_250 * _TERA,
            int8_ops_per_s=4_500 * _TERA,
            fp8_flops_per_s=4_500 * _TERA,
        ),
        DeviceClass(
            name="h200",
            title="NVIDIA H200 SXM 141 GB",
            capability="9.0",
            memory_bytes=143_771 * _MIB,
            read_bytes_per_s=4_800 * _GB,
            flops_per_s=989 * _TERA,
            int8_ops_per_s=1_979 * _TERA,
            fp8_flops_per_s=1_979 * _TERA,
        ),
        DeviceClass(
            name="h100-80gb",
            title="NVIDIA H100 SXM 80 GB",
            capability="9.0",
            memory_bytes=81_559 * _MIB,
            read_bytes_per_s=3_350 * _GB,
            flops_per_s=989 * _TERA,
            int8_ops_per_s=1_979 * _TERA,
            fp8_flops_per_s=1_979 * _TERA,
        ),
        DeviceClass(
            name="a100-80gb",
            title="NVIDIA A100 SXM 80 GB",
            capability="8.0",
            memory_bytes=81_920 * _MIB,
            read_bytes_per_s=2_039 * _GB,
            flops_per_s=312 * _TERA,
            int8_ops_per_s=624 * _TERA,
        ),
        DeviceClass(
            name="l40s",
            title="NVIDIA L40S",
            capability="8.9",
            memory_bytes=46_068 * _MIB,
            read_bytes_per_s=864 * _GB,
            flops_per_s=362 * _TERA,
            int8_ops_per_s=733 * _TERA,
            fp8_flops_per_s=733 * _TERA,
        ),
        DeviceClass(
            name="l4",
            title="NVIDIA L4",
            capability="8.9",
            memory_bytes=23_034 * _MIB,
            read_bytes_per_s=300 * _GB,
            flops_per_s=121 * _TERA,
            int8_ops_per_s=242 * _TERA,
            fp8_flops_per_s=242 * _TERA,
        ),
        DeviceClass(
            name="a10",
            title="NVIDIA A10",
            capability="8.6",
            memory_bytes=23_028 * _MIB,
            read_bytes_per_s=600 * _GB,
            flops_per_s=125 * _TERA,
            int8_ops_per_s=250 * _TERA,
        ),
        DeviceClass(
            name="t4",
            title="NVIDIA T4",
            capability="7.5",
            memory_bytes=15_360 * _MIB,
            read_bytes_per_s=320 * _GB,
            flops_per_s=65 * _TERA,
            int8_ops_per_s=130 * _TERA,
        ),
        DeviceClass(
            name="rtx5090",
            title="NVIDIA GeForce RTX 5090",
            capability="12.0",
            memory_bytes=32_607 * _MIB,
            read_bytes_per_s=1_792 * _GB,
            flops_per_s=209.5 * _TERA,
            int8_ops_per_s=838 * _TERA,
            fp8_flops_per_s=419 * _TERA,
        ),
        DeviceClass(
            name="rtx4090",
            title="NVIDIA GeForce RTX 4090",
            capability="8.9",
            memory_bytes=24_564 * _MIB,
            read_bytes_per_s=1_008 * _GB,
            flops_per_s=165.2 * _TERA,
            int8_ops_per_s=660.6 * _TERA,
            fp8_flops_per_s=330.3 * _TERA,
        ),
        DeviceClass(
            name="rtx3090",
            title="NVIDIA GeForce RTX 3090",
            capability="8.6",
            memory_bytes=24_576 * _MIB,
            read_bytes_per_s=936 * _GB,
            flops_per_s=71 * _TERA,
            int8_ops_per_s=284 * _TERA,
        ),
    )
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
    kv_bytes = 1 if str(chosen.get(_KV_TYPE, setup.kv_cache or "")).startswith(("fp8", "int8")) else 2
    context = next((chosen[name] for name in _CONTEXT if name in chosen), None)
    return DeviceUse(
        devices=tensor_parallel_size(setup.args) * pipeline_parallel_size(setup.args),
        tensor_parallel=tensor_parallel_size(setup.args),
        memory_share=float(share) if is_share else DEFAULT_SHARE,
        kv_value_bytes=kv_bytes,
        context_tokens=context if type(context) is int and context > 0 else None,
    )
