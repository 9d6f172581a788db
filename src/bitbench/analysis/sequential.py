"""What a study may claim by now: its records, looked at after each block, with one error for all looks together."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import mean

import numpy as np

from bitbench.analysis.adjustment import adjust, machine_speed
from bitbench.analysis.elapsed import Elapsed
from bitbench.analysis.families import Claims, claim
from bitbench.analysis.interim_looks import FIRST_LOOK, End, Look, continuing, end, looks
from bitbench.analysis.intervals import Sample
from bitbench.analysis.log_speeds import Floats, LogSpeeds, TrialKey, log_speeds, spread_out
from bitbench.analysis.pairs import PairTable, paired_ratios
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.unpaired import compare_speed
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, Memory, TrialRecord
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Measure

# Of two configs none is the best of many: the baseline was given, and the other is chosen only if it is faster.
LEAST_TO_CONFIRM = 3


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
    refused = (refusal.point.config for refusal in plan.refusals)
    configs = list(dict.fromkeys([*plan.configs, *refused]))
    wanted = plan.study.baseline
    if wanted is None:
        return configs[0] if configs else None
    by_name = (config for config in configs if config.name == wanted)
    by_engine = (config for config in configs if config.engine == wanted)
    return next(by_name, None) or next(by_engine, None)


@dataclass(frozen=True)
class SequentialAnalysis:
    """By workload, where at least two configs have a figure. `speeds` are at the machine's mean speed."""

    primary_metric: PrimaryMetric
    speeds: Mapping[str, LogSpeeds]
    tables: Mapping[str, PairTable]
    claims: Mapping[str, Claims]
    looks: Sequence[Look]
    end: End | None  # None: it goes on, or was never looked at
    explained: Mapping[str, float]  # share of the variation within starts that the probe accounts for

    def speed(self, workload: str, first: Config, second: Config, confidence: float) -> Estimate | None:
        """Above 1 where `first` is faster; None where the two have no two blocks in common."""
        table = self.tables.get(workload)
        pair = table.between(first, second) if table else None
        return None if pair is None else pair.ratio(confidence)

    def ratio(self, workload: str, first: Config, second: Config, confidence: float) -> Estimate | None:
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
        return compare_speed(own, others, self.confidence, higher_is_better=higher_is_better)


def standing(
    plan: Plan,
    trials: Sequence[TrialRecord],
    others: Sequence[InstanceRecord | QualityRecord],
    primary_metric: PrimaryMetric,
    baseline: Config | None,
) -> SequentialAnalysis:
    """`trials`: all of the study; those that do not count, or are of no point of the plan, are passed over. `others`:
    for the time that they took."""
    counted = _counted(plan, trials)
    taken = looks_taken(plan, trials, others, baseline)
    claims: dict[str, Claims] = {}
    ended: End | None = None
    for look, seen in taken:
        for workload, table in pair_tables(seen, primary_metric, baseline).items():
            claims[workload] = claim(
                table,
                baseline,
                look.alpha,
                equal_within=plan.study.measure.equal_within,
                earlier=claims.get(workload),
            )
        ended = end(claims, baseline, look)
        if ended is not None:
            break
    speeds, explained = _speeds(counted, primary_metric)
    made = [look for look, _ in taken]
    return SequentialAnalysis(primary_metric, speeds, paired_ratios(speeds, baseline), claims, made, ended, explained)


def looks_taken(
    plan: Plan,
    trials: Sequence[TrialRecord],
    others: Sequence[InstanceRecord | QualityRecord],
    baseline: Config | None,
) -> list[tuple[Look, list[TrialRecord]]]:
    """Each look at a study, with the trials that it could see."""
    counted = _counted(plan, trials)
    blocks = sorted({trial.block for trial in counted})
    elapsed = Elapsed()
    for record in (*trials, *others):
        elapsed.add(record)
    taken = _looks(plan, baseline, _rounds(counted, baseline), elapsed)
    known = [set(blocks[: look.blocks]) for look in taken]
    return [
        (look, [trial for trial in counted if trial.block in seen]) for look, seen in zip(taken, known, strict=True)
    ]


