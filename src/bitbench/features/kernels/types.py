"""What the kernel bench records: raw seconds per round, and what they rest on."""

from pydantic import Field

from bitbench.study.base import Record
from bitbench.study.kernel_device import KernelDevice

KERNEL_FORMAT = 1  # 1: first published form


class KernelMachine(Record):
    """Where the kernels ran, and what it can do at most, as the bench measured it."""

    format: int = KERNEL_FORMAT
    device: KernelDevice
    device_name: str | None = None  # of a GPU
    cuda: str | None = None  # the version that torch was built for
    cpu_model: str
    threads: int
    torch: str
    isa: str | None = None  # the best one that the native kernel could choose
    openmp: str | None = None  # the runtime whose threads it uses
    read_bytes_per_s: float
    flops_per_s: float
    warm: bool
    cold_bytes: int
    seed: int


class KernelTiming(Record):
    """One case at one shape and batch. `seconds` has one value per round; a round runs every case once."""

    case: str
    in_features: int
    out_features: int
    batch: int
    labels: dict[str, int] = Field(default_factory=dict)
    isa: str | None = None  # the instruction set that it ran on, where the case has several
    weight_bytes: int
    error: float | None  # relative, against double precision; None where it could not run
    cause: str | None = None  # why there are no seconds
    seconds: tuple[float, ...] = ()
    pass_rounds: tuple[int, ...] = ()  # how many of them each pass over all points gave; empty: one pass

    @property
    def size_bytes(self) -> int:
        """What one product reads and writes: weights once, activations and results in 16 bits."""
        return self.weight_bytes + 2 * self.batch * (self.in_features + self.out_features)

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.in_features * self.out_features


class KernelRun(Record):
    machine: KernelMachine
    timings: tuple[KernelTiming, ...]


class Median(Record):
    value: float
    low: float | None = None  # None where there are too few rounds for an interval
    high: float | None = None


class KernelFigures(Record):
    """What one case's rounds come to."""

    timing: KernelTiming
    seconds: Median | None  # None where the case was not timed
    speedups: dict[str, Median]  # how many times as fast as a baseline; one that was not timed is left out
    bytes_per_s: float | None
    intensity: float  # flop per byte
    roof_share: float | None  # the time under this machine's roofline, divided by the measured one


class KernelSummary(Record):
    machine: KernelMachine
    baselines: tuple[str, ...]
    figures: tuple[KernelFigures, ...]
