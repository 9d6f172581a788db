"""How much of a study is measured: blocks and rounds from its budget, and which questions are still open."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import floor

from bitbench.core.asked.study import MOST_STARTS, Schedule
from bitbench.core.cell import Cell, Contender, Plan, Purpose
from bitbench.core.ports import Engine
from bitbench.core.recorded.trial import InstanceRecord, TrialRecord
from bitbench.planning.estimate import Estimator
from bitbench.planning.shifts import shifts_beside
from bitbench.statistics.budget_plan import BlockPlan, Design, measured_components, plan_blocks
from bitbench.statistics.components import VarianceComponents
from bitbench.statistics.confirmation import cells_to_confirm
from bitbench.statistics.elapsed import block_ends
from bitbench.statistics.standing import Standing, baseline_of, headline_of, kept_back, open_cells, standing
from bitbench.statistics.stopping import enough_instances

STOP_S = 1.0  # of one instance
PROBE_AND_TOUCH_S = 0.5  # around each trial of contenders that take turns
RESIDENT_SHARE = (
    0.85  # of the memory that is available: the rest is for the load client, page cache, and the peak of one
)


@dataclass(frozen=True)
class OneBlock:
    """A `planning.schedule.Pace`: so many trials of each cell, as on an endpoint that is not started anew."""

    trials: int

    def rounds(self, block: int) -> int:
        return self.trials if block == 0 else 0

    def is_open(self, cell: Cell, block: int) -> bool:  # noqa: ARG002
        return True

    def purpose(self, block: int) -> Purpose:  # noqa: ARG002
        return Purpose.SELECTION

    def fit_together(self, contenders: Sequence[Contender]) -> bool:  # noqa: ARG002
        return False


class StudyPace:
    """A `planning.schedule.Pace` that asks after each block whether the study's questions are decided."""

    def __init__(
        self, plan: Plan, engines: Mapping[str, Engine], estimator: Estimator, *, available_bytes: int, on_device: bool
    ) -> None:
        self._plan = plan
        self._engines = engines
        self._estimator = estimator
        self._available_bytes = available_bytes
        self._on_device = on_device
        self._trials: list[TrialRecord] = []
        self._instances: list[InstanceRecord] = []
        self._peaks: dict[Contender, int] = {}  # bytes in memory
        self._standings: dict[int, Standing] = {}  # after so many blocks
        self._open_cells: dict[int, frozenset[Cell]] = {}  # likewise; asked for with every cell of a plan
        self._all_cells = frozenset(plan.cells)
        self._first_is_stale = True  # a record came since the rounds of the first block were planned
        self._rounds: dict[int, int] = {}
        self._newest_block = 0
        self._purposes: dict[int, Purpose] = {}  # by block

    def add(self, record: TrialRecord | InstanceRecord) -> None:
        self._estimator.add(record)
        self._first_is_stale = True
        self._newest_block = max(self._newest_block, record.block)
        if isinstance(record, TrialRecord):
            self._trials.append(record)
            self._purposes[record.block] = record.purpose
            if (peak := record.memory.peak_bytes) is not None:
                self._peaks[record.cell.contender] = max(peak, self._peaks.get(record.cell.contender, 0))
        else:
            self._instances.append(record)

    def rounds(self, block: int) -> int:
        measure = self._plan.study.measure
        if self.purpose(block) is Purpose.CONFIRMATION:
            return self._rounds_to_confirm(block)
        if self._has_ended(block):
            return 0
        if measure.budget is None:
            return measure.trials.min
        if block < self._newest_block:  # it is complete: no later estimate opens it again
            return max(1, self._rounds_done(block))
        if block == 0 and self._first_is_stale:
            # What its first trials take is the better estimate, but it may only shorten the block.
            self._rounds[0] = min(self._rounds.get(0, MOST_STARTS), self._rounds_for(measure.budget, block))
            self._first_is_stale = False
        elif block not in self._rounds:
            self._rounds[block] = self._rounds_for(measure.budget, block)
        return self._rounds[block]

    def is_open(self, cell: Cell, block: int) -> bool:
        confirms = self.purpose(block) is Purpose.CONFIRMATION
        return cell in (self._to_confirm(block) if confirms else self._open(block))

    def purpose(self, block: int) -> Purpose:
        """A choice is confirmed in the block after the last of the selection, where the budget has time left for it."""
        if block not in self._purposes:
            can_follow = self._purposes.get(block - 1) is Purpose.SELECTION and kept_back(self._plan) > 0
            confirms = can_follow and self._has_ended(block) and self._rounds_to_confirm(block) > 0
            self._purposes[block] = Purpose.CONFIRMATION if confirms else Purpose.SELECTION
        return self._purposes[block]

    def fit_together(self, contenders: Sequence[Contender]) -> bool:
        schedule = self._plan.study.measure.schedule
        if schedule is Schedule.VISITS or (schedule is Schedule.AUTO and not self._suits_rounds(contenders)):
            return False
        needed = sum(self._peak_bytes(contender) for contender in contenders)
        return needed <= RESIDENT_SHARE * self._available_bytes

    def planned(self) -> BlockPlan | None:
        """What the budget buys, from what is known now; None without a budget, or where it buys too little."""
        measure = self._plan.study.measure
        if measure.budget is None:
            return None
        return plan_blocks(self._design(self._plan.cells), measure.budget, measure.confidence, self._components())

    def remaining_s(self) -> float:
        """Of the budget; without one, for the least that is left."""
        measure = self._plan.study.measure
        if measure.budget is not None:
            return max(0.0, measure.budget - max(block_ends(self._trials, self._instances).values(), default=0.0))
        done = Counter(trial.cell for trial in self._trials if trial.kind == "measured")
        return self._estimator.remaining_s(done, len(self._instances))

    def standing(self, blocks: int) -> Standing:
        """What the records of the first blocks say. Asked for once they are complete."""
        if blocks not in self._standings:
            self._standings[blocks] = standing(
                self._plan,
                [trial for trial in self._trials if trial.block < blocks],
                [instance for instance in self._instances if instance.block < blocks],
                headline_of(self._plan),
                baseline_of(self._plan),
            )
        return self._standings[blocks]

    def _has_ended(self, block: int) -> bool:
        """Whether the selection takes no such block any more."""
        measure = self._plan.study.measure
        return block >= measure.most_blocks or (block >= measure.instances.min and not self._open(block))

    def _to_confirm(self, block: int) -> frozenset[Cell]:
        return cells_to_confirm(self.standing(block), baseline_of(self._plan))

    def _rounds_to_confirm(self, block: int) -> int:
        """As many as the first block had, or as fit; 0 where no contender is chosen, or not one round fits."""
        if any(trial.block == block for trial in self._trials):
            return max(1, self._rounds_done(0))
        cells = [cell for cell in self._plan.cells if cell in self._to_confirm(block)]
        design = self._design(cells)
        fitting = floor((self._left_s(block) - design.starts_s) / design.round_s)
        return max(0, min(fitting, self._rounds_done(0))) if cells else 0

    def _left_s(self, block: int) -> float:
        """Of the budget, before this block."""
        ends_s = block_ends(self._trials, self._instances)
        return (self._plan.study.measure.budget or 0.0) - max(
            (ends_s[one] for one in ends_s if one < block), default=0.0
        )

    def _open(self, block: int) -> frozenset[Cell]:
        """The cells with an undecided question, from the blocks before this one."""
        measure = self._plan.study.measure
        if block < max(measure.instances.min, 2) and block < measure.most_blocks:
            return self._all_cells
        if block not in self._open_cells:
            self._open_cells[block] = self._undecided(block)
        return self._open_cells[block]

    def _undecided(self, block: int) -> frozenset[Cell]:
        found = self.standing(block)
        if found.end is not None:
            return frozenset()
        alone = (cell for cell in self._plan.cells if cell.workload not in found.claims)
        vague = {cell for cell in alone if self._is_vague(cell, block)}
        return frozenset(open_cells(found, baseline_of(self._plan)) | vague)

    def _is_vague(self, cell: Cell, blocks: int) -> bool:
        """Of a cell with no other to compare with: its own figure is not known to the precision asked for."""
        metric = headline_of(self._plan).metric
        groups: dict[int, list[float]] = {}
        for trial in self._trials:
            if trial.counts and trial.cell == cell and trial.block < blocks:
                groups.setdefault(trial.block, []).append(getattr(trial.metrics, metric))
        return bool(groups) and not enough_instances(list(groups.values()), self._plan.study.measure)

    def _rounds_done(self, block: int) -> int:
        """Of the baseline there may be more: it has a turn in the rounds of every shift."""
        counts = Counter(trial.cell for trial in self._trials if trial.counts and trial.block == block)
        others = [count for cell, count in counts.items() if cell.contender != baseline_of(self._plan)]
        return max(others or counts.values(), default=0)

    def _rounds_for(self, budget_s: float, block: int) -> int:
        """At least one; a block that would not end in time with one is begun only while two are not complete."""
        measure = self._plan.study.measure
        design = self._design([cell for cell in self._plan.cells if cell in self._open(block)])
        wanted = plan_blocks(design, budget_s, measure.confidence, self._components())
        rounds = wanted.rounds if wanted else 1
        if block > 0:
            first_s = block_ends(self._trials, self._instances).get(0, 0.0)
            left_s = self._left_s(block) - kept_back(self._plan) * first_s
            rounds = min(rounds, floor((left_s - design.starts_s) / design.round_s))
        return max(1, min(rounds, measure.trials.max))

    def _components(self) -> VarianceComponents:
        blocks = len({trial.block for trial in self._trials if trial.counts})
        return measured_components(self.standing(blocks - 1).speeds if blocks > 1 else {})

    def _design(self, cells: Sequence[Cell]) -> Design:
        contenders = {cell.contender for cell in cells}
        trials_s = sum(self._estimator.trial_s(cell) for cell in cells)
        starts_s = sum(self._estimator.start_s(one.engine) + STOP_S for one in contenders) + trials_s  # and warm-ups
        again = [cell for cell in cells if cell.contender == baseline_of(self._plan)] * self._further_shifts(contenders)
        again_s = sum(self._estimator.trial_s(cell) for cell in again)
        return Design(
            contenders=max(len(contenders), 2),
            starts_s=starts_s,
            round_s=max(trials_s + again_s + PROBE_AND_TOUCH_S * (len(cells) + len(again)), 1e-3),
            kept_back=kept_back(self._plan),
        )

    def _further_shifts(self, contenders: Collection[Contender]) -> int:
        """In each of them the baseline has its rounds once more."""
        baseline = baseline_of(self._plan)
        if baseline is None or baseline not in contenders or self.fit_together(list(contenders)):
            return 0
        others = [one for one in self._plan.contenders if one in contenders and one != baseline]
        shifts = shifts_beside(baseline, others, self.fit_together)
        return max(len(shifts) - 1, 0) if shifts else 0

    def _suits_rounds(self, contenders: Sequence[Contender]) -> bool:
        """Engines on a device would share its memory and clocks; one that cannot be frozen disturbs the others."""
        study = self._plan.study
        setups = [study.engine(contender.engine) for contender in contenders]
        return not self._on_device and all(self._engines[setup.engine].can_freeze(setup) for setup in setups)

    def _peak_bytes(self, contender: Contender) -> int:
        """As measured; before that, from its weights and what its engine usually takes besides."""
        if (known := self._peaks.get(contender)) is not None:
            return known
        variant = self._plan.variant(contender.variant)
        engine = self._engines[self._plan.study.engine(contender.engine).engine]
        return engine.overhead_bytes + 2 * (variant.weight_bytes or 0)
