"""The parts of an explanation: expected and measured speed, causes of the gap, and missing data."""

from enum import StrEnum

from bitbench.analysis.configs import PhaseSide, Side
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import MetricDefinition
from bitbench.records.profile import OperatorProfile, Phase
from bitbench.records.roof import MachineRoof, PointRoof
from bitbench.study.base import Record
from bitbench.study.workload import Workload


class Cause(StrEnum):
    """A cause of time beyond what the bytes and operations of a variant need."""

    # Weights are expanded to dense ones, at load or before a product.
    DEQUANTIZATION = "dequantization"
    KERNEL = "kernel"  # the products themselves
    CASTS = "casts"  # copies and changes of type
    ATTENTION = "attention"  # includes the KV cache, which does not shrink with the weights
    NORMS = "norms"
    SAMPLING = "sampling"
    OTHER = "other"  # operators that match no pattern
    FRAMEWORK = "framework"  # time outside of operators
    UNEXPLAINED = "unexplained"


class Part(Record):
    """A cause of lost time in one phase, in seconds per step.

    `excess_s` is the time beyond the cause's share of the expected time.
    """

    cause: Cause
    excess_s: float
    baseline_s: float | None = None  # None without a profile
    own_s: float | None = None


class PhaseAccount(Record):
    """A comparison of one phase at one workload: a step of the config and one of the baseline."""

    phase: Phase
    own: PhaseSide
    baseline: PhaseSide
    speed: Estimate | None  # above 1, the config is faster
    expected_gain: float | None  # the roofline prediction
    # True: predicted by the machine's roofline. False: the roofline is unknown, only bytes count.
    is_roofline: bool = False
    parts: tuple[Part, ...] = ()  # the largest excess first, without the unexplained part
    unexplained: Part | None = None
    # The excess of `unexplained` with the error of the trials. None if that error is unknown.
    unexplained_s: Estimate | None = None
    is_profiled: bool = False  # the parts come from operator profiles of both configs

    @property
    def expected_s(self) -> float | None:
        if self.expected_gain is None:
            return None
        return self.baseline.step.value / self.expected_gain

    @property
    def excess_s(self) -> float | None:
        if self.expected_s is None:
            return None
        return self.own.step.value - self.expected_s


class Missing(StrEnum):
    """Evidence that would make the explanation more complete."""

    PROFILE = "profile"
    PROFILE_BATCH = "profile_batch"  # there are profiles, but not at this batch size
    PROFILER = "profiler"  # an engine has no profiler
    ROOF = "roof"
    COST = "cost"
    PHASES = "phases"
    STARTS = "starts"


class Gap(Record):
    """A piece of missing evidence."""

    missing: Missing
    detail: str = ""


class Explanation(Record):
    """An explanation of why a variant is as fast as it is compared with a baseline."""

    study: str
    workload: Workload
    definition: MetricDefinition  # of the primary metric
    own: Side
    baseline: Side
    own_primary_metric: Estimate | None
    baseline_primary_metric: Estimate | None
    speed: Estimate | None  # by the primary metric: above 1, the config is faster
    confidence: float
    phases: tuple[PhaseAccount, ...] = ()
    known_beforehand: str | None = None
    roof: MachineRoof | None = None
    gaps: tuple[Gap, ...] = ()


class Profiles(Record):
    """The operator profiles of a study in the order they were taken, with few operators each."""

    profiles: tuple[OperatorProfile, ...]


class Roofline(Record):
    """A machine's roofline and every point of a study compared with it."""

    roof: MachineRoof
    points: tuple[PointRoof, ...]
