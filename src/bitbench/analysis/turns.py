"""The two trials in a row that a config has in its first turn of a block: right after a thaw, and directly after that.

A thaw leaves cold caches and slow clocks, which the touch before a trial may not warm up. Where the first trials of an
engine differ from the second ones by more than chance, the second trial of such a turn counts and the first does not.
That follows from the records alone, so that an interrupted study comes to the same.
"""

from collections.abc import Sequence
from math import log, sqrt
from statistics import fmean, stdev

from bitbench.analysis.intervals import t_p_value
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Plan

TurnPair = tuple[TrialRecord, TrialRecord]
FEWEST_STARTS = 2


def settle_turns(plan: Plan, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trials, with `turn` exchanged where the second trial counts. A second call changes nothing."""
    by_engine: dict[str, list[TurnPair]] = {}
    for pair in _turn_pairs(trials):
        by_engine.setdefault(pair[0].point.config.engine, []).append(pair)
    place: dict[str, int] = {}
    for pairs in by_engine.values():
        if _differ(plan, pairs):
            for first, second in pairs:
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


def _differ(plan: Plan, pairs: Sequence[TurnPair]) -> bool:
    """Return True if first trials differ from second ones by more than chance. Each start is one observation."""
    measure = plan.study.measure
    column = METRICS[measure.metric].column
    differences: list[float] = []
    for first, second in pairs:
        before, after = getattr(first.metrics, column), getattr(second.metrics, column)
        if before and after:
            differences.append(log(before) - log(after))
    if len(differences) < FEWEST_STARTS:
        return False
    mean, error = fmean(differences), stdev(differences) / sqrt(len(differences))
    p_value = t_p_value(len(differences) - 1, mean / error) if error else float(mean == 0)
    return p_value < 1 - measure.confidence
