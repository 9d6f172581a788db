"""What the records say, in numbers: the only thing a report may print. Made by `analysis.summarize`."""

from enum import StrEnum
from typing import TypeVar

from pydantic import Field, SerializeAsAny

from bitbench.analysis.results.estimate import (
    Estimate,
    Finding,
    PercentileEstimate,
    Verdict,
    worst_limit_check,
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
    """What a reader of a summary needs to know of a figure: its entry in `study.metrics`."""

    label: str  # as a column's title: "Output"
    name: str  # as in a sentence: "output throughput"
    unit: str  # "s", "tok/s", "req/s", "bytes", "J/tok"; of quality "nats", "%" or nothing
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
    """One measured trial, whatever came of it."""

    trial_id: str
    instance_id: str
    block: int
    outcome: Outcome
    metrics: dict[str, float]  # only those that are defined
    holds: bool | None = None  # its objectives; None where there are none
    why_not: str | None = None
    uncertain: tuple[
        str, ...
    ] = ()  # what a late client may have moved too far, although the trial counts
    requests: int = 0
    failed_requests: int = 0


class FailureGroup(Record):
    """One cause, and every trial that ended with it. Causes that differ only in numbers are one; the first is shown."""

    failure: Failure
    ids: tuple[str, ...]


class EngineSummary(Record):
    """What the engine itself counted over the trials of a point; None where it does not count that."""

    trials: int
    queue_s: float | None = None
    waiting: float | None = None
    preemptions: float | None = None
    cached_tokens: float | None = None
    kv_use: float | None = None
    acceptance_length: float | None = None  # tokens of a step that began with a draft
    acceptance_rate: float | None = None  # share of drafted tokens


class CachedPrompts(Record):
    """Of a point, although the study did not ask for a cache."""

    trials: int  # that count, with 1 % of their prompt tokens or more from a prefix cache
    share: float  # of the prompt tokens, mean over its trials


class StreamSummary(Record):
    """How the answers of a point came, over the requests of its trials."""

    tokens_per_chunk: float
    median_gap_s: float | None  # between two chunks; None: each answer came in one
    longest_gap_s: float | None


class PointSummary(Record):
    """`tails` has percentiles over the requests of all trials, by the column of the figure (`ttft_p99_s`); where rows
    are missing it is empty, and a percentile in `metrics` is the mean of those of single trials."""

    point: Point
    metrics: dict[str, Estimate]
    tails: dict[str, PercentileEstimate] = Field(default_factory=dict)
    objectives: tuple[Finding, ...] = ()  # those of the study
    runs: tuple[Run, ...]
    outliers: tuple[Outlier, ...]
    failures: tuple[FailureGroup, ...]
    is_unfinished: bool = False  # a later call of the study makes more trials of it
    was_running: bool = (
        False  # bitbench did not start it: intervals rest on its trials, and do not cover a restart
    )
    engine: EngineSummary | None = None  # None where it offers no figures of its own
    streams: StreamSummary | None = None  # None: its requests were not kept
    cached: CachedPrompts | None = (
        None  # None: no prompt came from a cache that was not asked for, as far as is known
    )

    @property
    def verdict(self) -> Verdict | None:
        """Of all objectives together; None where the study has none."""
        return (
            worst_limit_check(finding.verdict for finding in self.objectives)
            if self.objectives
            else None
        )


class MemorySummary(Record):
    """What a config takes, over its instances; None where neither the engine nor this system reports it."""

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
        """That of the device where one was used."""
        return self.device_peak_bytes or self.peak_bytes


class ConfigSummary(Record):
    """What was really run: versions and kernels in the engine's own words. More than one: instances differed."""

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
    kernel_choices: tuple[
        tuple[KernelChoice, ...], ...
    ] = ()  # what its instances chose: one entry where all agree
    commands: tuple[str, ...]
    prefix_caching: tuple[bool, ...]
    notes: tuple[str, ...]
    is_reference: bool = (
        False  # the model as it is, or none at all: there is no quality that it could have lost
    )
    random_weights: bool = False  # only the shape of a model: there is no quality at all


class AgainstBaseline(StrEnum):
    """What may be claimed of a config, for all of a workload at once."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal"  # within the margin that was asked for
    UNDECIDED = "undecided"


class SameEngineRatio(Record):
    """A config compared with the unquantized model on its own engine, which the baseline is not."""

    unquantized: Config
    ratio: Estimate  # above 1 is better, as in `RankingEntry.ratio_to_baseline`


class RankingEntry(Record):
    """The ranks this config may have: one number where it is told apart from all others.

    None where it has a single start, or no other has more: the next start may differ as much as two configs do.
    `ratio_to_baseline` is above 1 where the config is better, of a time as of a throughput, and has the interval of
    this one ratio; `against_baseline` is corrected for all of the workload.
    """

    config: Config
    rank_low: int | None
    rank_high: int | None
    undecided_with: tuple[Config, ...]
    ratio_to_baseline: Estimate | None
    against_baseline: AgainstBaseline | None = None  # None: the baseline itself, or there is none
    same_engine: SameEngineRatio | None = (
        None  # None: the baseline says it already, or nothing else does
    )


class ComparedModel(Record):
    """One model of a study: models are never ranked against each other, and each has a baseline of its own."""

    name: str
    configs: tuple[Config, ...]  # those that were refused as well
    baseline: Config | None


class Ranking(Record):
    """One workload by the primary metric, best mean first. Configs without a result are not in it."""

    workload: str
    model: str | None = None  # whose configs these are; None where the study has one model
    metric: str
    baseline: Config | None  # None where it has no result on this workload
    entries: tuple[RankingEntry, ...]
    possible_bests: tuple[
        Config, ...
    ] = ()  # the best is one of these; empty where too little is known
    starts_needed: int | None = (
        None  # of each config, for a decision; None: there are enough, or nothing to compare
    )


class SearchStop(StrEnum):
    """Why a search for the highest rate tried no further one."""

    PRECISE = "precise enough"
    TRIALS = "trials used up"
    HIGHEST = "meets them even at the highest rate"
    LOWEST = "fails even at the lowest rate"


class RateAnswer(Record):
    """The highest rate that meets the objectives, in requests per second, and its interval.

    `rate` and `low` are None where no trial met them, `high` where none failed. `stop` is None while it continues.
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
    """Answers beside the baseline's, question by question."""

    lost: int  # right in the baseline, wrong here
    gained: int
    difference: Estimate  # of the shares that are right; the interval is of paired answers
    p_value: float  # exact, two-sided: as many lost as gained; adjusted for all variants of the study (Holm)


class NeedleDepth(Record):
    """How many sentences were found in windows of this length, at this depth."""

    length: int  # tokens
    depth: int  # percent of the text before it
    found: int
    asked: int


class TaskEstimate(Record):
    """One metric of one task; `difference` is to the baseline's value, its error from both standard errors where single
    answers are not known."""

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
    """Mean KL divergence from the baseline over the tokens at places `first` to `last` of a window."""

    first: int
    last: int
    divergence: Estimate


class QualityState(StrEnum):
    """What a config's loss is against the limits of the study."""

    WITHIN = "within"  # whole intervals are within all of them
    BEYOND = "beyond"  # a whole interval is beyond one, or a figure is no number
    UNDECIDED = "undecided"  # not enough text, or not enough probability mass, to tell


class ConfigQuality(Record):
    """What a config keeps of its baseline's quality.

    `estimates` by the keys of `quality_definitions`; those that need a baseline are missing where there is none or it
    was not measured. `state` is None where nothing can be compared; `reason` says why it is not within the limits.
    """

    config: Config
    baseline: Config | None
    outcome: Outcome
    cause: str | None = None
    estimates: dict[str, Estimate] = Field(default_factory=dict)
    windows: int = 0
    tokens: int = 0
    top_tokens: int = 0
    corpus: str | None = None  # where the text is from
    by_position: tuple[
        PositionDivergence, ...
    ] = ()  # of the same weights in another setting than the baseline's
    state: QualityState | None = None
    reason: str | None = None
    answers: int = 0  # greedy, to fixed questions
    equal_answers: int | None = (
        None  # to the baseline's, token for token; None: nothing to compare with
    )
    looping_answers: int = 0  # end in one piece that repeats
    tasks: tuple[TaskEstimate, ...] = ()
    task_failures: tuple[TaskFailure, ...] = ()
    needles: tuple[NeedleDepth, ...] = ()

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def is_known(self) -> bool:
        """Whether it says what was lost: its own figures alone, without those of a baseline, do not."""
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
    """How many trials of a config were rejected because the client was late or the machine was busy.

    `ratios` where that were more than a tenth of its attempts, or of the baseline's.
    """

    config: Config
    attempted: int
    rejected: int
    ratios: tuple[RatioOfAttempts, ...] = ()


P = TypeVar("P", bound=Record)


class StudySummary(Record):
    study: Study
    primary_metric: str  # key of `definitions`
    baseline: Config | None  # None where the study names one that does not exist
    definitions: dict[str, MetricDefinition]
    points: tuple[PointSummary, ...]
    configs: tuple[ConfigSummary, ...]
    rankings: tuple[Ranking, ...]
    models: tuple[ComparedModel, ...] = ()  # empty where there is one
    model: str | None = None  # of a part of a study: which of its models
    refusals: tuple[Refusal, ...]
    imported_from: ImportSource | None = None
    search: RateAnswer | None = None  # of a study that looks for the highest rate
    expectations: tuple[Expectation, ...] = ()
    level: Level | None = None  # of the processor that it was planned for; None: not known
    in_float32: tuple[Config, ...] = ()  # since that processor would emulate bf16
    quality: tuple[
        ConfigQuality, ...
    ] = ()  # in the order of the study; empty where it asks for none
    quality_definitions: dict[str, MetricDefinition] = Field(default_factory=dict)
    quality_refusals: tuple[QualityRefusal, ...] = ()
    rounded_before: dict[str, str] = Field(default_factory=dict)  # see `Plan.rounded_before`
    rejections: tuple[Rejections, ...] = ()  # of configs with a trial
    parts: dict[str, SerializeAsAny[Record]] = Field(
        default_factory=dict
    )  # of features, by the names of their parts

    def part(self, kind: type[P]) -> P | None:
        """What a feature found; None where it has nothing to say of this study."""
        return next((found for found in self.parts.values() if isinstance(found, kind)), None)

    @property
    def by_model(self) -> tuple["StudySummary", ...]:
        """The same of each model alone, where there are several: whatever ranks or compares is made from one part."""
        return tuple(self._part(model) for model in self.models) or (self,)

    def _part(self, model: ComparedModel) -> "StudySummary":
        own = set(model.configs)
        by_config = (
            "configs",
            "expectations",
            "quality",
            "quality_refusals",
            "rejections",
        )
        return self.model_copy(
            update={
                "baseline": model.baseline,
                "rankings": tuple(
                    ranking for ranking in self.rankings if ranking.model == model.name
                ),
                "models": (),
                "model": model.name,
                "points": tuple(point for point in self.points if point.point.config in own),
                "refusals": tuple(
                    refusal for refusal in self.refusals if refusal.point.config in own
                ),
                **{
                    name: tuple(said for said in getattr(self, name) if said.config in own)
                    for name in by_config
                },
            }
        )

    @property
    def is_measured(self) -> bool:
        """Whether anything has a result."""
        return any(point.metrics for point in self.points) or any(
            own.outcome is Outcome.OK for own in self.quality
        )

    def exit_code(self, *, allow_inconclusive: bool = False) -> ExitCode:
        """What the objectives say of all points; of a search, whether some rate meets them.

        An objective without any figure was not judged, and is not met, whatever is allowed. A point that was asked for
        and has no result leaves the study inconclusive, too.
        """
        if self.search is not None:
            return _searched(self.search)
        if not self.is_measured:
            return ExitCode.NOTHING_MEASURED
        judged = [objective for point in self.points for objective in point.objectives]
        if any(objective.verdict is Verdict.MISSED for objective in judged):
            return ExitCode.FAILED
        is_open = any(
            objective.verdict is Verdict.INCONCLUSIVE
            and (objective.value is None or not allow_inconclusive)
            for objective in judged
        )
        return ExitCode.INCONCLUSIVE if is_open or self.lacking else ExitCode.DONE

    @property
    def lacking(self) -> tuple[PointSummary, ...]:
        """Points that were tried and have no result. An engine that failed is a result of a study; a server that was
        running, and was asked for this load, has none."""
        return tuple(point for point in self.points if not point.metrics and _is_lacking(point))

    def points_of(self, workload: str) -> tuple[PointSummary, ...]:
        return tuple(point for point in self.points if point.point.workload == workload)


def _is_lacking(point: PointSummary) -> bool:
    outcomes = {group.failure.outcome for group in point.failures}
    return bool(outcomes) and (point.was_running or outcomes <= NOT_THE_ENGINES)


def _searched(found: RateAnswer) -> ExitCode:
    if not found.trials:
        return ExitCode.NOTHING_MEASURED
    if found.stop is None or (found.rate is not None and found.verified is None):
        return ExitCode.INCONCLUSIVE
    return ExitCode.FAILED if found.rate is None else ExitCode.DONE
