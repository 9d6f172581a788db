"""What each block of a study measures: decided once, before it begins, and written to `blocks.jsonl`.

Only the clock of a budget may change the rounds of a block that is under way; that is written down, too.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain

from bitbench.analysis.budget import (
    FIRST_GUESS,
    BlockPlan,
    Design,
    VarianceComponents,
    another_block_fits,
    measured_variance_components,
    plan_blocks,
)
from bitbench.analysis.elapsed import block_ends
from bitbench.analysis.precision import enough_instances
from bitbench.analysis.ranking import ModelGroup, model_group_speeds, ranking_model_groups
from bitbench.analysis.sequential import (
    SequentialAnalysis,
    points_with_open_claims,
    primary_metric_of,
)
from bitbench.planning.estimate import Estimator
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.running.progress import BlockTask, Progress
from bitbench.running.residence import Residence
from bitbench.study.plan import Plan, Point

OpenPoints = Callable[[int], frozenset[Point]]
Standings = Mapping[ModelGroup, SequentialAnalysis]

STOP_S = 1.0  # of one instance
TOUCH_S = 0.3  # before each trial of configs that take turns


class BlockPlanner:
    """Decides after each block whether the study's questions need another one, of which points, and how long."""

    def __init__(
        self,
        plan: Plan,
        estimator: Estimator,
        residence: Residence,
        *,
        at_once: int = 1,
        search: OpenPoints | None = None,
    ) -> None:
        """`at_once`: so many blocks may run at a time, each on a machine of its own. `search`: which points go on after
        so many blocks, where that is not for the study's own claims to say."""
        self._plan = plan
        self._measure = plan.study.measure
        self._estimator = estimator
        self._residence = residence
        self._at_once = at_once
        self._search = search
        self._fields = ranking_model_groups(plan)
        self._points = frozenset(plan.points)
        self._tasks: dict[int, BlockTask] = {}
        self._trials: list[TrialRecord] = []
        self._others: list[InstanceRecord | QualityRecord] = []
        self._known_standings: dict[
            int, Standings
        ] = {}  # after so many blocks, of the records so far

    def add(self, record: TrialRecord | InstanceRecord | QualityRecord) -> None:
        self._known_standings.clear()
        if isinstance(record, TrialRecord):
            self._trials.append(record)
        else:
            self._others.append(record)
        if not isinstance(record, QualityRecord):
            self._estimator.add(record)

    def begin(self, task: BlockTask) -> None:
        """Take note of what a block measures, or of its new number of rounds."""
        self._tasks[task.block] = task

    def decide(self, block: int) -> BlockTask | None:
        """Return what this block measures, from the blocks before it; None: the study ends before it."""
        if block >= self._measure.starts.max:
            return None
        points = self.open_points(block)
        if not points and block >= self._measure.starts.min:
            return None
        return BlockTask(block, self._rounds(block, points), points)

    def open_points(self, block: int) -> frozenset[Point]:
        """Return the points with an undecided question, from the blocks that are complete before this one."""
        if block < self.blocks_in_any_case:
            return self._points
        return self._undecided(self.basis(block))

    def rounds_by_the_clock(self, task: BlockTask, point: Point, progress: Progress) -> int:
        """Return the rounds of a block with a budget, after a trial of this point.

        In the first block each trial makes the estimate better, which may only shorten it. After a round that all have,
        another is not begun if it would not end in time. Where no other block fits, the rounds go on while they do.
        """
        budget_s = self._measure.budget
        if budget_s is None:
            return task.rounds
        done, rounds = progress.rounds_of(point, task.block), task.rounds
        if task.block == 0:
            rounds = min(rounds, max(done, self._rounds(0, task.points)))
        if done == 0 or not progress.is_round_complete(task.block, done):
            return rounds
        ends_s = self._block_ends()
        left_s = budget_s - ends_s[task.block]
        if self._design(task.points).round_s > left_s:
            return min(rounds, done)
        if done == rounds < self._measure.trials.max and self._is_last(
            task.block, ends_s, budget_s
        ):
            return rounds + 1
        return rounds

    def basis(self, block: int) -> int:
        """The first blocks are run in any case. Those after them are decided upon after each block; where several run
        at once, after as many as run at once, so that no machine waits for another within them."""
        first = self.blocks_in_any_case
        return 0 if block < first else block - (block - first) % self._at_once

    @property
    def blocks_in_any_case(self) -> int:
        """So many blocks are run before the first decision."""
        return min(max(self._measure.starts.min, 2), self._measure.starts.max)

    def planned(self) -> BlockPlan | None:
        """What the budget buys, from what is known now; None without a budget, or where it buys too little."""
        if self._measure.budget is None:
            return None
        return self._plan_blocks(
            self._points, self._measure.budget, self._components(self._blocks_known())
        )

    def remaining_s(self) -> float:
        """Of the budget; without one, for the least that is left."""
        if self._measure.budget is None:
            return self._estimator.remaining_s() / self._at_once
        return max(0.0, self._measure.budget - max(self._block_ends().values(), default=0.0))

    def _blocks_known(self) -> int:
        return max((trial.block for trial in self._trials), default=0)

    def _block_ends(self) -> dict[int, float]:
        return block_ends(self._trials, self._others)

    def _is_last(self, block: int, ends_s: Mapping[int, float], budget_s: float) -> bool:
        if block + 1 < self.blocks_in_any_case:
            return False
        fits = another_block_fits(
            ends_s[block], ends_s[block] - _end_before(block, ends_s), budget_s
        )
        return block + 1 >= self._measure.starts.max or not fits

    def _standings(self, blocks: int) -> Standings:
        """What the records of the first blocks say of each model."""
        if blocks not in self._known_standings:
            trials = [trial for trial in self._trials if trial.block < blocks]
            others = [
                record
                for record in self._others
                if isinstance(record, QualityRecord) or record.block < blocks
            ]
            self._known_standings[blocks] = {
                field: field.standing(trials, others) for field in self._fields
            }
        return self._known_standings[blocks]

    def _undecided(self, blocks: int) -> frozenset[Point]:
        """The points with an undecided question, from so many blocks."""
        if self._search is not None:
            return self._search(blocks)
        found: set[Point] = set()
        for field, own in self._standings(blocks).items():
            if own.end is not None:
                continue
            alone = [point for point in field.plan.points if point.workload not in own.speeds]
            found |= points_with_open_claims(own, field.baseline)
            found |= {point for point in alone if self._is_vague(point, blocks)}
        return frozenset(found)

    def _is_vague(self, point: Point, blocks: int) -> bool:
        """Of a point with no other to compare with: its own figure is not known to the precision asked for."""
        metric = primary_metric_of(self._plan).metric
        groups: dict[int, list[float]] = {}
        for trial in self._trials:
            value = getattr(trial.metrics, metric)
            if trial.point == point and trial.counts and trial.block < blocks and value is not None:
                groups.setdefault(trial.block, []).append(value)
        return bool(groups) and not enough_instances(list(groups.values()), self._measure)

    def _rounds(self, block: int, points: frozenset[Point]) -> int:
        """As is best for the time that is left. A block that would not end in time with one round has one: it is begun
        only while those that are run in any case are not complete."""
        if self._measure.budget is None:
            return self._measure.trials.min
        done = [task.rounds for task in self._tasks.values() if task.block < block]
        left_s = self._measure.budget
        if block > 0:
            left_s -= _end_before(block, self._block_ends())
        planned = self._plan_blocks(points, left_s, self._components(block), done)
        return planned.rounds if planned else 1

    def _plan_blocks(
        self,
        points: frozenset[Point],
        budget_s: float,
        components: VarianceComponents,
        done: Sequence[int] = (),
    ) -> BlockPlan | None:
        measure = self._measure
        return plan_blocks(
            self._design(points),
            budget_s,
            measure.confidence,
            components,
            done=done,
            fewest=measure.starts.min,
            most=measure.starts.max,
            most_rounds=measure.trials.max,
        )

    def _components(self, blocks: int) -> VarianceComponents:
        """As the first blocks show them."""
        if blocks < 2:
            return FIRST_GUESS
        return measured_variance_components(model_group_speeds(self._standings(blocks)))

    def _design(self, points: Collection[Point]) -> Design:
        """Say how long a start and a round of these take; a baseline has both in each chunk that holds it."""
        times = Counter(chain.from_iterable(self._residence.chunks(points)))
        starts_s, round_s = 0.0, 0.0
        for config, number in times.items():
            starts_s += number * (self._estimator.start_s(config.engine) + STOP_S)
        for point in points:
            number = times[point.config]
            starts_s += number * self._estimator.warm_up_s(point)
            round_s += number * (self._estimator.trial_s(point) + TOUCH_S)
        return Design(configs=max(len(times), 2), starts_s=starts_s, round_s=max(round_s, 1e-3))


def _end_before(block: int, ends_s: Mapping[int, float]) -> float:
    return max((end_s for number, end_s in ends_s.items() if number < block), default=0.0)
