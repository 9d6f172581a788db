"""The key `tune` of a study file, and what `bitbench tune` found: what was searched, what was ruled out and why,
what a fresh study says of the best."""

from enum import StrEnum

from pydantic import Field

from bitbench.analysis.results.estimate import Estimate, Finding, Verdict, worst_limit_check
from bitbench.analysis.results.recommendation import Limits, recommendation_verdict
from bitbench.analysis.results.summary import MetricDefinition
from bitbench.study.base import Bytes, Fraction, Record
from bitbench.study.plan import Config, Refusal
from bitbench.study.study import Study, StudySection
from bitbench.util.errors import ExitCode


class Tune(StudySection):
    """A search for the best config, confirmed afterwards."""

    description = "what `bitbench tune` looks for among the configs"
    run_by = "tune"
    may_change = True

    max_memory: Bytes | None = Field(
        default=None, gt=0, description="peak memory as run, reserved KV cache included"
    )
    max_quality_loss: Fraction | None = Field(
        default=None, ge=0, description="rise of perplexity; needs `quality`"
    )
    within: Fraction = Field(
        default=0.02,
        ge=0,
        lt=1,
        description="the search ends early once nothing is better than its best by more",
    )

    def refuse(self, study: Study) -> str | None:
        if len(study.workloads) != 1 or len(study.models) > 1:
            return "what is best differs by workload and model; give one of each"
        if self.max_quality_loss is not None and study.quality is None:
            return "max_quality_loss needs quality to be measured; add `quality: {}`"
        return None


class RaceEnd(StrEnum):
    """Why a search ended."""

    FOUND = "found"  # nothing that was searched is better than its best by more than was asked for
    BUDGET = "budget spent"
    NONE_MEETS = "no config meets the limits"


class Fate(StrEnum):
    """What became of a config in the search."""

    BEST = "best"
    LEFT = "may be as good"
    BEATEN = "beaten"
    RULED_OUT = "ruled out"  # by a limit, or because trials failed
    NO_RESULT = "no result"


class Tried(Record):
    """A config of the search. Its ratio helped to choose, and the best of many such ratios is too good."""

    config: Config
    fate: Fate
    starts: int
    figure: Estimate | None = None
    ratio_to_baseline: Estimate | None = None  # above 1 is better
    findings: tuple[Finding, ...] = ()
    reason: str = ""  # why it was ruled out, where that is no limit, or has no result


class Confirmed(Record):
    """The best and the baseline, both started anew in a study that the search knew nothing of."""

    folder: str
    starts: int  # of each
    rounds: int  # trials of each in each start
    ratio: (
        Estimate | None
    )  # above 1: the best is better; None where one of the two has too few results
    is_gain: bool  # the whole interval of the ratio is above 1
    figure: Estimate | None
    findings: tuple[Finding, ...] = ()
    windows: int | None = (
        None  # of fresh text, that quality was judged by; None: it was not, or by the search's
    )

    @property
    def verdict(self) -> Verdict:
        """Of all limits together."""
        return recommendation_verdict(self.figure, self.findings)


class Tuning(Record):
    """`tried`: the configs that were searched, the best first."""

    name: str
    primary_metric: MetricDefinition  # the figure that is raced by
    limits: Limits
    workload: str
    baseline: Config
    tried: tuple[Tried, ...]
    refused: tuple[Refusal, ...]
    end: RaceEnd | None  # None: it was interrupted
    chosen: Config | None
    shortfall: (
        float | None
    )  # no other that was searched is better than the chosen one by more, with confidence
    confidence: float
    confirmed: (
        Confirmed | None
    )  # None: nothing to confirm, since none was chosen, or the baseline itself
    deploy: tuple[
        str, ...
    ]  # the command that serves the chosen one, as words for a shell; empty: its engine has none
    search_folder: str
    budget_s: float
    took_s: float

    @property
    def chosen_verdict(self) -> Verdict:
        """Of the chosen one and its limits: as confirmed, or as searched where it is the baseline."""
        if self.confirmed is not None:
            return self.confirmed.verdict
        return worst_limit_check(finding.verdict for finding in self.chosen_findings)

    @property
    def chosen_findings(self) -> tuple[Finding, ...]:
        if self.confirmed is not None:
            return self.confirmed.findings
        return next((tried.findings for tried in self.tried if tried.config == self.chosen), ())

    @property
    def exit_code(self) -> ExitCode:
        """DONE: the best meets every limit, and its gain is confirmed, or it is the baseline and was compared."""
        if not any(tried.figure for tried in self.tried):
            return ExitCode.NOTHING_MEASURED
        if self.chosen is None:
            open_ = any(tried.fate in (Fate.LEFT, Fate.BEATEN) for tried in self.tried)
            return ExitCode.INCONCLUSIVE if open_ else ExitCode.FAILED
        if self.chosen_verdict is Verdict.MISSED:
            return ExitCode.FAILED
        is_best = self.shortfall is not None if self.confirmed is None else self.confirmed.is_gain
        return (
            ExitCode.DONE
            if is_best and self.chosen_verdict is Verdict.MET
            else ExitCode.INCONCLUSIVE
        )
