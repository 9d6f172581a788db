"""What a study may claim by now: its records, looked at after each block with one error for all looks together."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from bitbench.analysis.claims import (
    FIRST_LOOK,
    Claims,
    End,
    Look,
    claim,
    claim_looks,
    configs_with_open_claims,
    end_by_claims,
    nothing_claimed,
    spend,
)
from bitbench.analysis.elapsed import block_ends
from bitbench.analysis.intervals import Sample
from bitbench.analysis.pairs import (
    LogSpeeds,
    PairTable,
    TrialKey,
    log_speeds,
    paired_ratios,
)
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.turns import settle_turns
from bitbench.analysis.unpaired import unpaired_speed_ratio
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, Memory, TrialRecord
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Config, Plan, Point


@dataclass(frozen=True)
class PrimaryMetric:
    """The figure that configs are compared by."""

    metric: str
    higher_is_better: bool


def primary_metric_of(plan: Plan) -> PrimaryMetric:
    metric = METRICS[plan.study.measure.metric]
    return PrimaryMetric(metric.column, metric.higher_is_better)


def baseline_of(plan: Plan) -> Config | None:
    """The config the study names, or the first on the engine it names; without a name the first of all."""
    asked, wanted = plan.asked, plan.study.baseline
    if wanted is None:
        return asked[0] if asked else None
    by_name = (config for config in asked if config.name == wanted)
    by_engine = (config for config in asked if config.engine == wanted)
    return next(by_name, None) or next(by_engine, None)


@dataclass(frozen=True)
class SequentialAnalysis:
    """By workload, where at least two configs have a figure."""

    primary_metric: PrimaryMetric
    speeds: Mapping[str, LogSpeeds]
    tables: Mapping[str, PairTable]
    claims: Mapping[str, Claims]
    end: End | None  # None: it goes on, or was never looked at

    def speed(
        self, workload: str, first: Config, second: Config, confidence: float
    ) -> Estimate | None:
        """Above 1 where `first` is faster; None where the two have no two blocks in common."""
        table = self.tables.get(workload)
        pair = table.between(first, second) if table else None
        return None if pair is None else pair.ratio(confidence)

    def ratio(
        self, workload: str, first: Config, second: Config, confidence: float
    ) -> Estimate | None:
        """Of the figures themselves, first / second, whichever way is better."""
        sides = (first, second) if self.primary_metric.higher_is_better else (second, first)
        return self.speed(workload, *sides, confidence)


@dataclass(frozen=True)
class Speeds:
    """By the primary metric of a study: from blocks where configs met, else from their means."""

    standing: SequentialAnalysis
    samples: Mapping[Point, Mapping[str, Sample]]
    confidence: float

    @property
    def metric(self) -> str:
        return self.standing.primary_metric.metric

    def between(self, first: Config, second: Config, workload: str) -> Estimate | None:
        """Above 1 where `first` is faster; None where one of them has no result."""
        if paired := self.standing.speed(workload, first, second, self.confidence):
            return paired
        points = (Point(config=config, workload=workload) for config in (first, second))
        own, others = (self.samples.get(point, {}).get(self.metric) for point in points)
        higher_is_better = self.standing.primary_metric.higher_is_better
        return unpaired_speed_ratio(own, others, self.confidence, higher_is_better=higher_is_better)


def sequential_standing(
    plan: Plan,
    trials: Sequence[TrialRecord],
    others: Sequence[InstanceRecord | QualityRecord],
    primary_metric: PrimaryMetric,
    baseline: Config | None,
) -> SequentialAnalysis:
    """`trials`: all of the study; those that do not count, or are of no point of the plan, are passed over. `others`:
    for the time that they took."""
    counted = _counted(plan, trials)
    claims: dict[str, Claims] = {}
    ended: End | None = None
    for look, seen in looks_taken(plan, trials, others):
        for workload, table in pairs_by_workload(seen, primary_metric, baseline).items():
            claims[workload] = claim(
                table,
                baseline,
                look.alpha,
                equal_within=plan.study.measure.equal_within,
                earlier=claims.get(workload),
            )
        ended = end_by_claims(claims, baseline, look)
        if ended is not None:
            break
    speeds = _speeds(counted, primary_metric)
    return SequentialAnalysis(
        primary_metric, speeds, paired_ratios(speeds, baseline), claims, ended
    )


def looks_taken(
    plan: Plan, trials: Sequence[TrialRecord], others: Sequence[InstanceRecord | QualityRecord]
) -> list[tuple[Look, list[TrialRecord]]]:
    """Each look at a study, with the trials that it could see."""
    counted = _counted(plan, trials)
    blocks = sorted({trial.block for trial in counted})
    taken = _looks(plan, blocks, block_ends(trials, others))
    known = [set(blocks[: look.blocks]) for look in taken]
    return [
        (look, [trial for trial in counted if trial.block in seen])
        for look, seen in zip(taken, known, strict=True)
    ]


def _counted(plan: Plan, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    points = set(plan.points)
    return [trial for trial in settle_turns(plan, trials) if trial.counts and trial.point in points]


def pairs_by_workload(
    trials: Sequence[TrialRecord], primary_metric: PrimaryMetric, baseline: Config | None
) -> dict[str, PairTable]:
    """By workload, from the trials that count: the same for every question that is asked about them."""
    return paired_ratios(
        _speeds([trial for trial in trials if trial.counts], primary_metric), baseline
    )


def points_with_open_claims(found: SequentialAnalysis, baseline: Config | None) -> set[Point]:
    """Those with an undecided question; before the first look all of them."""
    points: set[Point] = set()
    for workload, speeds in found.speeds.items():
        claims = found.claims.get(workload) or nothing_claimed(speeds.configs, baseline)
        configs = configs_with_open_claims(claims, baseline)
        points |= {Point(config=config, workload=workload) for config in configs}
    return points


def _looks(plan: Plan, blocks: Sequence[int], ends: Mapping[int, float]) -> list[Look]:
    measure = plan.study.measure
    starts = measure.starts
    alpha = 1 - measure.confidence
    if plan.imported_from is not None:  # it was all there at once
        return [Look(len(blocks), alpha, is_last=True)] if len(blocks) > 1 else []
    if measure.budget is None:  # that of starts is what looks have to share
        first = min(max(FIRST_LOOK, starts.min), max(starts.max, 2))
        return spend(
            alpha,
            (
                (done, done / starts.max, done >= starts.max)
                for done in range(first, len(blocks) + 1)
            ),
        )
    ends_s = [ends[block] for block in blocks if block in ends]
    return claim_looks(
        ends_s, measure.budget, alpha, fewest_blocks=starts.min, most_blocks=starts.max
    )


def _speeds(trials: Sequence[TrialRecord], primary_metric: PrimaryMetric) -> dict[str, LogSpeeds]:
    """Of each workload with two configs."""
    speeds: dict[str, LogSpeeds] = {}
    for workload in dict.fromkeys(trial.point.workload for trial in trials):
        turns = sequential_turns([trial for trial in trials if trial.point.workload == workload])
        figures = {turn: _primary_figure_of(trial, primary_metric) for turn, trial in turns.items()}
        found = log_speeds(figures, higher_is_better=primary_metric.higher_is_better)
        if len(found.configs) > 1:
            speeds[workload] = found
    return speeds


def _primary_figure_of(trial: TrialRecord, primary_metric: PrimaryMetric) -> float | None:
    source = trial.memory if primary_metric.metric in Memory.model_fields else trial.metrics
    value: float | None = getattr(source, primary_metric.metric)
    return value


def sequential_turns(trials: Sequence[TrialRecord]) -> dict[TrialKey, TrialRecord]:
    """Where trials did not alternate, a round is a trial's place among those of its block that count; what a block
    that was resumed in the other way has already is passed over."""
    taken = {
        (trial.point.config, trial.block, trial.round)
        for trial in trials
        if trial.round is not None
    }
    places: dict[tuple[Config, int], Iterator[int]] = defaultdict(count)
    found = {}
    for trial in trials:
        config, block, round_ = trial.point.config, trial.block, trial.round
        if round_ is None:
            round_ = next(
                place for place in places[config, block] if (config, block, place) not in taken
            )
        found[TrialKey(config, block, round_)] = trial
    return found
