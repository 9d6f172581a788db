"""What to do next, as a pure function of the plan and of what has been recorded.

Nothing is remembered between runs but the records: a study that was killed goes on from them alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from random import Random
from typing import Protocol, TypeVar

from bitbench.core.cell import Cell, Contender, Group, Member, Plan, Purpose
from bitbench.core.recorded.quality import QualityRecord
from bitbench.core.recorded.trial import InstanceRecord, Outcome, TrialRecord
from bitbench.planning.shifts import shifts_beside

# Outcomes that the same inputs give again: the cell is not tried in later blocks.
FINAL_OUTCOMES = frozenset({Outcome.UNSUPPORTED, Outcome.OOM})
# Others (a crash, a timeout) may be bad luck: tried once more, in another block with a new instance.
FAILED_BLOCKS_BEFORE_GIVING_UP = 2
# A trial in which our own client was late does not count and is repeated, so many times per block.
CLIENT_BOUND_REPEATS = 5

T = TypeVar("T")


class Pace(Protocol):
    """How much is measured, decided from the blocks that are complete."""

    def rounds(self, block: int) -> int:
        """Trials of each cell in this block; 0: the study ends before it."""

    def is_open(self, cell: Cell, block: int) -> bool:
        """Whether a question is left for which this cell has to run in this block."""

    def purpose(self, block: int) -> Purpose:
        """What this block is for."""

    def fit_together(self, contenders: Sequence[Contender]) -> bool:
        """Whether these may be resident at once and take turns."""


class Progress:
    """What has been recorded so far, and what that leaves to do."""

    def __init__(self, plan: Plan, pace: Pace, baseline: Contender | None = None) -> None:
        """`baseline`: through which contenders are compared that do not fit into memory together."""
        self._plan = plan
        self._pace = pace
        self._baseline = baseline
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
        counted = sum(trial.outcome is Outcome.OK for trial in self._trials[cell][block])
        if counted >= self._pace.rounds(block) or not self.accepts_trial(cell, block):
            return False
        return self._pace.is_open(cell, block)

    def accepts_trial(self, cell: Cell, block: int) -> bool:
        """Whether one more could have a result: none failed in this block, and it was not given up before."""
        trials = self._trials[cell][block]
        if any(trial.outcome not in (Outcome.OK, Outcome.CLIENT_BOUND) for trial in trials):
            return False
        counted = sum(trial.outcome is Outcome.OK for trial in trials)
        return len(trials) - counted <= CLIENT_BOUND_REPEATS and not (counted == 0 and self._given_up(cell))

    def rounds_begun(self, block: int) -> int:
        """Those of other shifts and of an interrupted run included: a number stands for one round of the block."""
        rounds = [trial.round for blocks in self._trials.values() for trial in blocks.get(block, ())]
        return max((number + 1 for number in rounds if number is not None), default=0)

    def wants_quality(self, contender: Contender) -> bool:
        """Once per contender; a failure that may be bad luck is tried again, in another instance."""
        if contender not in self._plan.quality:
            return False
        outcomes = self._quality[contender]
        if Outcome.OK in outcomes or FINAL_OUTCOMES & set(outcomes):
            return False
        return len(outcomes) < FAILED_BLOCKS_BEFORE_GIVING_UP

    def next_group(self) -> Group | None:
        """The next contenders to start: blocks in order, contenders and workloads shuffled by the seed."""
        for block in count():
            rounds = self._pace.rounds(block)
            members = [member for one in self._shuffled(block) if (member := self._member(one, block)) is not None]
            if rounds == 0:
                return self._quality_alone(members)
            wanted = [member for member in members if member.workloads]
            if wanted:
                group = self._group(wanted, block, rounds)
                return group.model_copy(update={"purpose": self._pace.purpose(block)})
        return None

    def _group(self, wanted: Sequence[Member], block: int, rounds: int) -> Group:
        """All at once where they fit; else in shifts beside the baseline; else the first of them alone."""
        others = [member for member in wanted if member.contender != self._baseline]
        link = self._link(others, block)
        # In an interrupted block it may have its rounds; what is left of the others would then have no counterpart.
        is_missed = link is not None and len(others) == len(wanted) and self._took_turns(link, block)
        if len(wanted) > 1 and not is_missed and self._pace.fit_together([one.contender for one in wanted]):
            return Group(block=block, members=tuple(wanted), rounds=rounds)
        if link is not None and (is_missed or len(others) > 1):
            order = {contender: place for place, contender in enumerate(self._plan.contenders)}
            comers = sorted((member.contender for member in others), key=order.__getitem__)
            shifts = shifts_beside(link.contender, comers, self._pace.fit_together)
            if shifts is not None:
                mixed = tuple(
                    tuple(self._mixed(shift, block, "shift")) for shift in self._mixed(shifts, block, "shifts")
                )
                return Group(block=block, members=(link, *others), rounds=rounds, shifts=mixed)
        return Group(block=block, members=tuple(wanted[:1]), rounds=rounds)

    def _link(self, others: Sequence[Member], block: int) -> Member | None:
        """The baseline as what they are compared through: on all of their workloads, whether or not it is open itself.

        None where it cannot run one of them.
        """
        if self._baseline is None or not others:
            return None
        names = {workload.name for member in others for workload in member.workloads}
        cells = [cell for cell in self._cells[self._baseline] if self.accepts_trial(cell, block)]
        if not names <= {cell.workload for cell in cells}:
            return None
        asked = [cell for cell in cells if cell.workload in names or self.wants_trial(cell, block)]
        mixed = self._mixed(asked, block, self._baseline.name)
        workloads = tuple(self._plan.study.workload(cell.workload) for cell in mixed)
        return Member(contender=self._baseline, workloads=workloads)

    def _took_turns(self, member: Member, block: int) -> bool:
        cells = [Cell(contender=member.contender, workload=workload.name) for workload in member.workloads]
        return any(trial.round is not None for cell in cells for trial in self._trials[cell][block])

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
            outcomes = {trial.outcome for trial in trials} - {Outcome.OK, Outcome.CLIENT_BOUND}
            if outcomes & FINAL_OUTCOMES:
                return True
            failed_blocks += bool(outcomes)
        return failed_blocks >= FAILED_BLOCKS_BEFORE_GIVING_UP
