"""The claims of a study so far: an interim analysis after each block, with one error for all."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from bitbench.analysis.claims import (
    FIRST_LOOK,
    Claims,
    End,
    Look,
    divide_error,
    end_by_claims,
    list_interim_analyses,
    list_undecided_configs,
    make_undecided_claims,
    update_claims,
)
from bitbench.analysis.elapsed import collect_block_ends
from bitbench.analysis.intervals import Sample
from bitbench.analysis.pairs import (
    LogSpeeds,
    PairTable,
    TrialKey,
    collect_pair_tables,
    make_log_speeds,
)
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.turns import settle_turns
from bitbench.analysis.unpaired import estimate_unpaired_speed_ratio
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, Memory, TrialRecord
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Config, Plan, Point


@dataclass(frozen=True)
class PrimaryMetric:
    """The metric that configs are compared by."""

    metric: str
    higher_is_better: bool


def get_primary_metric(plan: Plan) -> PrimaryMetric:
    """Return the metric that a study compares its configs by."""
    metric = METRICS[plan.study.measure.metric]
    return PrimaryMetric(metric.column, metric.higher_is_better)


def find_baseline(plan: Plan) -> Config | None:
    """Return the study's baseline, or None if no config fits its name.

    A study names a config, or an engine, whose first config is then the baseline. Without a name
    the baseline is the study's first config.
    """
    name = plan.study.baseline
    if name is None:
        return plan.asked[0] if plan.asked else None
    by_name = (config for config in plan.asked if config.name == name)
    by_engine = (config for config in plan.asked if config.engine == name)
    return next(by_name, None) or next(by_engine, None)


@dataclass(frozen=True)
class SequentialAnalysis:
    """The analysis of each workload on which at least two configs have the primary metric."""

    primary_metric: PrimaryMetric
    speeds: Mapping[str, LogSpeeds]
    tables: Mapping[str, PairTable]
    claims: Mapping[str, Claims]
    end: End | None  # None: it continues, or had no interim analysis

    def speed(
        self, workload: str, first: Config, second: Config, confidence: float
    ) -> Estimate | None:
        """Return a ratio above 1 if `first` is faster, or None without two common blocks."""
        table = self.tables.get(workload)
        pair = table.between(first, second) if table else None
        return None if pair is None else pair.ratio(confidence)

    def ratio(
        self, workload: str, first: Config, second: Config, confidence: float
    ) -> Estimate | None:
        """Return first / second of the metric itself, whichever direction is better."""
        if self.primary_metric.higher_is_better:
            return self.speed(workload, first, second, confidence)
        return self.speed(workload, second, first, confidence)


@dataclass(frozen=True)
class Speeds:
    """The speed ratios of pairs of configs, by the primary metric of a study.

    A ratio comes from common blocks, or from the means if two configs have too few common blocks.
    """

    standing: SequentialAnalysis
    samples: Mapping[Point, Mapping[str, Sample]]
    confidence: float

    @property
    def metric(self) -> str:
        return self.standing.primary_metric.metric

    def between(self, first: Config, second: Config, workload: str) -> Estimate | None:
        """Return a ratio above 1 if `first` is faster, or None if either has no result."""
        if paired := self.standing.speed(workload, first, second, self.confidence):
            return paired
        higher_is_better = self.standing.primary_metric.higher_is_better
        return estimate_unpaired_speed_ratio(
            self._sample(first, workload),
            self._sample(second, workload),
            self.confidence,
            higher_is_better=higher_is_better,
        )

    def _sample(self, config: Config, workload: str) -> Sample | None:
        point = Point(config=config, workload=workload)
        return self.samples.get(point, {}).get(self.metric)


def make_sequential_analysis(
    plan: Plan,
    trials: Sequence[TrialRecord],
    others: Sequence[InstanceRecord | QualityRecord],
    primary_metric: PrimaryMetric,
    baseline: Config | None,
) -> SequentialAnalysis:
    """Return the claims of a study after all interim analyses that its records allow.

    `trials` has all trials of the study. Trials that do not count, or whose point is not in the
    plan, are ignored. `others` are only needed for their durations.
    """
    claims: dict[str, Claims] = {}
    end: End | None = None
    for look, seen in list_looks_with_trials(plan, trials, others):
        for workload, table in collect_pairs_by_workload(seen, primary_metric, baseline).items():
            claims[workload] = update_claims(
                table,
                baseline,
                look.alpha,
                equal_within=plan.study.measure.equal_within,
                earlier=claims.get(workload),
            )
        end = end_by_claims(claims, baseline, look)
        if end is not None:
            break
    speeds = _collect_log_speeds(_list_counted(plan, trials), primary_metric)
    return SequentialAnalysis(
        primary_metric, speeds, collect_pair_tables(speeds, baseline), claims, end
    )


def list_looks_with_trials(
    plan: Plan, trials: Sequence[TrialRecord], others: Sequence[InstanceRecord | QualityRecord]
) -> list[tuple[Look, list[TrialRecord]]]:
    """Return each interim analysis of a study with the trials that it includes."""
    counted = _list_counted(plan, trials)
    blocks = sorted({trial.block for trial in counted})
    taken = []
    for look in _list_looks(plan, blocks, collect_block_ends(trials, others)):
        complete = set(blocks[: look.blocks])
        taken.append((look, [trial for trial in counted if trial.block in complete]))
    return taken


def _list_counted(plan: Plan, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that count and whose point is in the plan."""
    points = set(plan.points)
    return [trial for trial in settle_turns(plan, trials) if trial.counts and trial.point in points]


