"""Where it was measured."""

from bitbench.core.base import Record
from bitbench.core.capability import Capability, parse_capability

# Facts of a host that change figures; others (kernel version, Python) are recorded but forbid nothing.
TELLING_FACTS = ("cpu_model", "cpu_flags", "cores", "threads", "governor", "memory_bytes", "accelerators")


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

    def shown(self, name: str) -> str | None:
        """One fact as text; None where it is not known."""
        value = getattr(self, name)
        if isinstance(value, tuple):
            return ", ".join(str(part) for part in value) or None
        return None if value in (None, "") else str(value)
