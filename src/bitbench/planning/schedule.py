"""What to do next, as a pure function of the plan and of what has been recorded.

Nothing is remembered between runs but the records: a study that was killed goes on from them alone.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from random import Random
from typing import Protocol, TypeVar

from bitbench.core.cell import Cell, Contender, Group, Member, Plan
from bitbench.core.recorded.quality import QualityRecord
from bitbench.core.recorded.trial import NOT_THE_ENGINES, InstanceRecord, Outcome, TrialRecord

# Outcomes that the same inputs give again: the cell is not tried in later blocks.
FINAL_OUTCOMES = frozenset({Outcome.UNSUPPORTED, Outcome.OOM})
# Others (a crash, a timeout) may be bad luck: tried once more, in another block with a new instance.
FAILED_BLOCKS_BEFORE_GIVING_UP = 2
# A trial in which our own client was late does not count and is repeated, so many times per block.
CLIENT_BOUND_REPEATS = 5
# One that was disturbed is repeated so many times per block, in a new instance where the old one is gone: whoever
# interferes twice will again.
DISTURBED_REPEATS = 1

T = TypeVar("T")


class Pace(Protocol):
    """How much is measured, decided from the blocks that are complete."""

    def rounds(self, block: int) -> int:
        """Trials of each cell in this block; 0: the study ends before it."""

    def is_open(self, cell: Cell, block: int) -> bool:
        """Whether a question is left for which this cell has to run in this block."""

    def fit_together(self, contenders: Sequence[Contender]) -> bool:
        """Whether these may be resident at once and take turns."""


class Progress:
    """What has been recorded so far, and what that leaves to do."""

    def __init__(self, plan: Plan, pace: Pace) -> None:
        self._plan = plan
        self._pace = pace
        self._cells: dict[Contender, list[Cell]] = defaultdict(list)
        for cell in plan.cells:
            self._cells[cell.contender].append(cell)
        self._trials: dict[Cell, dict[int, list[TrialRecord]]] = defaultdict(lambda: defaultdict(list))
        self._quality: dict[Contender, list[Outcome]] = defaultdict(list)

    def add(self, records: Iterable[TrialRecord | InstanceRecord | QualityRecord]) -> None:
        for record in records:
            if isinstance(record, QualityRecord):
                self._quality[record.contender].append(record.outcome)
            elif isinstance(record, TrialRecord) and record.kind == "measured":
                self._trials[record.cell][record.block].append(record)

    def trials_of(self, cell: Cell, block: int) -> Sequence[TrialRecord]:
        return self._trials[cell][block]

    def wants_trial(self, cell: Cell, block: int) -> bool:
        """Whether this cell needs another trial in this block."""
        trials = self._trials[cell][block]
        outcomes = Counter(trial.outcome for trial in trials)
        if outcomes.keys() - NOT_THE_ENGINES - {Outcome.OK}:
            return False
        if outcomes[Outcome.CLIENT_BOUND] > CLIENT_BOUND_REPEATS or outcomes[Outcome.DISTURBED] > DISTURBED_REPEATS:
            return False
        counted = outcomes[Outcome.OK]
        if counted >= self._pace.rounds(block):
            return False
        return self._pace.is_open(cell, block) and not (counted == 0 and self._given_up(cell))

    def wants_quality(self, contender: Contender) -> bool:
        """Once per contender; a failure that may be bad luck is tried again, in another instance."""
        if contender not in self._plan.quality:
            return False
        outcomes = self._quality[contender]
        if Outcome.OK in outcomes or FINAL_OUTCOMES & set(outcomes):
            return False
        disturbed = outcomes.count(Outcome.DISTURBED)
        return disturbed <= DISTURBED_REPEATS and len(outcomes) - disturbed < FAILED_BLOCKS_BEFORE_GIVING_UP

    def next_group(self) -> Group | None:
        """The next contenders to start: blocks in order, contenders and workloads shuffled by the seed."""
        for block in count():
            rounds = self._pace.rounds(block)
            members = [member for one in self._shuffled(block) if (member := self._member(one, block)) is not None]
            if rounds == 0:
                return self._quality_alone(members)
            wanted = [member for member in members if member.workloads]
            if wanted:
                together = len(wanted) > 1 and self._pace.fit_together([one.contender for one in wanted])
                return Group(block=block, members=tuple(wanted if together else wanted[:1]), rounds=rounds)
        return None

    def _quality_alone(self, members: Sequence[Member]) -> Group | None:
        """One whose speed is not asked for, or is known already."""
        return Group(block=0, members=tuple(members[:1]), rounds=0) if members else None

    def _member(self, contender: Contender, block: int) -> Member | None:
        """None where nothing is left to ask of it."""
        workloads = tuple(
            self._plan.study.workload(cell.workload)
            for cell in self._mixed(self._cells[contender], block, contender.name)
            if self.wants_trial(cell, block)
        )
        return Member(contender=contender, workloads=workloads) if workloads or self.wants_quality(contender) else None

    def _shuffled(self, block: int) -> list[Contender]:
        return self._mixed(self._plan.contenders, block, "contenders")

    def _mixed(self, items: Sequence[T], block: int, salt: str) -> list[T]:
        shuffled = list(items)
        Random(f"{self._plan.study.seed}/{block}/{salt}").shuffle(shuffled)
        return shuffled

    def _given_up(self, cell: Cell) -> bool:
        failed_blocks = 0
        for trials in self._trials[cell].values():
            outcomes = {trial.outcome for trial in trials} - {Outcome.OK, *NOT_THE_ENGINES}
            if outcomes & FINAL_OUTCOMES:
                return True
            failed_blocks += bool(outcomes)
        return failed_blocks >= FAILED_BLOCKS_BEFORE_GIVING_UP
