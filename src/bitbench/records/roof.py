"""The measured roofline of a machine, and the fastest possible steps under it."""

from enum import StrEnum

from bitbench.records.profile import Phase
from bitbench.study.base import Record
from bitbench.study.model_cost import StepCost
from bitbench.study.plan import Point

ROOF_FORMAT = 1
# History of ROOF_FORMAT, the version in roof.json:
#   1  first published form


class Bound(StrEnum):
    """A limit of a step."""

    MEMORY = "memory"
    ARITHMETIC = "arithmetic"


class Readings(Record):
    """Repeated measurements of one rate, per second.

    The roofline is the best of them, since it is never exceeded.
    """

    values: tuple[float, ...]

    @property
    def best(self) -> float:
        return max(self.values)

    @property
    def spread(self) -> float:
        """Return the distance of the median from the best measurement, relative to the best."""
        return 1 - sorted(self.values)[len(self.values) // 2] / self.best


class MachineRoof(Record):
    """The measured roofline of a machine."""

    format: int = ROOF_FORMAT
    measured_at: str  # wall clock, ISO 8601 in UTC
    cpu_model: str | None
    threads: int
    torch: str
    read_bytes_per_s: Readings
    flops_per_s: Readings  # bfloat16
    float32_flops_per_s: Readings  # faster on a processor without bf16 instructions
    int8_ops_per_s: Readings | None = None  # None if torch lacks such a product here

    @property
    def float_flops_per_s(self) -> float:
        """Return the rate of the faster of the two float types."""
        return max(self.flops_per_s.best, self.float32_flops_per_s.best)


class Attainable(Record):
    """The shortest possible time of a step, and its limit."""

    seconds: float
    memory_s: float
    arithmetic_s: float

    @property
    def bound(self) -> Bound:
        if self.memory_s >= self.arithmetic_s:
            return Bound.MEMORY
        return Bound.ARITHMETIC


def compute_attainable(cost: StepCost, roof: MachineRoof, *, in_int8: bool) -> Attainable:
    """Compute the shortest time of a step that reads and computes at the same time.

    Set `in_int8` if the linear layers multiply 8-bit integers.
    """
    peak = roof.float_flops_per_s
    layers_peak = peak
    if in_int8 and roof.int8_ops_per_s:
        layers_peak = roof.int8_ops_per_s.best
    memory_s = cost.size_bytes / roof.read_bytes_per_s.best
    arithmetic_s = cost.matmul_flops / layers_peak + cost.attention_flops / peak
    return Attainable(
        seconds=max(memory_s, arithmetic_s), memory_s=memory_s, arithmetic_s=arithmetic_s
    )


class PointRoof(Record):
    """A phase of a point: the cost, the shortest possible time and the actual time of a step."""

    point: Point
    phase: Phase
    cost: StepCost
    attainable: Attainable
    step_s: float

    @property
    def share(self) -> float:
        return self.attainable.seconds / self.step_s
