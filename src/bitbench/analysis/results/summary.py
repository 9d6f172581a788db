"""The summary of a study, by `analysis.summarize`: everything that a report may print."""

from enum import StrEnum
from typing import TypeVar

from pydantic import Field, SerializeAsAny

from bitbench.analysis.results.estimate import (
    Estimate,
    Finding,
    PercentileEstimate,
    Verdict,
    find_worst_verdict,
)
from bitbench.records.quality import TaskFailure
from bitbench.records.trial import NOT_THE_ENGINES, Failure, KernelChoice, Outcome
from bitbench.study.base import Record
from bitbench.study.hardware import Level
from bitbench.study.metrics import Metric
from bitbench.study.plan import Config, Expectation, ImportSource, Point, QualityRefusal, Refusal
from bitbench.study.study import Study
from bitbench.util.errors import ExitCode


class MetricDefinition(Record):
    """A metric as readers need to know it: its entry in `study.metrics`."""

    label: str  # as a column's title: "Output"
    name: str  # as in a sentence: "output throughput"
    unit: str  # "s", "tok/s", "req/s", "bytes", "J/tok"; for quality "nats", "%" or nothing
    higher_is_better: bool
    definition: str

    @classmethod
    def of(cls, metric: Metric) -> "MetricDefinition":
        return cls(
            label=metric.label,
            name=metric.words,
            unit=metric.unit,
            higher_is_better=metric.higher_is_better,
            definition=metric.meaning,
        )


class Outlier(Record):
    """A trial far from the others of its point. It still counts."""

    trial_id: str
    metric: str
    value: float
    median: float


class Run(Record):
    """One measured trial, whatever its outcome."""

    trial_id: str
    instance_id: str
    block: int
    outcome: Outcome
    metrics: dict[str, float]  # only those that are defined
    holds: bool | None = None  # its objectives; None without objectives
    why_not: str | None = None
    # Metrics that a late client may have moved too far, although the trial counts.
    uncertain: tuple[str, ...] = ()
    requests: int = 0
    failed_requests: int = 0


class FailureGroup(Record):
    """One cause of failure, and every trial that ended with it.

    Causes that differ only in numbers count as one, and the first is shown.
    """

    failure: Failure
    ids: tuple[str, ...]


class EngineSummary(Record):
    """The engine's own counters over the trials of a point. None if it does not have a counter."""

    trials: int
    queue_s: float | None = None
    waiting: float | None = None
    preemptions: float | None = None
    cached_tokens: float | None = None
    kv_use: float | None = None
    acceptance_length: float | None = None  # tokens of a step that began with a draft
    acceptance_rate: float | None = None  # share of drafted tokens


class CachedPrompts(Record):
    """The use of a prefix cache by a point, although the study did not request one."""

    trials: int  # that count, with 1 % of their prompt tokens or more from a prefix cache
    share: float  # of the prompt tokens, mean over the trials


class StreamSummary(Record):
    """How the answers of a point were streamed, over the requests of its trials."""

    tokens_per_chunk: float
    median_gap_s: float | None  # between two chunks; None: one chunk per answer
    longest_gap_s: float | None


class PointSummary(Record):
    """The results of one config on one workload.

    `tails` has percentiles over the requests of all trials, by the column of the metric
    (`ttft_p99_s`). It is empty if rows are missing. A percentile in `metrics` is the mean of the
    percentiles of single trials.
    """

    point: Point
    metrics: dict[str, Estimate]
    tails: dict[str, PercentileEstimate] = Field(default_factory=dict)
    objectives: tuple[Finding, ...] = ()  # those of the study
    runs: tuple[Run, ...]
    outliers: tuple[Outlier, ...]
    failures: tuple[FailureGroup, ...]
    is_unfinished: bool = False  # a later run of the study adds trials
    # bitbench did not start the server: intervals are over its trials, and do not cover a restart.
    was_running: bool = False
    engine: EngineSummary | None = None  # None if it has no metrics of its own
    streams: StreamSummary | None = None  # None: its requests were not kept
    cached: CachedPrompts | None = None  # None: no known use of a cache that was not requested

    @property
    def verdict(self) -> Verdict | None:
        """Return the verdict on all objectives together, or None without objectives."""
        if not self.objectives:
            return None
        return find_worst_verdict(finding.verdict for finding in self.objectives)


