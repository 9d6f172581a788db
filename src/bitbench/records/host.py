"""Where it was measured."""

from bitbench.study.base import Record
from bitbench.study.capability import Capability, parse_capability
from bitbench.study.processor import Level, level_of

# Facts of a host that change figures; others (kernel version, Python) are recorded but forbid nothing.
TELLING_FACTS = ("cpu_model", "cpu_flags", "cores", "threads", "governor", "memory_bytes", "accelerators")

# Of one class: what the kernel keeps for itself differs a little from boot to boot.
SAME_MEMORY = 0.02


class Accelerator(Record):
    name: str
    memory_bytes: int | None = None
    driver: str | None = None
    runtime: str | None = None
    capability: str | None = None  # compute capability, such as 8.9
    ecc: bool | None = None  # memory that corrects errors, which costs bandwidth on some devices
    mig: bool | None = None  # divided into instances
    power_limit_w: float | None = None
    uuid: str | None = None  # which one of its kind: recorded, and no part of what is compared

    def __str__(self) -> str:
        known = [f"{name} {value}" for name, value in self if name not in ("name", "uuid") and value is not None]
        return f"{self.name} ({', '.join(known)})" if known else self.name

    @property
    def compute_capability(self) -> Capability | None:
        return None if self.capability is None else parse_capability(self.capability)


class HostNoise(Record):
    """How much a fixed piece of work varies on this machine, from one repetition to the next."""

    measured_at: str  # wall clock, ISO 8601 in UTC
    repetitions: int
    compute_spread: float  # relative: (90th − 10th percentile) / median
    compute_worst: float  # relative: slowest / median − 1
    memory_spread: float
    memory_worst: float


class HostFacts(Record):
    """None where it is unknown, as for an imported file."""

    cpu_model: str | None = None
    cpu_flags: tuple[str, ...] = ()  # those that decide which kernels can run
    cores: int | None = None
    threads: int | None = None
    numa_nodes: int | None = None
    governor: str | None = None
    memory_bytes: int | None = None
    os: str | None = None
    kernel: str | None = None
    python: str | None = None
    virtualization: str | None = None
    accelerators: tuple[Accelerator, ...] = ()  # those that engines see
    cuda_device_order: str | None = None  # how CUDA counts them: PCI_BUS_ID, as NVML does, or FASTEST_FIRST

    @property
    def level(self) -> Level | None:
        return level_of(self.cpu_flags)

    def differences(self, other: "HostFacts") -> tuple[str, ...]:
        """The telling facts in which two machines are not of one class."""
        return tuple(name for name in TELLING_FACTS if not self._agrees(other, name))

    def _agrees(self, other: "HostFacts", name: str) -> bool:
        if name == "memory_bytes" and self.memory_bytes and other.memory_bytes:
            return abs(self.memory_bytes / other.memory_bytes - 1) <= SAME_MEMORY
        return self.shown(name) == other.shown(name)

    def shown(self, name: str) -> str | None:
        """One fact as text; None where it is not known."""
        value = getattr(self, name)
        if isinstance(value, tuple):
            return ", ".join(str(part) for part in value) or None
        return None if value in (None, "") else str(value)
