"""The comparison of two studies, or of configs of one, by `analysis.study_comparison`."""

from enum import StrEnum

from bitbench.analysis.results.estimate import Estimate, Verdict
from bitbench.analysis.results.facts import Fact
from bitbench.analysis.results.summary import MetricDefinition
from bitbench.study.base import Record
from bitbench.study.plan import Point
from bitbench.util.errors import ExitCode


class ChangeVerdict(StrEnum):
    """The verdict on the change of one metric."""

    FASTER = "faster"
    SLOWER = "slower"
    LESS = "less"  # memory: less is better, but it is not a time
    MORE = "more"
    WORSE = "worse quality"
    BETTER = "better quality"
    UNDECIDED = "undecided"
    UNKNOWN = "inconclusive"  # too few trials for an interval


QUALITY = "quality"  # the workload of points about quality, which have no real workload


class ComparedPoint(Record):
    """One metric of a pair of points.

    `ratio` is above 1 if the candidate is better, whether the metric is better high or low. For
    perplexity it is paired, token by token of the same text. `corrected` has the interval at the
    level of the verdict, which is corrected for all points that are compared. It contains 1 exactly
    if the verdict is undecided.
    """

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
        """Return the ratio with the interval that agrees with the verdict."""
        return self.corrected or self.ratio


class Unpaired(Record):
    """A point that only one side has a result for."""

    point: Point
    reason: str
    was_lost: bool  # the baseline has a result, and the candidate was tried without one


class Difference(Record):
    """A fact that differs between the sides."""

    fact: Fact
    subject: str  # whose: a config, a variant, an environment; empty for the host
    before: str
    after: str
    is_allowed: bool = False


class Replicate(StrEnum):
    """The unit that was repeated, and so what an interval covers."""

    STARTS = "starts"
    TRIALS = "trials"  # of a server that bitbench did not start: a restart is not covered


class GateResult(Record):
    """One condition on one point.

    `ratio` is candidate / baseline, as in the condition. Its interval decides. It is wider than a
    single interval, because it is corrected for all conditions and points.
    """

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
    """A point that a prefix cache answered on one side only, or far more.

    Its metrics are not of the same work.
    """

    point: Point
    # Share of the prompt tokens that came from a cache which the study did not request.
    before: float
    after: float


class Comparison(Record):
    """A candidate compared with a baseline: ratios, verdicts and the results of gates."""

    baseline: str
    candidate: str
    confidence: float
    definitions: dict[str, MetricDefinition]
    points: tuple[ComparedPoint, ...]
    unpaired: tuple[Unpaired, ...] = ()
    differences: tuple[Difference, ...] = ()  # allowed differences, or the question itself
    unknown_facts: tuple[Fact, ...] = ()  # neither side records them
    cached: tuple[CacheDifference, ...] = ()  # these points have no verdict
    gates: tuple[GateResult, ...] = ()
    allow_inconclusive: bool = False  # an inconclusive gate does not fail

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of all gates together.

        A gate without a ratio was not met, even with `allow_inconclusive`. A point that a cache
        answered on one side only leaves the comparison inconclusive too.
        """
        if not self.points:
            return ExitCode.NOTHING_MEASURED
        if any(gate.verdict is Verdict.MISSED for gate in self.gates):
            return ExitCode.FAILED
        for gate in self.gates:
            counts = gate.ratio is None or not self.allow_inconclusive
            if gate.verdict is Verdict.INCONCLUSIVE and counts:
                return ExitCode.INCONCLUSIVE
        return ExitCode.INCONCLUSIVE if self.cached else ExitCode.DONE