def _counted(plan: Plan, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    points = set(plan.points)
    return [trial for trial in trials if trial.counts and trial.point in points]


def pair_tables(
    trials: Sequence[TrialRecord], primary_metric: PrimaryMetric, baseline: Config | None
) -> dict[str, PairTable]:
    """By workload, from the trials that count: the same for every question that is asked about them."""
    speeds, _ = _speeds([trial for trial in trials if trial.counts], primary_metric)
    return paired_ratios(speeds, baseline)


def open_points(found: SequentialAnalysis, baseline: Config | None) -> set[Point]:
    """Those with an undecided question."""
    return {
        Point(config=config, workload=workload)
        for workload, claims in found.claims.items()
        for config in continuing(claims, baseline)
    }


def _rounds(counted: Sequence[TrialRecord], baseline: Config | None) -> dict[int, int]:
    """By block; the baseline has more than others where it stays beside several shifts."""
    found = Counter((trial.block, trial.point.config == baseline, trial.point) for trial in counted)
    rounds: dict[int, int] = {}
    for (block, _, _), trials in sorted(found.items(), key=lambda counted: (counted[0][:2], -counted[1])):
        rounds.setdefault(block, trials)
    return rounds


def _looks(plan: Plan, baseline: Config | None, rounds: Mapping[int, int], elapsed: Elapsed) -> list[Look]:
    measure = plan.study.measure
    alpha = 1 - measure.confidence
    if plan.imported_from is not None:  # it was all there at once
        return [Look(len(rounds), 0.0, alpha, is_last=True)] if len(rounds) >= FIRST_LOOK else []
    if measure.budget is None:
        return _looks_by_count(measure, len(rounds), alpha)
    found = elapsed.block_ends()
    timed = [block for block in rounds if block in found]
    done = [rounds[block] for block in timed]
    ends_s = [found[block] for block in timed]
    kept_s = [kept_back_s(plan, baseline, elapsed, block, done[: place + 1]) for place, block in enumerate(timed)]
    return looks(ends_s, measure.budget, alpha, kept_s, most_blocks=measure.starts.max)


def kept_back(plan: Plan) -> float:
    """For confirming the choice, of a budget: two of the configs once more, as a share of a block of all."""
    if not plan.study.measure.confirm:
        return 0.0
    configs = len({point.config for point in plan.points})
    return 2 / configs if plan.study.measure.budget is not None and configs >= LEAST_TO_CONFIRM else 0.0


def kept_back_s(plan: Plan, baseline: Config | None, elapsed: Elapsed, block: int, rounds: Sequence[int]) -> float:
    """The same once blocks were run, up to this one, with so many rounds: what the baseline took of it and, of the
    others, the one that took most, since any of them may be chosen; with as many rounds as a block had on average.
    `plan`: of one model; others have their share of a block, and keep back their own."""
    if not kept_back(plan) or not rounds:
        return 0.0
    everyone, own = elapsed.taken(block, mean(rounds) / rounds[-1]), {point.config for point in plan.points}
    taken_s = {config: seconds for config, seconds in everyone.items() if config in own}
    all_s = sum(taken_s.values())
    two_s = [taken_s.pop(baseline)] if baseline in taken_s else []
    two_s += sorted(taken_s.values(), reverse=True)[: 2 - len(two_s)]
    return sum(everyone.values()) * sum(two_s) / all_s if all_s else 0.0


def _looks_by_count(measure: Measure, blocks: int, alpha: float) -> list[Look]:
    """Without a budget of time, that of starts is what looks have to share."""
    found: list[Look] = []
    spent = 0.0
    for number in range(max(FIRST_LOOK, measure.starts.min), blocks + 1):
        is_last = number >= measure.starts.max
        reached = alpha if is_last else alpha * number / measure.starts.max
        found.append(Look(number, 0.0, reached - spent, is_last))
        spent = reached
        if is_last:
            break
    return found


def _speeds(
    trials: Sequence[TrialRecord], primary_metric: PrimaryMetric
) -> tuple[dict[str, LogSpeeds], dict[str, float]]:
    """Of each workload with two configs, at the machine's mean speed; and how much that explained."""
    speeds: dict[str, LogSpeeds] = {}
    explained: dict[str, float] = {}
    for workload in dict.fromkeys(trial.point.workload for trial in trials):
        turns = turns_of([trial for trial in trials if trial.point.workload == workload])
        figures = {turn: figure_of(trial, primary_metric) for turn, trial in turns.items()}
        found = log_speeds(figures, higher_is_better=primary_metric.higher_is_better)
        if len(found.configs) < 2:
            continue
        adjusted = adjust(found, _machine(turns, found.configs))
        speeds[workload] = adjusted.speeds
        if adjusted.explained is not None:
            explained[workload] = adjusted.explained
    return speeds, explained


def figure_of(trial: TrialRecord, primary_metric: PrimaryMetric) -> float | None:
    source = trial.memory if primary_metric.metric in Memory.model_fields else trial.metrics
    value: float | None = getattr(source, primary_metric.metric)
    return value


def turns_of(trials: Sequence[TrialRecord]) -> dict[TrialKey, TrialRecord]:
    """Where trials did not alternate, a round is a trial's place among those of its block that count; what a block
    that was resumed in the other way has already is passed over."""
    taken = {(trial.point.config, trial.block, trial.round) for trial in trials if trial.round is not None}
    places: dict[tuple[Config, int], Iterator[int]] = defaultdict(count)
    found = {}
    for trial in trials:
        config, block, round_ = trial.point.config, trial.block, trial.round
        if round_ is None:
            round_ = next(place for place in places[config, block] if (config, block, place) not in taken)
        found[TrialKey(config, block, round_)] = trial
    return found


def _machine(turns: Mapping[TrialKey, TrialRecord], configs: tuple[Config, ...]) -> Floats:
    before = {turn: trial.probe_before_s or np.nan for turn, trial in turns.items()}
    after = {turn: trial.probe_after_s or np.nan for turn, trial in turns.items()}
    return machine_speed(spread_out(before, configs), spread_out(after, configs))
