"""What a study may claim by now: its records, at the machine's mean speed, looked at after each block with one error
for all looks together.

A probe is a fixed piece of work, timed before and after each trial while all engines rest. Configs depend on the
machine's speed to different degrees, so each has a slope of its own. Few rounds say little about it; it is shrunk
towards the slope that all have in common:

    γ    = Σ x·y / Σ x²        x, y: centred within each start; s²: variance of what it leaves
    γ_c  = k·Sxy_c/Sxx_c + (1 − k)·γ,   k = Sxx_c / (Sxx_c + s² / SLOPE_SD²)
    y'   = y − γ_c·(x − x̄)     x̄: over all trials of the workload, so ratios are those at the study's mean speed

The probe is a covariate and a diagnosis, never a reason to drop a trial.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import mean

import numpy as np

from bitbench.analysis.claims import (
    FIRST_LOOK,
    Claims,
    End,
    Look,
    claim,
    claim_looks,
    configs_with_open_claims,
    end_by_claims,
    spend,
)
from bitbench.analysis.elapsed import Elapsed
from bitbench.analysis.intervals import Sample, f_tail
from bitbench.analysis.pairs import (
    Flags,
    Floats,
    LogSpeeds,
    PairTable,
    TrialKey,
    log_speeds,
    paired_ratios,
    paired_values,
)
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.turns import settle_turns
from bitbench.analysis.unpaired import unpaired_speed_ratio
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, Memory, TrialRecord
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Config, Plan, Point

SLOPE_SD = 0.35  # of the slopes of configs: those of twelve kernels against the mean of the others were 0.43 to 1.5
LEAST_ROUNDS = 8  # of each config, over all blocks; the slope of fewer is noise
GUARD_LEVEL = 0.01


@dataclass(frozen=True, eq=False)
class Adjustment:
    """Figures at the machine's mean speed. `explained` is None where nothing was adjusted."""

    speeds: LogSpeeds
    explained: float | None  # share of the variance within starts that the probe accounts for


def machine_speed(before_s: Floats, after_s: Floats) -> Floats:
    """log speed of the machine around each trial, from the probe's seconds; all config × block × round.

    An engine may leave something behind that slows the probe: where the readings after some config differ from
    those after others, only the reading before counts, which the configs of a random order share alike.
    """
    before, after = np.log(before_s), np.log(after_s)
    return -before if _depends_on_config(after) else -(before + after) / 2


def adjust_for_machine_speed(speeds: LogSpeeds, machine: Floats) -> Adjustment:
    """`machine`: as from `machine_speed`. A trial without a reading is taken to have met the mean of its block."""
    values = speeds.values
    there = np.isfinite(values)
    if not np.isfinite(machine[there]).any() or there.sum((1, 2)).min() < LEAST_ROUNDS:
        return Adjustment(speeds, None)
    x = _complete(np.where(there, machine, np.nan), there)
    x_centred, y_centred = _centred(x, there), _centred(values, there)
    slopes = _slopes(x_centred, y_centred, degrees_of_freedom=int(there.sum() - there.any(2).sum() - 1))
    total = float((y_centred**2).sum())
    if slopes is None or total == 0:
        return Adjustment(speeds, None)
    left = float(((y_centred - slopes * x_centred) ** 2).sum())
    return Adjustment(LogSpeeds(speeds.configs, values - slopes * (x - x[there].mean())), 1 - left / total)


def _slopes(x: Floats, y: Floats, degrees_of_freedom: int) -> Floats | None:
    """One per config, shaped to be multiplied with values; None where the machine was always alike."""
    sxy, sxx = (x * y).sum((1, 2)), (x * x).sum((1, 2))
    if sxx.sum() == 0:
        return None
    common = sxy.sum() / sxx.sum()
    noise = ((y - common * x) ** 2).sum() / max(degrees_of_freedom, 1)
    # k·Sxy/Sxx + (1 − k)·γ with k = Sxx/(Sxx + prior), written so that Sxx may be 0.
    prior = noise / SLOPE_SD**2
    slopes = (sxy + prior * common) / np.where(sxx + prior > 0, sxx + prior, 1.0)
    return np.asarray(slopes[:, np.newaxis, np.newaxis])


def _complete(readings: Floats, there: Flags) -> Floats:
    """Missing readings of trials from the mean of their block, or of all."""
    known = np.isfinite(readings)
    counts = known.sum((0, 2))
    of_block = np.where(counts > 0, np.nansum(readings, axis=(0, 2)) / np.maximum(counts, 1), np.nanmean(readings))
    return np.where(there & ~known, of_block[np.newaxis, :, np.newaxis], readings)


