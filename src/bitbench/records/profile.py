"""Where the time of a step goes, operator by operator, as torch's profiler saw it."""

from enum import StrEnum
from statistics import fmean, median, quantiles

from bitbench.records.trial import InstanceFacts
from bitbench.study.base import Record
from bitbench.study.plan import Config

PROFILE_FORMAT = 1
# History of PROFILE_FORMAT, the version in each file of profiles/:
#   1  first published form


class Phase(StrEnum):
    PREFILL = "prefill"  # the prompts of a batch, up to its first tokens
    DECODE = "decode"  # one token more for each sequence of a batch


class ProfileGroup(StrEnum):
    """What an operator does for the model."""

    QUANTIZED_MATMUL = "quantized_matmul"
    DENSE_MATMUL = "dense_matmul"
    ATTENTION = "attention"
    NORM_ACTIVATION = "norm_activation"
    COPIES_CASTS = "copies_casts"
    SAMPLING = "sampling"
    OTHER = "other"  # an operator that no pattern knows: shown by its name, never hidden
    FRAMEWORK = "framework"  # the rest of a step, which is in no operator


class Operator(Record):
    """One operator over all profiled steps of a phase; times are sums."""

    name: str
    group: ProfileGroup
    calls: int
    self_cpu_s: float  # without the operators that it called
    self_cpu_share: float  # of the self time of all operators
    cpu_total_s: float  # with them
    self_device_s: float | None = (
        None  # of the device kernels it launched; None where there is no device
    )


class GroupTime(Record):
    """What a group takes of one step, on average. All groups add up to a step."""

    group: ProfileGroup
    step_s: float
    calls: float  # per step


class StepTimes(Record):
    """Seconds of each step (each batch, in prefill), measured outside the profiler by the client."""

    seconds: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        return fmean(self.seconds)

    @property
    def median_s(self) -> float:
        """For comparing: a step that another process interrupted may take ten times as long as the others."""
        return median(self.seconds)

    @property
    def spread_s(self) -> tuple[float, float] | None:
        """The tenth and the ninetieth percentile; None where there is just one step."""
        if len(self.seconds) == 1:
            return None
        deciles = quantiles(self.seconds, n=10, method="inclusive")
        return deciles[0], deciles[-1]


class OperatorProfile(Record):
    """One phase of one config at one shape, in one instance that ran for nothing else."""

    format: int = PROFILE_FORMAT
    id: str
    config: Config
    instance_id: str
    facts: InstanceFacts = InstanceFacts()  # of that instance, with the kernels it chose
    phase: Phase
    batch: int
    context_tokens: (
        int  # prefill: length of each prompt; decode: of each sequence, half way through its answer
    )
    steps: int  # that were profiled
    profiled: StepTimes
    unprofiled: StepTimes  # the same work in the same instance with the profiler off
    operators: tuple[Operator, ...]  # the longest self time first
    groups: tuple[GroupTime, ...]
    trace_file: str | None = None  # Chrome trace, relative to the study folder

    @property
    def groups_s(self) -> float:
        """The sum of what makes a step: to be held against `profiled.mean_s`."""
        return sum(group.step_s for group in self.groups)

    @property
    def overhead(self) -> float:
        """What the profiler itself costs: the median of profiled steps over that of unprofiled ones, minus 1."""
        return self.profiled.median_s / self.unprofiled.median_s - 1.0

    @property
    def overhead_is_clear(self) -> bool:
        """Whether that is more than the unprofiled steps vary among themselves."""
        spread = self.unprofiled.spread_s
        return spread is not None and not spread[0] <= self.profiled.median_s <= spread[1]

    @property
    def agreement(self) -> float:
        """How far the sum of the groups is from the step time that the client measured, relative to it."""
        return self.groups_s / self.profiled.mean_s - 1.0

    def group_s(self, group: ProfileGroup) -> float | None:
        """Seconds per step; None where the profile has no such row."""
        return next((row.step_s for row in self.groups if row.group is group), None)
