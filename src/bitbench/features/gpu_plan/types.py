"""Devices that are not in this machine, and what a plan needs of them."""

from bitbench.measure.plan import PlanAnswer
from bitbench.study.base import Record
from bitbench.study.capability import Capability, parse_capability
from bitbench.study.plan import Config


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