class MemorySummary(Record):
    """The memory of a config over its instances.

    A value is None if neither the engine nor this system reports it.
    """

    weight_bytes_stored: int | None = None
    weight_bytes_loaded: Estimate | None = None
    steady_bytes: Estimate | None = None  # at the end of a trial: the mean of each instance
    peak_bytes: Estimate | None = None
    device_steady_bytes: Estimate | None = None
    device_peak_bytes: Estimate | None = None
    kv_cache_bytes: Estimate | None = None
    kv_bytes_per_token: Estimate | None = None
    kv_cache_tokens: Estimate | None = None

    @property
    def peak(self) -> Estimate | None:
        """Return the peak of the device if one was used, else of the process."""
        return self.device_peak_bytes or self.peak_bytes


class ConfigSummary(Record):
    """The versions and kernels that a config actually ran, in the engine's own words.

    More than one entry means that instances differed.
    """

    config: Config
    instances: int
    instances_ready: int
    ready_s: Estimate | None
    weight_load_s: Estimate | None
    compile_s: Estimate | None
    idle_memory_bytes: Estimate | None  # once ready, before the first request
    memory: MemorySummary
    engine_versions: tuple[str, ...]
    kernels: tuple[str, ...]
    # The choices of its instances: one entry if all agree.
    kernel_choices: tuple[tuple[KernelChoice, ...], ...] = ()
    commands: tuple[str, ...]
    prefix_caching: tuple[bool, ...]
    notes: tuple[str, ...]
    # The unquantized model, or no model: it has no quality to lose.
    is_reference: bool = False
    random_weights: bool = False  # only the shape of a model, without any quality


class AgainstBaseline(StrEnum):
    """The claim about a config and the baseline, corrected for all configs of a workload."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal"  # within the requested margin
    UNDECIDED = "undecided"


class SameEngineRatio(Record):
    """A config compared with the unquantized model on its engine, if that is not the baseline."""

    unquantized: Config
    ratio: Estimate  # above 1 is better, as in `RankingEntry.ratio_to_baseline`


class RankingEntry(Record):
    """The ranks that a config may have: one number if it differs significantly from all others.

    The ranks are None if it has a single start, or if no other config has more than one. The next
    start may differ as much as two configs do. `ratio_to_baseline` is above 1 if the config is
    better, for a time as for a throughput, and has the interval of this one ratio.
    `against_baseline` is corrected for all of the workload.
    """

    config: Config
    rank_low: int | None
    rank_high: int | None
    undecided_with: tuple[Config, ...]
    ratio_to_baseline: Estimate | None
    against_baseline: AgainstBaseline | None = None  # None: the baseline itself, or no baseline
    same_engine: SameEngineRatio | None = None  # None: that model is the baseline or has no result


class ComparedModel(Record):
    """One model of a study. Models are never ranked together, and each has its own baseline."""

    name: str
    configs: tuple[Config, ...]  # including those that were refused
    baseline: Config | None


class Ranking(Record):
    """The ranking of one workload by the primary metric, best mean first.

    Configs without a result are not in it.
    """

    workload: str
    model: str | None = None  # of these configs; None if the study has one model
    metric: str
    baseline: Config | None  # None if it has no result on this workload
    entries: tuple[RankingEntry, ...]
    possible_bests: tuple[Config, ...] = ()  # contain the best; empty if too little is known
    # Starts per config, for a decision. None: there are enough, or nothing to compare.
    starts_needed: int | None = None


class SearchStop(StrEnum):
    """Why a search for the highest rate stopped."""

    PRECISE = "precise enough"
    TRIALS = "trials used up"
    HIGHEST = "meets them even at the highest rate"
    LOWEST = "fails even at the lowest rate"


class RateAnswer(Record):
    """The highest rate that meets the objectives, in requests per second, and its interval.

    `rate` and `low` are None if no trial met them, and `high` is None if no trial failed. `stop` is
    None while the search continues.
    """

    rate: float | None
    low: float | None
    high: float | None
    confidence: float
    trials: int
    stop: SearchStop | None
    verified: float | None = None  # a rate at which a long trial met the objectives
    verified_requests: int | None = None  # of that trial
    refuted: tuple[float, ...] = ()  # rates at which a long trial missed them


class TaskFlips(Record):
    """Answers compared with the baseline's, question by question."""

    lost: int  # right in the baseline, wrong here
    gained: int
    difference: Estimate  # of the shares that are right; the interval is of paired answers
    # Exact, two-sided: as many lost as gained. Adjusted for all variants of the study (Holm).
    p_value: float


