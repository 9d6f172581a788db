"""What an explanation holds: what was to be expected, what was measured, where the difference is."""

from enum import StrEnum

from bitbench.analysis.configs import PhaseSide, Side
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import MetricDefinition
from bitbench.records.profile import OperatorProfile, Phase
from bitbench.records.roof import MachineRoof, PointRoof
from bitbench.study.base import Record
from bitbench.study.workload import Workload


class Cause(StrEnum):
    """Where time goes that the bytes and operations of a variant do not ask for."""

    DEQUANTIZATION = (
        "dequantization"  # weights are expanded to dense ones, at load or before a product
    )
    KERNEL = "kernel"  # the products themselves
    CASTS = "casts"  # copies and changes of type
    ATTENTION = "attention"  # with the KV cache: does not shrink with the weights
    NORMS = "norms"
    SAMPLING = "sampling"
    OTHER = "other"  # operators that no pattern knows
    FRAMEWORK = "framework"  # in no operator
    UNEXPLAINED = "unexplained"


class Part(Record):
    """One cause in one phase, per step. `excess_s` is what it takes beyond its share of the expected time."""

    cause: Cause
    excess_s: float
    baseline_s: float | None = None  # None where no profile tells
    own_s: float | None = None


class PhaseAccount(Record):
    """Prefill or decode at one workload: a step of the config against one of the baseline."""

    phase: Phase
    own: PhaseSide
    baseline: PhaseSide
    speed: Estimate | None  # more than 1: the config is faster
    expected_gain: float | None  # the roofline prediction
    is_roofline: bool = (
        False  # expected under the machine's roof; else, where that is not known, from bytes alone
    )
    parts: tuple[Part, ...] = ()  # the largest excess first; without the unexplained one
    unexplained: Part | None = None
    unexplained_s: Estimate | None = (
        None  # its excess, as far as the trials vary; None where they do not tell
    )
    is_profiled: bool = False  # the parts are those of operator profiles of both

    @property
    def expected_s(self) -> float | None:
        return None if self.expected_gain is None else self.baseline.step.value / self.expected_gain

    @property
    def excess_s(self) -> float | None:
        return None if self.expected_s is None else self.own.step.value - self.expected_s


class Missing(StrEnum):
    """What would let the explanation say more."""

    PROFILE = "profile"
    PROFILE_BATCH = "profile_batch"  # there is one, but not of this batch
    PROFILER = "profiler"  # an engine has none
    ROOF = "roof"
    COST = "cost"
    PHASES = "phases"
    STARTS = "starts"


class Gap(Record):
    missing: Missing
    detail: str = ""


class Explanation(Record):
    study: str
    workload: Workload
    definition: MetricDefinition  # of the primary metric
    own: Side
    baseline: Side
    own_primary_metric: Estimate | None
    baseline_primary_metric: Estimate | None
    speed: Estimate | None  # by the primary metric; more than 1: the config is faster
    confidence: float
    phases: tuple[PhaseAccount, ...] = ()
    known_beforehand: str | None = None
    roof: MachineRoof | None = None
    gaps: tuple[Gap, ...] = ()


class Profiles(Record):
    """Of a study, in the order in which they were taken, with their longest operators."""

    profiles: tuple[OperatorProfile, ...]


class Roofline(Record):
    """Every point of a study against the roof of its machine."""

    roof: MachineRoof
    points: tuple[PointRoof, ...]
