"""Two studies, or two configs of one, against each other. Made by `analysis.study_comparison`."""

from enum import StrEnum

from bitbench.analysis.results.estimate import Estimate, Verdict
from bitbench.analysis.results.facts import Fact
from bitbench.analysis.results.summary import MetricDefinition
from bitbench.study.base import Record
from bitbench.study.plan import Point
from bitbench.util.errors import ExitCode


class ChangeVerdict(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    LESS = "less"  # of what is better when it is less but is no time: memory
    MORE = "more"
    WORSE = "worse quality"
    BETTER = "better quality"
    UNDECIDED = "undecided"
    UNKNOWN = "inconclusive"  # too few trials for an interval


QUALITY = (
    "quality"  # stands for the workload in points that are about quality, which no workload has
)


class ComparedPoint(Record):
    """`ratio` is above 1 where the candidate is better, whichever way the metric goes. For perplexity it is paired,
    token by token of the same text. `corrected` is its interval at the level of the verdict, for all that are compared
    at once: it contains 1 exactly where the verdict is undecided."""

    baseline: Point
    candidate: Point
    metric: str
    before: Estimate
    after: Estimate
    ratio: Estimate | None
    verdict: ChangeVerdict
    corrected: Estimate | None = None

    @property
    def decisive(self) -> Estimate | None:
        """The ratio with the interval that agrees with the verdict."""
        return self.corrected or self.ratio


class Unpaired(Record):
    """A point that only one side has a result for."""

    point: Point
    reason: str
    was_lost: bool  # the baseline has a result, the candidate was asked and has none


class Difference(Record):
    """A fact that is not the same on both sides."""

    fact: Fact
    subject: str  # whose: a config, a variant, an environment; empty for the host
    before: str
    after: str
    is_allowed: bool = False


class Replicate(StrEnum):
    """What was repeated, and so what an interval covers."""

    STARTS = "starts"
    TRIALS = "trials"  # of a server that bitbench did not start: a restart is not covered


class GateResult(Record):
    """One condition on one point. `ratio` is candidate / baseline, as the condition asks. Its interval decides, and is
    wider, for all that are asked at once."""

    condition: str
    metric: str
    baseline: Point
    candidate: Point
    verdict: Verdict
    ratio: Estimate | None
    reason: str = ""  # why it is inconclusive
    unit: Replicate = Replicate.STARTS


CACHED_ON_ONE_SIDE = "a prefix cache answered the prompts of one side only, or far more of them"


class CacheDifference(Record):
    """A point that a prefix cache answered on one side only, or far more: its figures are not of the same work."""

    point: Point
    before: (
        float  # share of the prompt tokens that came from a cache which the study did not ask for
    )
    after: float


class Comparison(Record):
    baseline: str
    candidate: str
    confidence: float
    definitions: dict[str, MetricDefinition]
    points: tuple[ComparedPoint, ...]
    unpaired: tuple[Unpaired, ...] = ()
    differences: tuple[Difference, ...] = ()  # those that were allowed, or are the question itself
    unknown_facts: tuple[Fact, ...] = ()  # on both sides: cannot be checked
    cached: tuple[CacheDifference, ...] = ()  # such points have no verdict
    gates: tuple[GateResult, ...] = ()
    allow_inconclusive: bool = False  # a limit that an interval contains fails nothing

    @property
    def exit_code(self) -> ExitCode:
        """Of the limits. One that a side has no figure for was not met, whatever is allowed; nor is anything decided
        about a point that a cache answered on one side only."""
        if not self.points:
            return ExitCode.NOTHING_MEASURED
        if any(gate.verdict is Verdict.MISSED for gate in self.gates):
            return ExitCode.FAILED
        is_open = bool(self.cached) or any(
            gate.verdict is Verdict.INCONCLUSIVE
            and (gate.ratio is None or not self.allow_inconclusive)
            for gate in self.gates
        )
        return ExitCode.INCONCLUSIVE if is_open else ExitCode.DONE