def _centred(values: Floats, there: Flags) -> Floats:
    """Within each start; 0 where there is no trial."""
    counts = np.maximum(there.sum(2, keepdims=True), 1)
    means = np.where(there, values, 0.0).sum(2, keepdims=True) / counts
    return np.where(there, values - means, 0.0)


def _depends_on_config(after: Floats) -> bool:
    """F test of configs, with rounds as blocks: the machine's own drift is shared by the readings of a round."""
    by_round = after.reshape(len(after), -1)
    complete = by_round[:, np.isfinite(by_round).all(0)]
    configs, rounds = complete.shape
    if configs < 2 or rounds < 2:
        return False
    centred = complete - complete.mean(0)
    effects = centred.mean(1, keepdims=True)
    between = rounds * float((effects**2).sum()) / (configs - 1)
    within = float(((centred - effects) ** 2).sum()) / ((configs - 1) * (rounds - 1))
    if within == 0:
        return bool(between > 0)
    return f_tail(configs - 1, (configs - 1) * (rounds - 1), between / within) < GUARD_LEVEL


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
    asked, wanted = plan.asked, plan.study.baseline
    if wanted is None:
        return asked[0] if asked else None
    by_name = (config for config in asked if config.name == wanted)
    by_engine = (config for config in asked if config.engine == wanted)
    return next(by_name, None) or next(by_engine, None)


@dataclass(frozen=True)
class SequentialAnalysis:
    """By workload, where at least two configs have a figure. `speeds` are at the machine's mean speed."""

    primary_metric: PrimaryMetric
    speeds: Mapping[str, LogSpeeds]
    tables: Mapping[str, PairTable]
    claims: Mapping[str, Claims]
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
    for look, seen in looks_taken(plan, trials, others, baseline):
        for workload, table in pairs_at_mean_speed(seen, primary_metric, baseline).items():
            claims[workload] = claim(
                table, baseline, look.alpha, equal_within=plan.study.measure.equal_within, earlier=claims.get(workload)
            )
        ended = end_by_claims(claims, baseline, look)
        if ended is not None:
            break
    speeds, explained = _speeds(counted, primary_metric)
    return SequentialAnalysis(primary_metric, speeds, paired_ratios(speeds, baseline), claims, ended, explained)


def looks_taken(
    plan: Plan, trials: Sequence[TrialRecord], others: Sequence[InstanceRecord | QualityRecord], baseline: Config | None
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
    return [trial for trial in settle_turns(plan, trials) if trial.counts and trial.point in points]


def pairs_at_mean_speed(
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
        for config in configs_with_open_claims(claims, baseline)
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
        return [Look(len(rounds), alpha, is_last=True)] if len(rounds) >= FIRST_LOOK else []
    if measure.budget is None:  # that of starts is what looks have to share
        first, most = max(FIRST_LOOK, measure.starts.min), measure.starts.max
        return spend(alpha, ((blocks, blocks / most, blocks >= most) for blocks in range(first, len(rounds) + 1)))
    found = elapsed.block_ends()
    timed = [block for block in rounds if block in found]
    done = [rounds[block] for block in timed]
    ends_s = [found[block] for block in timed]
    kept_s = [kept_back_s(plan, baseline, elapsed, block, done[: place + 1]) for place, block in enumerate(timed)]
    starts = measure.starts
    return claim_looks(ends_s, measure.budget, alpha, kept_s, fewest_blocks=starts.min, most_blocks=starts.max)


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


def _speeds(
    trials: Sequence[TrialRecord], primary_metric: PrimaryMetric
) -> tuple[dict[str, LogSpeeds], dict[str, float]]:
    """Of each workload with two configs, at the machine's mean speed; and how much that explained."""
    speeds: dict[str, LogSpeeds] = {}
    explained: dict[str, float] = {}
    for workload in dict.fromkeys(trial.point.workload for trial in trials):
        turns = sequential_turns([trial for trial in trials if trial.point.workload == workload])
        figures = {turn: _primary_figure_of(trial, primary_metric) for turn, trial in turns.items()}
        found = log_speeds(figures, higher_is_better=primary_metric.higher_is_better)
        if len(found.configs) < 2:
            continue
        adjusted = adjust_for_machine_speed(found, _machine(turns, found.configs))
        speeds[workload] = adjusted.speeds
        if adjusted.explained is not None:
            explained[workload] = adjusted.explained
    return speeds, explained


def _primary_figure_of(trial: TrialRecord, primary_metric: PrimaryMetric) -> float | None:
    source = trial.memory if primary_metric.metric in Memory.model_fields else trial.metrics
    value: float | None = getattr(source, primary_metric.metric)
    return value


def sequential_turns(trials: Sequence[TrialRecord]) -> dict[TrialKey, TrialRecord]:
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
    return machine_speed(paired_values(before, configs), paired_values(after, configs))