def collect_pairs_by_workload(
    trials: Sequence[TrialRecord], primary_metric: PrimaryMetric, baseline: Config | None
) -> dict[str, PairTable]:
    """Return the pairs of each workload, from the trials that count."""
    counted = [trial for trial in trials if trial.counts]
    return collect_pair_tables(_collect_log_speeds(counted, primary_metric), baseline)


def list_undecided_points(analysis: SequentialAnalysis, baseline: Config | None) -> set[Point]:
    """Return the points whose comparison is undecided.

    Before the first interim analysis these are all points.
    """
    points: set[Point] = set()
    for workload, speeds in analysis.speeds.items():
        claims = analysis.claims.get(workload) or make_undecided_claims(speeds.configs, baseline)
        for config in list_undecided_configs(claims, baseline):
            points.add(Point(config=config, workload=workload))
    return points


def _list_looks(plan: Plan, blocks: Sequence[int], ends: Mapping[int, float]) -> list[Look]:
    """Return the interim analyses after these blocks. `ends` are their end times in seconds."""
    measure = plan.study.measure
    starts = measure.starts
    alpha = 1 - measure.confidence
    if plan.imported_from is not None:  # all blocks were there at once
        return [Look(len(blocks), alpha, is_last=True)] if len(blocks) > 1 else []
    if measure.budget is None:  # the analyses share the number of starts instead of the time
        moments = []
        first = min(max(FIRST_LOOK, starts.min), max(starts.max, 2))
        for done in range(first, len(blocks) + 1):
            moments.append((done, done / starts.max, done >= starts.max))
        return divide_error(alpha, moments)
    ends_s = [ends[block] for block in blocks if block in ends]
    return list_interim_analyses(
        ends_s, measure.budget, alpha, fewest_blocks=starts.min, most_blocks=starts.max
    )


def _collect_log_speeds(
    trials: Sequence[TrialRecord], primary_metric: PrimaryMetric
) -> dict[str, LogSpeeds]:
    """Return the speeds of each workload with two configs or more."""
    by_workload: dict[str, list[TrialRecord]] = {}
    for trial in trials:
        by_workload.setdefault(trial.point.workload, []).append(trial)
    speeds: dict[str, LogSpeeds] = {}
    for workload, workload_trials in by_workload.items():
        values = {}
        for turn, trial in collect_trials_by_turn(workload_trials).items():
            values[turn] = _get_primary_value(trial, primary_metric)
        log_speeds = make_log_speeds(values, higher_is_better=primary_metric.higher_is_better)
        if len(log_speeds.configs) > 1:
            speeds[workload] = log_speeds
    return speeds


def _get_primary_value(trial: TrialRecord, primary_metric: PrimaryMetric) -> float | None:
    source = trial.memory if primary_metric.metric in Memory.model_fields else trial.metrics
    value: float | None = getattr(source, primary_metric.metric)
    return value


def collect_trials_by_turn(trials: Sequence[TrialRecord]) -> dict[TrialKey, TrialRecord]:
    """Return the trials of a workload by config, block and round.

    If trials did not alternate, a round is the trial's index among the trials of its block that
    count. If a block was resumed in the other order, the rounds that it has already are skipped.
    """
    taken = {(trial.point.config, trial.block, trial.round) for trial in trials}
    rounds: dict[tuple[Config, int], Iterator[int]] = defaultdict(count)
    by_turn = {}
    for trial in trials:
        config = trial.point.config
        number = trial.round
        while number is None:
            candidate = next(rounds[config, trial.block])
            if (config, trial.block, candidate) not in taken:
                number = candidate
        by_turn[TrialKey(config, trial.block, number)] = trial
    return by_turn
