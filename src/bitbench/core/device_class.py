"""Devices to plan for that are not in this machine: what their vendor publishes about them, and what a plan needs.

Peak rates are dense ones (the half of those that datasheets give "with sparsity"), of the tensor cores; memory is what
the driver reports, which is less than the number in the name.
"""

from bitbench.core.base import Record
from bitbench.core.capability import Capability, parse_capability
from bitbench.core.cell import Contender

_GB = 1e9
_TERA = 1e12
_MIB = 2**20


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
    memory_share: float  # of each device's memory that it may take
    kv_value_bytes: int = 2  # of a number in the KV cache
    context_tokens: int | None = None  # that it makes room for at its start; None: for what is asked


class DeviceNeed(Record):
    """What a contender takes of each device, at the longest workload that fits."""

    contender: Contender
    use: DeviceUse
    kernel: str | None  # that its linear layers are expected to run on; None: unknown
    weight_bytes: int | None  # on all devices together; None: unknown
    kv_bytes: int | None  # of every request at its full length, on each device
    needed_bytes: int | None  # on each device, at least: with room for one request
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
    untimed: tuple[Contender, ...] = ()  # whose time is not in it, since its cost per step is unknown
    price_per_hour: float | None = None  # of one device
    cost: tuple[float, float] | None = None


DEVICE_CLASSES = {
    device.name: device
    for device in (
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
            name="t4",
            title="NVIDIA T4",
            capability="7.5",
            memory_bytes=15_360 * _MIB,
            read_bytes_per_s=320 * _GB,
            flops_per_s=65 * _TERA,
            int8_ops_per_s=130 * _TERA,
        ),
    )
}
