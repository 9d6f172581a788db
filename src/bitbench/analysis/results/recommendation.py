"""The recommended config of each workload, and why the other configs were not chosen.

`analysis.recommend` makes a recommendation, and `report` prints it.
"""

from collections.abc import Iterable

from pydantic import computed_field

from bitbench.analysis.results.estimate import Estimate, Finding, Verdict, find_worst_verdict
from bitbench.analysis.results.summary import MetricDefinition, SameEngineRatio
from bitbench.study.base import Record
from bitbench.study.objective import Objective
from bitbench.study.plan import Config
from bitbench.util.errors import ExitCode

# Names of findings.
MEMORY = "memory"
QUALITY_LOSS = "quality loss"
QUALITY_NOT_MEASURED = "quality was not measured in this study"


class Limits(Record):
    """The requested limits. A limit that is None or empty is not requested."""

    objectives: tuple[Objective, ...] = ()
    memory_bytes: int | None = None
    quality_loss: float | None = None  # relative


def judge_findings(figure: Estimate | None, findings: Iterable[Finding]) -> Verdict:
    """Return the verdict on all limits together. A config without a result misses them."""
    if figure is None:
        return Verdict.MISSED
    return find_worst_verdict(finding.verdict for finding in findings)


class Judged(Record):
    """One config on one workload.

    `figure` is its value of the primary metric. It is None if the config has no result.
    """

    config: Config
    figure: Estimate | None
    ratio_to_baseline: Estimate | None = None  # above 1 is better; None for the baseline itself too
    same_engine: SameEngineRatio | None = None  # None: the baseline is that config, or none exists
    memory: Estimate | None = None  # with the KV cache that its engine reserves at the start
    findings: tuple[Finding, ...] = ()
    trials: int = 0
    failed_trials: int = 0
    quality_doubt: str = ""  # "was not measured", "is flagged: …"; empty without a doubt
    is_flagged: bool = False  # for its quality
    why_no_result: str = ""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> Verdict:
        """Return the verdict on all limits together."""
        return judge_findings(self.figure, self.findings)


class Choice(Record):
    """The answer for one workload.

    `judged` has the best primary metric first, and configs without a result last.
    """

    workload: str
    model: str | None = None  # None for one model; else each model has its own answer
    baseline: Config | None = None
    judged: tuple[Judged, ...]
    chosen: Config | None  # the best that meets all limits with confidence
    starts_needed: int | None = None  # of each config; None: there are enough to choose
    undecided: tuple[Config, ...] = ()  # also meet the limits, and may be as fast as the chosen one
    deploy: tuple[str, ...] = ()  # the shell words of the command that serves it; empty if unknown

    def of(self, config: Config) -> Judged:
        """Return the entry of a config."""
        return next(judged for judged in self.judged if judged.config == config)

    def list_with_verdict(self, verdict: Verdict) -> list[Judged]:
        """Return the entries with this verdict."""
        return [judged for judged in self.judged if judged.verdict is verdict]


class Recommendation(Record):
    """The configs to run in a study, by workload, under the requested limits."""

    study: str
    limits: Limits
    primary_metric: MetricDefinition
    memory_name: str  # which memory the limit is held against
    choices: tuple[Choice, ...]
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of all workloads together.

        FAILED means that for a workload no config meets the limits. INCONCLUSIVE means that for a
        workload the trials do not decide.
        """
        if not any(judged.figure for choice in self.choices for judged in choice.judged):
            return ExitCode.NOTHING_MEASURED
        unanswered = [choice for choice in self.choices if choice.chosen is None]
        for choice in unanswered:
            if not (choice.starts_needed or choice.list_with_verdict(Verdict.INCONCLUSIVE)):
                return ExitCode.FAILED
        return ExitCode.INCONCLUSIVE if unanswered else ExitCode.DONE
