"""The choice between the two trials of a config's first turn in a block.

The first trial runs right after a thaw, and the second directly after the first. A thaw leaves cold
caches and slow clocks, which the touch before a trial may not warm up. If the first trials of an
engine differ from the second ones by more than chance, only the second trial of such a turn counts.
This follows from the records alone, so an interrupted study gives the same result.
"""

from collections.abc import Sequence
from math import log, sqrt
from statistics import fmean, stdev

from bitbench.analysis.intervals import compute_t_p_value
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Plan

TurnPair = tuple[TrialRecord, TrialRecord]
FEWEST_STARTS = 2


def settle_turns(plan: Plan, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trials, with `turn` swapped in the pairs of which the second trial counts.

    A trial counts if its `turn` is 0. A second call changes nothing.
    """
    by_engine: dict[str, list[TurnPair]] = {}
    for pair in _list_turn_pairs(trials):
        by_engine.setdefault(pair[0].point.config.engine, []).append(pair)
    turns: dict[str, int] = {}
    for pairs in by_engine.values():
        if _is_different(plan, pairs):
            for first, second in pairs:
                turns[first.id] = 1
                turns[second.id] = 0
    if not turns:
        return list(trials)
    settled = []
    for trial in trials:
        turn = turns.get(trial.id, trial.turn)
        settled.append(trial.model_copy(update={"turn": turn}))
    return settled


def _list_turn_pairs(trials: Sequence[TrialRecord]) -> list[TurnPair]:
    """Return the first and the second trial of each turn that has two, in the order of their runs.

    The result does not depend on which of the two counts.
    """
    turns_with_two = {(trial.point, trial.block, trial.round) for trial in trials if trial.turn}
    if not turns_with_two:
        return []
    by_turn: dict[object, list[TrialRecord]] = {}
    for trial in trials:
        turn = (trial.point, trial.block, trial.round)
        if turn in turns_with_two and trial.kind == "measured" and trial.outcome is Outcome.OK:
            by_turn.setdefault(turn, []).append(trial)
    pairs = []
    for turn_trials in by_turn.values():
        if len(turn_trials) == 2:
            first, second = sorted(turn_trials, key=lambda trial: trial.index)
            pairs.append((first, second))
    return pairs


def _is_different(plan: Plan, pairs: Sequence[TurnPair]) -> bool:
    """Return True if first trials differ from second ones by more than chance.

    Each start is one observation.
    """
    measure = plan.study.measure
    column = METRICS[measure.metric].column
    differences: list[float] = []
    for first, second in pairs:
        before = getattr(first.metrics, column)
        after = getattr(second.metrics, column)
        if before and after:
            differences.append(log(before) - log(after))
    if len(differences) < FEWEST_STARTS:
        return False
    mean = fmean(differences)
    error = stdev(differences) / sqrt(len(differences))
    p_value = compute_t_p_value(len(differences) - 1, mean / error) if error else float(mean == 0)
    return p_value < 1 - measure.confidence