class NeedleDepth(Record):
    """The number of sentences that were found in windows of this length, at this depth."""

    length: int  # tokens
    depth: int  # percent of the text before it
    found: int
    asked: int


class TaskEstimate(Record):
    """One metric of one task.

    `difference` is to the baseline's value. Without single answers, its error is from both
    standard errors.
    """

    task: str
    metric: str
    value: float
    standard_error: float | None
    samples: int | None
    difference: float | None = None
    difference_error: float | None = None
    flips: TaskFlips | None = None
    cut_share: float | None = None  # of answers that ended at the length limit


class PositionDivergence(Record):
    """The mean KL divergence from the baseline over positions `first` to `last` of a window."""

    first: int
    last: int
    divergence: Estimate


class QualityState(StrEnum):
    """The loss of a config compared with the limits of the study."""

    WITHIN = "within"  # whole intervals are within all limits
    BEYOND = "beyond"  # a whole interval is beyond a limit, or a value is not a number
    UNDECIDED = "undecided"  # not enough text or probability mass


class ConfigQuality(Record):
    """The quality that a config keeps of its baseline's.

    `estimates` has the keys of `quality_definitions`. Estimates that need a baseline are missing if
    it has none or was not measured. `state` is None if nothing can be compared. `reason` says
    why the config is not within the limits.
    """

    config: Config
    baseline: Config | None
    outcome: Outcome
    cause: str | None = None
    estimates: dict[str, Estimate] = Field(default_factory=dict)
    windows: int = 0
    tokens: int = 0
    top_tokens: int = 0
    corpus: str | None = None  # the source of the text
    # For the same weights in another setting than the baseline's.
    by_position: tuple[PositionDivergence, ...] = ()
    state: QualityState | None = None
    reason: str | None = None
    answers: int = 0  # greedy, to fixed questions
    equal_answers: int | None = None  # to the baseline's, token for token; None: nothing to compare
    looping_answers: int = 0  # that end in one piece that repeats
    tasks: tuple[TaskEstimate, ...] = ()
    task_failures: tuple[TaskFailure, ...] = ()
    needles: tuple[NeedleDepth, ...] = ()

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def is_known(self) -> bool:
        """Return True if the loss is known. Metrics without a baseline do not show it."""
        return self.outcome is Outcome.OK and (self.flagged or "perplexity_rise" in self.estimates)

    @property
    def flagged(self) -> bool:
        return self.state is QualityState.BEYOND


class RatioOfAttempts(Record):
    """A ratio to the baseline on one workload, without and with the trials that were rejected."""

    workload: str
    counted: Estimate | None
    all_attempts: Estimate


class Rejections(Record):
    """The trials of a config that were rejected because of a late client or a busy machine.

    It has `ratios` if these were more than a tenth of its attempts, or of the baseline's.
    """

    config: Config
    attempted: int
    rejected: int
    ratios: tuple[RatioOfAttempts, ...] = ()


P = TypeVar("P", bound=Record)


