"""Decides what each block of a study measures, before it begins, and writes it to `blocks.jsonl`.

Only the clock of a budget may change the rounds of a block under way. That is written down, too.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain

from bitbench.analysis.budget import (
    FIRST_GUESS,
    BlockPlan,
    Design,
    VarianceComponents,
    choose_variance_components,
    has_time_for_block,
    plan_blocks,
)
from bitbench.analysis.elapsed import collect_block_ends
from bitbench.analysis.precision import has_enough_instances
from bitbench.analysis.ranking import ModelGroup, collect_group_speeds, list_model_groups
from bitbench.analysis.sequential import (
    SequentialAnalysis,
    get_primary_metric,
    list_undecided_points,
)
from bitbench.planning.estimate import Estimator
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.running.progress import BlockTask, Progress
from bitbench.running.residence import Residence
from bitbench.study.plan import Plan, Point

OpenPoints = Callable[[int], frozenset[Point]]
Standings = Mapping[ModelGroup, SequentialAnalysis]

STOP_S = 1.0  # to stop one instance
TOUCH_S = 0.3  # for the request before each trial of configs that take turns


class BlockPlanner:
    """The planner of a study, which decides if another block is needed, with which points."""

    def __init__(
        self,
        plan: Plan,
        estimator: Estimator,
        residence: Residence,
        *,
        at_once: int = 1,
        search: OpenPoints | None = None,
    ) -> None:
        """`at_once` blocks run at a time, each on a separate machine.

        `search` returns the points that continue after a number of blocks. Without it, the claims
        of the study decide that.
        """
        self._plan = plan
        self._measure = plan.study.measure
        self._estimator = estimator
        self._residence = residence
        self._at_once = at_once
        self._search = search
        self._model_groups = list_model_groups(plan)
        self._points = frozenset(plan.points)
        self._tasks: dict[int, BlockTask] = {}
        self._trials: list[TrialRecord] = []
        self._others: list[InstanceRecord | QualityRecord] = []
        # By number of blocks, from the records so far.
        self._cached_standings: dict[int, Standings] = {}

    def add(self, record: TrialRecord | InstanceRecord | QualityRecord) -> None:
        """Take a record into account for the next decisions."""
        self._cached_standings.clear()
        if isinstance(record, TrialRecord):
            self._trials.append(record)
        else:
            self._others.append(record)
        if not isinstance(record, QualityRecord):
            self._estimator.add(record)

    def begin(self, task: BlockTask) -> None:
        """Register what a block measures, or its new number of rounds."""
        self._tasks[task.block] = task

    def decide(self, block: int) -> BlockTask | None:
        """Return what this block measures, or None if the study ends before it."""
        if block >= self._measure.starts.max:
            return None
        points = self.open_points(block)
        if not points and block >= self._measure.starts.min:
            return None
        return BlockTask(block, self._choose_rounds(block, points), points)

    def open_points(self, block: int) -> frozenset[Point]:
        """Return the points with an undecided question after the blocks that `basis` counts."""
        if block < self.blocks_in_any_case:
            return self._points
        return self._collect_undecided(self.basis(block))

    def rounds_by_the_clock(self, task: BlockTask, point: Point, progress: Progress) -> int:
        """Return the number of rounds of a block after a trial of this point.

        It changes only under a budget. In the first block each trial improves the estimate, which
        may only shorten the block. After a complete round, the next one is skipped if it would not
        end in time. The last block that fits gets rounds as long as they do.
        """
        budget_s = self._measure.budget
        if budget_s is None:
            return task.rounds
        done = progress.count_rounds(point, task.block)
        rounds = task.rounds
        if task.block == 0:
            rounds = min(rounds, max(done, self._choose_rounds(0, task.points)))
        if done == 0 or not progress.is_round_complete(task.block, done):
            return rounds
        ends_s = self._compute_block_ends()
        left_s = budget_s - ends_s[task.block]
        if self._make_design(task.points).round_s > left_s:
            return min(rounds, done)
        wants_more = done == rounds < self._measure.trials.max
        if wants_more and self._is_last(task.block, ends_s, budget_s):
            return rounds + 1
        return rounds

    def basis(self, block: int) -> int:
        """Return the number of complete blocks that the decision about this one uses.

        The first blocks run in any case, so it is 0 for them. If several blocks run at once, one
        decision covers all of them, so that no machine waits for another.
        """
        first = self.blocks_in_any_case
        if block < first:
            return 0
        return block - (block - first) % self._at_once

    @property
    def blocks_in_any_case(self) -> int:
        """The number of blocks that run before the first decision."""
        return min(max(self._measure.starts.min, 2), self._measure.starts.max)

    def planned(self) -> BlockPlan | None:
        """Return the blocks that fit the budget by the current estimates.

        Return None without a budget or if it is too small.
        """
        if self._measure.budget is None:
            return None
        last_block = max((trial.block for trial in self._trials), default=0)
        return self._plan_blocks(
            self._points, self._measure.budget, self._estimate_components(last_block)
        )

    def remaining_s(self) -> float:
        """Return the rest of the budget, or without one the least time that is left."""
        if self._measure.budget is None:
            return self._estimator.remaining_s() / self._at_once
        elapsed_s = max(self._compute_block_ends().values(), default=0.0)
        return max(0.0, self._measure.budget - elapsed_s)

    def _compute_block_ends(self) -> dict[int, float]:
        return collect_block_ends(self._trials, self._others)

    def _is_last(self, block: int, ends_s: Mapping[int, float], budget_s: float) -> bool:
        if block + 1 < self.blocks_in_any_case:
            return False
        if block + 1 >= self._measure.starts.max:
            return True
        block_s = ends_s[block] - _find_end_before(block, ends_s)
        return not has_time_for_block(ends_s[block], block_s, budget_s)

    def _get_standings(self, blocks: int) -> Standings:
        """Return the analysis of each model from the records of the first blocks."""
        if blocks not in self._cached_standings:
            trials = [trial for trial in self._trials if trial.block < blocks]
            others: list[InstanceRecord | QualityRecord] = []
            for record in self._others:
                if isinstance(record, QualityRecord) or record.block < blocks:
                    others.append(record)
            standings: dict[ModelGroup, SequentialAnalysis] = {}
            for model_group in self._model_groups:
                standings[model_group] = model_group.standing(trials, others)
            self._cached_standings[blocks] = standings
        return self._cached_standings[blocks]

    def _collect_undecided(self, blocks: int) -> frozenset[Point]:
        """Return the points with an undecided question after this number of blocks."""
        if self._search is not None:
            return self._search(blocks)
        undecided: set[Point] = set()
        for model_group, analysis in self._get_standings(blocks).items():
            if analysis.end is not None:
                continue
            undecided |= list_undecided_points(analysis, model_group.baseline)
            for point in model_group.plan.points:
                if point.workload not in analysis.speeds and self._is_vague(point, blocks):
                    undecided.add(point)
        return frozenset(undecided)

    def _is_vague(self, point: Point, blocks: int) -> bool:
        """Return True if the metric of a point without a comparison is not yet precise enough."""
        metric = get_primary_metric(self._plan).metric
        groups: dict[int, list[float]] = {}
        for trial in self._trials:
            value = getattr(trial.metrics, metric)
            if trial.point == point and trial.counts and trial.block < blocks and value is not None:
                groups.setdefault(trial.block, []).append(value)
        return bool(groups) and not has_enough_instances(list(groups.values()), self._measure)

    def _choose_rounds(self, block: int, points: frozenset[Point]) -> int:
        """Return the best number of rounds for the time that is left, at least one.

        A block that does not fit at all begins only if it runs in any case.
        """
        if self._measure.budget is None:
            return self._measure.trials.min
        done = [task.rounds for task in self._tasks.values() if task.block < block]
        left_s = self._measure.budget
        if block > 0:
            left_s -= _find_end_before(block, self._compute_block_ends())
        planned = self._plan_blocks(points, left_s, self._estimate_components(block), done)
        return planned.rounds if planned else 1

    def _plan_blocks(
        self,
        points: frozenset[Point],
        budget_s: float,
        components: VarianceComponents,
        done: Sequence[int] = (),
    ) -> BlockPlan | None:
        """Return the plan of all blocks, of which some have their `done` rounds already."""
        measure = self._measure
        return plan_blocks(
            self._make_design(points),
            budget_s,
            measure.confidence,
            components,
            done=done,
            fewest=measure.starts.min,
            most=measure.starts.max,
            most_rounds=measure.trials.max,
        )

    def _estimate_components(self, blocks: int) -> VarianceComponents:
        """Return the variance components that the first blocks show, or a first guess."""
        if blocks < 2:
            return FIRST_GUESS
        return choose_variance_components(collect_group_speeds(self._get_standings(blocks)))

    def _make_design(self, points: Collection[Point]) -> Design:
        """Return how long a start and a round of these points take.

        A baseline starts and runs once in each chunk that contains it.
        """
        times = Counter(chain.from_iterable(self._residence.chunks(points)))
        starts_s = 0.0
        round_s = 0.0
        for config, number in times.items():
            starts_s += number * (self._estimator.start_s(config.engine) + STOP_S)
        for point in points:
            number = times[point.config]
            starts_s += number * self._estimator.estimate_warm_up_s(point)
            round_s += number * (self._estimator.trial_s(point) + TOUCH_S)
        return Design(configs=max(len(times), 2), starts_s=starts_s, round_s=max(round_s, 1e-3))


def _find_end_before(block: int, ends_s: Mapping[int, float]) -> float:
    """Return when the blocks before this one had ended, in seconds, or 0 for the first."""
    return max((end_s for number, end_s in ends_s.items() if number < block), default=0.0)
