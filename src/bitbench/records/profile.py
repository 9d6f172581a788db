"""Operator profiles: the time of a step by operator, as torch's profiler measured it."""

from enum import StrEnum
from statistics import fmean, median, quantiles

from bitbench.records.trial import InstanceFacts
from bitbench.study.base import Record
from bitbench.study.plan import Config

PROFILE_FORMAT = 1
# History of PROFILE_FORMAT, the version in each file of profiles/:
#   1  first published form


class Phase(StrEnum):
    """A phase of generation."""

    PREFILL = "prefill"  # the prompts of a batch, up to its first tokens
    DECODE = "decode"  # one more token for each sequence of a batch


class ProfileGroup(StrEnum):
    """A group of operators by their purpose in the model."""

    QUANTIZED_MATMUL = "quantized_matmul"
    DENSE_MATMUL = "dense_matmul"
    ATTENTION = "attention"
    NORM_ACTIVATION = "norm_activation"
    COPIES_CASTS = "copies_casts"
    SAMPLING = "sampling"
    OTHER = "other"  # an operator that matches no pattern, reported by its name and never hidden
    FRAMEWORK = "framework"  # the rest of a step, outside all operators


class Operator(Record):
    """An operator over all profiled steps of a phase. Times are sums."""

    name: str
    group: ProfileGroup
    calls: int
    self_cpu_s: float  # without the operators that it called
    self_cpu_share: float  # of the self time of all operators
    cpu_total_s: float  # with them
    # time of the device kernels that it launched, or None without a device
    self_device_s: float | None = None


class GroupTime(Record):
    """The mean time of a group per step. The times of all groups add up to a step."""

    group: ProfileGroup
    step_s: float
    calls: float  # per step


class StepTimes(Record):
    """The seconds of each step (of each batch, in prefill), measured without the profiler."""

    seconds: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        return fmean(self.seconds)

    @property
    def median_s(self) -> float:
        """Return the median, for comparisons: an interrupted step may take ten times as long."""
        return median(self.seconds)

    @property
    def spread_s(self) -> tuple[float, float] | None:
        """Return the 10th and the 90th percentile. None if there is only one step."""
        if len(self.seconds) == 1:
            return None
        deciles = quantiles(self.seconds, n=10, method="inclusive")
        return deciles[0], deciles[-1]


class OperatorProfile(Record):
    """A phase of a config at one shape, in an instance that ran only for the profile."""

    format: int = PROFILE_FORMAT
    id: str
    config: Config
    instance_id: str
    facts: InstanceFacts = InstanceFacts()  # of that instance, with the kernels it chose
    phase: Phase
    batch: int
    # length of each prompt in prefill, or of each sequence halfway through its answer in decode
    context_tokens: int
    steps: int  # number of profiled steps
    profiled: StepTimes
    unprofiled: StepTimes  # the same work in the same instance with the profiler off
    operators: tuple[Operator, ...]  # the longest self time first
    groups: tuple[GroupTime, ...]
    trace_file: str | None = None  # Chrome trace, relative to the study folder

    @property
    def groups_s(self) -> float:
        """Return the sum of all groups per step, to compare with `profiled.mean_s`."""
        return sum(group.step_s for group in self.groups)

    @property
    def overhead(self) -> float:
        """Return the cost of the profiler: median profiled step / median unprofiled step − 1."""
        return self.profiled.median_s / self.unprofiled.median_s - 1.0

    @property
    def overhead_is_clear(self) -> bool:
        """Return True if the overhead exceeds the variation of the unprofiled steps."""
        spread = self.unprofiled.spread_s
        return spread is not None and not spread[0] <= self.profiled.median_s <= spread[1]

    @property
    def agreement(self) -> float:
        """Return the sum of the groups relative to the step time of the client, minus 1."""
        return self.groups_s / self.profiled.mean_s - 1.0

    def group_s(self, group: ProfileGroup) -> float | None:
        """Return the seconds per step of a group. None if the profile has no such row."""
        for row in self.groups:
            if row.group is group:
                return row.step_s
        return None
