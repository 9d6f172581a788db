"""What to run, under which limits, and why not the others. Made by `analysis.recommend`; printed by `report`."""

from collections.abc import Iterable

from pydantic import computed_field

from bitbench.analysis.results.estimate import Estimate, Finding, Verdict, worst_limit_check
from bitbench.analysis.results.summary import MetricDefinition, SameEngineRatio
from bitbench.study.base import Record
from bitbench.study.objective import Objective
from bitbench.study.plan import Config
from bitbench.util.errors import ExitCode

MEMORY, QUALITY_LOSS = "memory", "quality loss"  # names of findings
QUALITY_NOT_MEASURED = "quality was not measured in this study"


class Limits(Record):
    """What a person asks for. What is None or empty is not asked."""

    objectives: tuple[Objective, ...] = ()
    memory_bytes: int | None = None
    quality_loss: float | None = None  # relative


def recommendation_verdict(figure: Estimate | None, findings: Iterable[Finding]) -> Verdict:
    """Of all limits together; without a figure there is nothing that could meet them."""
    return (
        Verdict.MISSED
        if figure is None
        else worst_limit_check(finding.verdict for finding in findings)
    )


class Judged(Record):
    """One config on one workload. `figure` is that of the primary metric; None where it has no result."""

    config: Config
    figure: Estimate | None
    ratio_to_baseline: Estimate | None = None  # above 1 is better; None for the baseline itself too
    same_engine: SameEngineRatio | None = (
        None  # None: the baseline is that config, or there is none
    )
    memory: Estimate | None = (
        None  # as run: with the KV cache that its engine reserves at the start
    )
    findings: tuple[Finding, ...] = ()
    trials: int = 0
    failed_trials: int = 0
    quality_doubt: str = (
        ""  # "was not measured", "is flagged: …"; empty where nothing speaks against it
    )
    is_flagged: bool = False  # for its quality
    why_no_result: str = ""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> Verdict:
        """Of all limits together."""
        return recommendation_verdict(self.figure, self.findings)


class Choice(Record):
    """The answer for one workload; `judged` has the best primary metric first and those without a result last."""

    workload: str
    model: str | None = None  # None where the study has one: each model has an answer of its own
    baseline: Config | None = None
    judged: tuple[Judged, ...]
    chosen: Config | None  # the best that meets all limits with confidence
    starts_needed: int | None = None  # of each config; None: there are enough to choose
    undecided: tuple[Config, ...] = ()  # meet the limits, too, and may be as fast as the chosen one
    deploy: tuple[
        str, ...
    ] = ()  # the command that serves the chosen one, as words for a shell; empty: none is known

    def of(self, config: Config) -> Judged:
        return next(judged for judged in self.judged if judged.config == config)

    def with_verdict(self, verdict: Verdict) -> list[Judged]:
        return [judged for judged in self.judged if judged.verdict is verdict]


class Recommendation(Record):
    study: str
    limits: Limits
    primary_metric: MetricDefinition
    memory_name: str  # which memory the limit is held against
    choices: tuple[Choice, ...]
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """FAILED: for one workload no config meets the limits. INCONCLUSIVE: for one the trials do not decide."""
        if not any(judged.figure for choice in self.choices for judged in choice.judged):
            return ExitCode.NOTHING_MEASURED
        unanswered = [choice for choice in self.choices if choice.chosen is None]
        if any(
            not (choice.starts_needed or choice.with_verdict(Verdict.INCONCLUSIVE))
            for choice in unanswered
        ):
            return ExitCode.FAILED
        return ExitCode.INCONCLUSIVE if unanswered else ExitCode.DONE
