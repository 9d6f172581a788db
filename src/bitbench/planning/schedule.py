"""What to do next, as a pure function of the plan and of what has been recorded.

Nothing is remembered between runs but the records: a study that was killed goes on from them alone.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TypeVar

from bitbench.core.asked.study import Measure
from bitbench.core.cell import Cell, Contender, Plan, Visit
from bitbench.core.recorded.quality import QualityRecord
from bitbench.core.recorded.trial import InstanceRecord, Outcome, TrialRecord

# Outcomes that the same inputs give again: the cell is not tried in later blocks.
FINAL_OUTCOMES = frozenset({Outcome.UNSUPPORTED, Outcome.OOM})
# Others (a crash, a timeout) may be bad luck: tried once more, in another block with a new instance.
FAILED_BLOCKS_BEFORE_GIVING_UP = 2
# A trial in which our own client was late does not count and is repeated, so many times per block.
CLIENT_BOUND_REPEATS = 5

T = TypeVar("T")
EnoughTrials = Callable[[Sequence[float], Measure], bool]
EnoughInstances = Callable[[Sequence[Sequence[float]], Measure], bool]


class Progress:
    """What has been recorded so far, and what that leaves to do."""

    def __init__(
        self,
        plan: Plan,
        *,
        headline: Callable[[TrialRecord], float | None],
        enough_trials: EnoughTrials,
        enough_instances: EnoughInstances,
    ) -> None:
        self._plan = plan
        self._headline = headline
        self._enough_trials = enough_trials
        self._enough_instances = enough_instances
        self._trials: dict[Cell, dict[int, list[TrialRecord]]] = defaultdict(lambda: defaultdict(list))
        self._quality: dict[Contender, list[Outcome]] = defaultdict(list)
        self.spent_s = 0.0

    def add(self, records: Iterable[TrialRecord | InstanceRecord | QualityRecord]) -> None:
        for record in records:
            if isinstance(record, InstanceRecord):
                self.spent_s += record.ready_s or 0.0
                continue
            self.spent_s += record.duration_s or 0.0
            if isinstance(record, QualityRecord):
                self._quality[record.contender].append(record.outcome)
            elif record.kind == "measured":
                self._trials[record.cell][record.block].append(record)

    def trials_of(self, cell: Cell, block: int) -> Sequence[TrialRecord]:
        return self._trials[cell][block]

    def wants_trial(self, cell: Cell, block: int) -> bool:
        """Whether this cell needs another trial in this block."""
        trials = self._trials[cell][block]
        if any(trial.outcome not in (Outcome.OK, Outcome.CLIENT_BOUND) for trial in trials):
            return False
        if sum(trial.outcome is Outcome.CLIENT_BOUND for trial in trials) > CLIENT_BOUND_REPEATS:
            return False
        measure = self._plan.study.measure
        values = self._values(trials)
        if not values and self._given_up(cell):
            return False
        if len(values) >= measure.trials.min and self._budget_spent():
            return False
        if self._enough_trials(values, measure):
            return False
        return block < measure.instances.min or bool(values) or self._wants_more_instances(cell, block)

    def wants_quality(self, contender: Contender) -> bool:
        """Once per contender; a failure that may be bad luck is tried again, in another instance."""
        if contender not in self._plan.quality:
            return False
        outcomes = self._quality[contender]
        if Outcome.OK in outcomes or FINAL_OUTCOMES & set(outcomes):
            return False
        return len(outcomes) < FAILED_BLOCKS_BEFORE_GIVING_UP

    def next_visit(self) -> Visit | None:
        """The next instance to start: blocks in order, contenders and workloads shuffled by the seed."""
        study = self._plan.study
        for block in range(study.measure.instances.max):
            for contender in self._shuffled(self._plan.contenders, block, "contenders"):
                workloads = tuple(
                    study.workload(cell.workload)
                    for cell in self._shuffled(self._cells_of(contender), block, contender.name)
                    if self.wants_trial(cell, block)
                )
                if workloads or self.wants_quality(contender):
                    return Visit(block=block, contender=contender, workloads=workloads)
        return None

    def _cells_of(self, contender: Contender) -> tuple[Cell, ...]:
        return tuple(cell for cell in self._plan.cells if cell.contender == contender)

    def _shuffled(self, items: Sequence[T], block: int, salt: str) -> list[T]:
        shuffled = list(items)
        Random(f"{self._plan.study.seed}/{block}/{salt}").shuffle(shuffled)
        return shuffled

    def _values(self, trials: Iterable[TrialRecord]) -> list[float]:
        values = (self._headline(trial) for trial in trials if trial.outcome is Outcome.OK)
        return [value for value in values if value is not None]

    def _given_up(self, cell: Cell) -> bool:
        failed_blocks = 0
        for trials in self._trials[cell].values():
            outcomes = {trial.outcome for trial in trials} - {Outcome.OK, Outcome.CLIENT_BOUND}
            if outcomes & FINAL_OUTCOMES:
                return True
            failed_blocks += bool(outcomes)
        return failed_blocks >= FAILED_BLOCKS_BEFORE_GIVING_UP

    def _budget_spent(self) -> bool:
        budget = self._plan.study.measure.budget
        return budget is not None and self.spent_s >= budget

    def _wants_more_instances(self, cell: Cell, block: int) -> bool:
        """Beyond the minimum: only while the interval over the blocks before this one is too wide."""
        if self._budget_spent():
            return False
        groups = [self._values(self._trials[cell][earlier]) for earlier in range(block)]
        return not self._enough_instances([group for group in groups if group], self._plan.study.measure)
