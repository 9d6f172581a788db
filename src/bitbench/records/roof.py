"""What a machine can do at most, as measured on it, and how fast a step could be under that roof."""

from enum import StrEnum

from bitbench.records.profile import Phase
from bitbench.study.base import Record
from bitbench.study.model_cost import StepCost
from bitbench.study.plan import Point

ROOF_FORMAT = 1
# History of ROOF_FORMAT, the version in roof.json:
#   1  first published form


class Bound(StrEnum):
    MEMORY = "memory"
    ARITHMETIC = "arithmetic"


class Readings(Record):
    """The same thing several times, per second. The roof is the best: it is what is not exceeded."""

    values: tuple[float, ...]

    @property
    def best(self) -> float:
        return max(self.values)

    @property
    def spread(self) -> float:
        """How far the middle of the readings lies below the best, as a share of it."""
        return 1 - sorted(self.values)[len(self.values) // 2] / self.best


class MachineRoof(Record):
    format: int = ROOF_FORMAT
    measured_at: str  # wall clock, ISO 8601 in UTC
    cpu_model: str | None
    threads: int
    torch: str
    read_bytes_per_s: Readings
    flops_per_s: Readings  # bfloat16
    float32_flops_per_s: Readings  # what a processor without bf16 instructions is better at
    int8_ops_per_s: Readings | None = None  # None where torch has no such product here

    @property
    def float_flops_per_s(self) -> float:
        """In whichever of the two types is quicker here."""
        return max(self.flops_per_s.best, self.float32_flops_per_s.best)


class Attainable(Record):
    """The least time that a step can take, and what bounds it."""

    seconds: float
    memory_s: float
    arithmetic_s: float

    @property
    def bound(self) -> Bound:
        return Bound.MEMORY if self.memory_s >= self.arithmetic_s else Bound.ARITHMETIC


def attainable_under_roof(cost: StepCost, roof: MachineRoof, *, in_int8: bool) -> Attainable:
    """Reading and computing at the same time. `in_int8`: the linear layers multiply 8-bit integers."""
    peak = roof.float_flops_per_s
    layers_peak = roof.int8_ops_per_s.best if in_int8 and roof.int8_ops_per_s else peak
    memory_s = cost.size_bytes / roof.read_bytes_per_s.best
    arithmetic_s = cost.matmul_flops / layers_peak + cost.attention_flops / peak
    return Attainable(
        seconds=max(memory_s, arithmetic_s), memory_s=memory_s, arithmetic_s=arithmetic_s
    )


class PointRoof(Record):
    """One phase of one point: what a step asks for, how fast it could be here, and how long it takes."""

    point: Point
    phase: Phase
    cost: StepCost
    attainable: Attainable
    step_s: float

    @property
    def share(self) -> float:
        return self.attainable.seconds / self.step_s
