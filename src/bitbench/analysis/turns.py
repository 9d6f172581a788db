"""The two trials in a row that a config has in its first turn of a block: right after a thaw, and directly after that.

A thaw leaves cold caches and slow clocks, which the touch before a trial may not warm up. Where the first trials of an
engine differ from the second ones by more than chance, the second trial of such a turn counts and the first does not.
That follows from the records alone, so that an interrupted study comes to the same.
"""

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import fmean, stdev

from bitbench.analysis.intervals import t_p_value, t_reach
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import TurnEffect
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Plan

TurnPair = tuple[TrialRecord, TrialRecord]
FEWEST_STARTS = 2


def summarize_turns(plan: Plan, trials: Sequence[TrialRecord]) -> tuple[TurnEffect, ...]:
    """Return how fast first trials are compared with second ones, by engine. Each start is one observation."""
    found: dict[str, list[TurnPair]] = {}
    for pair in _turn_pairs(trials):
        found.setdefault(pair[0].point.config.engine, []).append(pair)
    engines = dict.fromkeys(config.engine for config in plan.configs)
    return tuple(_effect(plan, engine, found[engine]) for engine in engines if engine in found)


def settle_turns(plan: Plan, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trials, with `turn` exchanged where the second trial counts. A second call changes nothing."""
    effects = summarize_turns(plan, trials)
    engines = {effect.engine for effect in effects if effect.second_counts}
    place: dict[str, int] = {}
    for first, second in _turn_pairs(trials) if engines else ():
        if first.point.config.engine in engines:
            place[first.id] = 1
            place[second.id] = 0
    if not place:
        return list(trials)
    return [trial.model_copy(update={"turn": place.get(trial.id, trial.turn)}) for trial in trials]


def _turn_pairs(trials: Sequence[TrialRecord]) -> list[TurnPair]:
    """Return them in the order in which they were run, whichever counts."""
    seconds = {(trial.point, trial.block, trial.round) for trial in trials if trial.turn}
    found: dict[object, list[TrialRecord]] = {}
    for trial in trials if seconds else ():
        turn = (trial.point, trial.block, trial.round)
        if turn in seconds and trial.kind == "measured" and trial.outcome is Outcome.OK:
            found.setdefault(turn, []).append(trial)
    ordered = [sorted(own, key=lambda trial: trial.index) for own in found.values()]
    return [(own[0], own[1]) for own in ordered if len(own) == 2]


def _effect(plan: Plan, engine: str, pairs: Sequence[TurnPair]) -> TurnEffect:
    measure = plan.study.measure
    metric = METRICS[measure.metric]
    differences: list[float] = []
    for first, second in pairs:
        figures = (getattr(first.metrics, metric.column), getattr(second.metrics, metric.column))
        if all(figures):
            difference = log(figures[0]) - log(figures[1])
            differences.append(difference if metric.higher_is_better else -difference)
    ratio = _ratio(differences, measure.confidence)
    second_counts = ratio is not None and ratio.p_value is not None and ratio.p_value < 1 - measure.confidence
    return TurnEffect(engine=engine, starts=len(differences), ratio=ratio, second_counts=second_counts)


def _ratio(differences: Sequence[float], confidence: float) -> Estimate | None:
    """Return the geometric mean with its t interval; None of too few starts."""
    if len(differences) < FEWEST_STARTS:
        return None
    freedom = len(differences) - 1
    mean, error = fmean(differences), stdev(differences) / sqrt(len(differences))
    half = t_reach(freedom, confidence) * error
    p_value = t_p_value(freedom, mean / error) if error else float(mean == 0)
    return Estimate(
        value=exp(mean), low=exp(mean - half), high=exp(mean + half), confidence=confidence, p_value=p_value
    )
