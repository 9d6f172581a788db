"""What to do next, as a pure function of the plan and of what has been recorded.

Nothing is remembered between runs but the records: a study that was killed goes on from them alone.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
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

    def fit_together(self, contenders: Iterable[Contender]) -> bool:
        """Whether these may be resident at once and take turns; no more of them are looked at than it takes."""


class Progress:
    """What has been recorded so far, and what that leaves to do.

    A block that is complete stays so, and so does a contender's part of it. What was found complete is therefore not
    looked at again: the answers are those of a fresh object with the same records, at a cost that does not grow with
    what is behind.
    """

    def __init__(self, plan: Plan, pace: Pace) -> None:
        self._plan = plan
        self._pace = pace
        self._cells: dict[Contender, list[Cell]] = defaultdict(list)
        for cell in plan.cells:
            self._cells[cell.contender].append(cell)
        self._trials: dict[Cell, dict[int, list[TrialRecord]]] = defaultdict(lambda: defaultdict(list))
        self._quality: dict[Contender, list[Outcome]] = defaultdict(list)
        self._scored = frozenset(plan.quality)
        self._workloads = {workload.name: workload for workload in plan.study.workloads}
        self._block = 0  # the first that may not be complete
        self._waiting = self._shuffled(0)  # its contenders, without the first ones that were found complete

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
        if contender not in self._scored:
            return False
        outcomes = self._quality[contender]
        if Outcome.OK in outcomes or FINAL_OUTCOMES & set(outcomes):
            return False
        disturbed = outcomes.count(Outcome.DISTURBED)
        return disturbed <= DISTURBED_REPEATS and len(outcomes) - disturbed < FAILED_BLOCKS_BEFORE_GIVING_UP

    def next_group(self) -> Group | None:
        """The next contenders to start: blocks in order, contenders and workloads shuffled by the seed."""
        while (rounds := self._pace.rounds(self._block)) > 0:
            wanted = self._wanted()
            first, second = next(wanted, None), next(wanted, None)
            if first is None:
                self._block += 1
                self._waiting = self._shuffled(self._block)
                continue
            others = (member.contender for member in wanted)
            if second is not None and self._pace.fit_together(chain([first.contender, second.contender], others)):
                return Group(block=self._block, members=tuple(self._wanted()), rounds=rounds)
            return Group(block=self._block, members=(first,), rounds=rounds)
        return self._quality_alone()

    def _quality_alone(self) -> Group | None:
        """One whose speed is not asked for, or is known already."""
        left = (contender for contender in self._shuffled(self._block) if self.wants_quality(contender))
        first = next(left, None)
        return None if first is None else Group(block=0, members=(Member(contender=first, workloads=()),), rounds=0)

    def _wanted(self) -> Iterator[Member]:
        """Contenders of the block that need trials, in its order."""
        while self._waiting and not self._member(self._waiting[0], self._block).workloads:
            self._waiting.popleft()
        members = (self._member(contender, self._block) for contender in self._waiting)
        yield from (member for member in members if member.workloads)

    def _member(self, contender: Contender, block: int) -> Member:
        workloads = tuple(
            self._workloads[cell.workload]
            for cell in self._mixed(self._cells[contender], block, contender.name)
            if self.wants_trial(cell, block)
        )
        return Member(contender=contender, workloads=workloads)

    def _shuffled(self, block: int) -> deque[Contender]:
        return deque(self._mixed(self._plan.contenders, block, "contenders"))

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
