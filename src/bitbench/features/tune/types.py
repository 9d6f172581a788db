"""The key `tune` of a study file, and the result of `bitbench tune`: the configs of the search, the
reasons against them, and the confirmation of the winner in a fresh study."""

from enum import StrEnum

from pydantic import Field

from bitbench.analysis.results.estimate import Estimate, Finding, Verdict, find_worst_verdict
from bitbench.analysis.results.recommendation import Limits, judge_findings
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

    FOUND = "found"  # no other config is better than the leader by more than `within`
    BUDGET = "budget spent"
    NONE_MEETS = "no config meets the limits"


class Fate(StrEnum):
    """The outcome of a config in the search."""

    BEST = "best"
    LEFT = "may be as good"
    BEATEN = "beaten"
    RULED_OUT = "ruled out"  # by a limit, or because trials failed
    NO_RESULT = "no result"


class Tried(Record):
    """A config of the search. Its ratio helped to choose, so the best ratio has a selection
    bias."""

    config: Config
    fate: Fate
    starts: int
    figure: Estimate | None = None
    ratio_to_baseline: Estimate | None = None  # above 1 is better
    findings: tuple[Finding, ...] = ()
    reason: str = ""  # why it has no result, or was ruled out for another reason than a limit


class Confirmed(Record):
    """The winner and the baseline, re-measured in a study that is independent of the search."""

    folder: str
    starts: int  # of each config
    rounds: int  # trials of each config in each start
    ratio: Estimate | None  # above 1 if the winner is better, None with too few results
    is_gain: bool  # the whole interval of the ratio is above 1
    figure: Estimate | None
    findings: tuple[Finding, ...] = ()
    # Windows of fresh text for quality, None without quality, or if it comes from the search.
    windows: int | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict of all limits together."""
        return judge_findings(self.figure, self.findings)


class Tuning(Record):
    """The result of a search. `tried` lists its configs with the best first."""

    name: str
    primary_metric: MetricDefinition  # the metric of the race
    limits: Limits
    workload: str
    baseline: Config
    tried: tuple[Tried, ...]
    refused: tuple[Refusal, ...]
    end: RaceEnd | None  # None if it was interrupted
    chosen: Config | None
    shortfall: float | None  # upper bound on how much better another config of the search may be
    confidence: float
    confirmed: Confirmed | None  # None if nothing was chosen, or the baseline itself
    # The words of the shell command that serves the chosen config, empty if its engine has none.
    deploy: tuple[str, ...]
    search_folder: str
    budget_s: float
    took_s: float

    @property
    def chosen_verdict(self) -> Verdict:
        """The verdict of the chosen config's limits, from the confirmation if there is one."""
        if self.confirmed is not None:
            return self.confirmed.verdict
        return find_worst_verdict(finding.verdict for finding in self.chosen_findings)

    @property
    def chosen_findings(self) -> tuple[Finding, ...]:
        if self.confirmed is not None:
            return self.confirmed.findings
        return next((tried.findings for tried in self.tried if tried.config == self.chosen), ())

    @property
    def exit_code(self) -> ExitCode:
        """DONE if the winner meets every limit and its gain is confirmed, or if it is the baseline
        and was compared with the others."""
        if not any(tried.figure for tried in self.tried):
            return ExitCode.NOTHING_MEASURED
        if self.chosen is None:
            is_open = any(tried.fate in (Fate.LEFT, Fate.BEATEN) for tried in self.tried)
            return ExitCode.INCONCLUSIVE if is_open else ExitCode.FAILED
        if self.chosen_verdict is Verdict.MISSED:
            return ExitCode.FAILED
        is_best = self.shortfall is not None
        if self.confirmed is not None:
            is_best = self.confirmed.is_gain
        if is_best and self.chosen_verdict is Verdict.MET:
            return ExitCode.DONE
        return ExitCode.INCONCLUSIVE