class StudySummary(Record):
    """Everything that the records of a study show."""

    study: Study
    primary_metric: str  # key of `definitions`
    baseline: Config | None  # None if the study names one that does not exist
    definitions: dict[str, MetricDefinition]
    points: tuple[PointSummary, ...]
    configs: tuple[ConfigSummary, ...]
    rankings: tuple[Ranking, ...]
    models: tuple[ComparedModel, ...] = ()  # empty for a single model
    model: str | None = None  # for a part of a study: its model
    refusals: tuple[Refusal, ...]
    imported_from: ImportSource | None = None
    search: RateAnswer | None = None  # only for max-rate searches
    expectations: tuple[Expectation, ...] = ()
    level: Level | None = None  # of the processor it was planned for; None: unknown
    in_float32: tuple[Config, ...] = ()  # because that processor would emulate bf16
    quality: tuple[ConfigQuality, ...] = ()  # in the order of the study; empty if not requested
    quality_definitions: dict[str, MetricDefinition] = Field(default_factory=dict)
    quality_refusals: tuple[QualityRefusal, ...] = ()
    rounded_before: dict[str, str] = Field(default_factory=dict)  # see `Plan.rounded_before`
    rejections: tuple[Rejections, ...] = ()  # of configs with a trial
    # Results of features, by the names of their parts.
    parts: dict[str, SerializeAsAny[Record]] = Field(default_factory=dict)

    def __repr__(self) -> str:
        counts = f"{len(self.configs)} configs, {len(self.points)} points"
        return f"<StudySummary of {self.study.name}: {counts}>"

    def __str__(self) -> str:
        return repr(self)

    def part(self, kind: type[P]) -> P | None:
        """Return the result of a feature, or None if it has none for this study."""
        return next((part for part in self.parts.values() if isinstance(part, kind)), None)

    @property
    def by_model(self) -> tuple["StudySummary", ...]:
        """Return a summary of each model, or this summary if there is one model.

        Rankings and comparisons are always made from one part.
        """
        return tuple(self._part(model) for model in self.models) or (self,)

    def _part(self, model: ComparedModel) -> "StudySummary":
        configs = set(model.configs)
        update: dict[str, object] = {
            "baseline": model.baseline,
            "models": (),
            "model": model.name,
            "rankings": tuple(ranking for ranking in self.rankings if ranking.model == model.name),
            "points": tuple(point for point in self.points if point.point.config in configs),
            "refusals": tuple(item for item in self.refusals if item.point.config in configs),
        }
        for name in ("configs", "expectations", "quality", "quality_refusals", "rejections"):
            items = getattr(self, name)
            update[name] = tuple(item for item in items if item.config in configs)
        return self.model_copy(update=update)

    @property
    def is_measured(self) -> bool:
        """Return True if any point or any quality measurement has a result."""
        if any(point.metrics for point in self.points):
            return True
        return any(quality.outcome is Outcome.OK for quality in self.quality)

    def exit_code(self, *, allow_inconclusive: bool = False) -> ExitCode:
        """Return the exit code of the objectives over all points, or of a search for a rate.

        An objective without a value is not met, even with `allow_inconclusive`. A requested point
        without a result also leaves the study inconclusive.
        """
        if self.search is not None:
            return _judge_search(self.search)
        if not self.is_measured:
            return ExitCode.NOTHING_MEASURED
        is_open = bool(self.lacking)
        for point in self.points:
            for objective in point.objectives:
                if objective.verdict is Verdict.MISSED:
                    return ExitCode.FAILED
                counts = objective.value is None or not allow_inconclusive
                if objective.verdict is Verdict.INCONCLUSIVE and counts:
                    is_open = True
        return ExitCode.INCONCLUSIVE if is_open else ExitCode.DONE

    @property
    def lacking(self) -> tuple[PointSummary, ...]:
        """Return the points that were tried and have no result.

        An engine that failed is a result of a study. A server that was already running and did not
        answer this load has no result.
        """
        return tuple(point for point in self.points if not point.metrics and _is_lacking(point))

    def list_points(self, workload: str) -> tuple[PointSummary, ...]:
        """Return the points of a workload."""
        return tuple(point for point in self.points if point.point.workload == workload)


def _is_lacking(point: PointSummary) -> bool:
    outcomes = {group.failure.outcome for group in point.failures}
    return bool(outcomes) and (point.was_running or outcomes <= NOT_THE_ENGINES)


def _judge_search(answer: RateAnswer) -> ExitCode:
    if not answer.trials:
        return ExitCode.NOTHING_MEASURED
    if answer.stop is None or (answer.rate is not None and answer.verified is None):
        return ExitCode.INCONCLUSIVE
    return ExitCode.FAILED if answer.rate is None else ExitCode.DONE
