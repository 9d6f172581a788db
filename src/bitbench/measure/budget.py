"""How much of a study is measured: blocks and rounds from its budget, and which questions are still open."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from bitbench.analysis.budget import (
    BlockPlan,
    Design,
    VarianceComponents,
    another_block_fits,
    measured_variance_components,
    plan_blocks,
)
from bitbench.analysis.elapsed import Elapsed
from bitbench.analysis.precision import enough_instances
from bitbench.analysis.ranking import ModelGroup, model_group_speeds, ranking_model_groups
from bitbench.analysis.sequential import SequentialAnalysis, open_points, primary_metric_of
from bitbench.measure.estimate import BlockRounds, Estimator, Room
from bitbench.measure.progress import shifts_beside
from bitbench.ports import Engine
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, Outcome, TrialRecord
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Interleaving

OpenPoints = Callable[[int], frozenset[Point]]

STOP_S = 1.0  # of one instance
TOUCH_S = 0.3  # before each trial of configs that take turns
RESIDENT_SHARE = (
    0.85  # of the memory that is available: the rest is for the load client, page cache, and the peak of one
)


@dataclass(frozen=True)
class OneBlock:
    """A `measure.progress.Pace`: so many trials of each point, as on an endpoint that is not started anew."""

    trials: int

    def rounds(self, block: int) -> int:
        return self.trials if block == 0 else 0

    def is_open(self, point: Point, block: int) -> bool:  # noqa: ARG002
        return True

    def basis(self, block: int) -> int:
        return block

    def fit_together(self, configs: Iterable[Config]) -> bool:  # noqa: ARG002
        return False


class StudyPace:
    """A `measure.progress.Pace` that asks after each block whether the study's questions are decided.

    What is asked with every trial or group is kept up to date as records come in, and not counted again.
    """

    def __init__(
        self,
        plan: Plan,
        engines: Mapping[str, Engine],
        estimator: Estimator,
        *,
        available_bytes: int,
        on_device: bool,
        at_once: int = 1,
        search: OpenPoints | None = None,
    ) -> None:
        """`at_once`: so many blocks may run at a time, each on a machine of its own. `search`: which points go on after
        so many blocks, where that is not for the study's own claims to say."""
        self._plan = plan
        self._at_once = at_once
        self._fields = ranking_model_groups(plan)
        self._engines = {setup.name: engines[setup.engine] for setup in plan.study.engines}
        self._setups = {setup.name: setup for setup in plan.study.engines}
        self._weight_bytes = {variant.name: variant.weight_bytes or 0 for variant in plan.variants}
        self._estimator = estimator
        self._available_bytes = available_bytes
        self._on_device = on_device
        self._search = search
        self._trials: list[TrialRecord] = []
        self._instances: list[InstanceRecord] = []
        self._quality: list[QualityRecord] = []  # for its time, which is beside a budget
        self._counted: dict[Point, dict[int, list[TrialRecord]]] = defaultdict(dict)  # those that count, by block
        self._rounds_done: Counter[int] = Counter()  # of each block: the most trials of one point that count
        self._rounds_of_baselines: Counter[int] = Counter()  # apart: they have a turn in the rounds of every shift
        self._peaks: dict[Config, int] = {}  # bytes, as measured
        self._elapsed = Elapsed()
        self._standings: dict[int, dict[ModelGroup, SequentialAnalysis]] = {}  # after so many blocks
        self._open_points: dict[int, frozenset[Point]] = {}  # likewise; asked for with every point of a plan
        self._all_points = frozenset(plan.points)
        self._all_configs = tuple(dict.fromkeys(point.config for point in plan.points))
        self._baselines = {field.baseline for field in self._fields if field.baseline}
        self._configs = Counter(config.engine for config in self._all_configs)  # by setup
        # Of the first block, before any memory is known; only a budget asks for it.
        is_in_shifts = plan.study.measure.budget is not None and plan.study.measure.schedule is not Interleaving.VISITS
        self._guessed_again = self._beside_shifts(self._all_configs) if is_in_shifts else []
        self._again_of_all: list[Point] | None = None  # None: not counted since a peak became known
        self._rounds: dict[int, BlockRounds] = {}
        self._from_earlier_blocks: tuple[dict[int, Any], ...] = (self._standings, self._open_points, self._rounds)
        self._newest_block = 0

    def add(self, record: TrialRecord | InstanceRecord | QualityRecord) -> None:
        self._elapsed.add(record)
        if isinstance(record, QualityRecord):
            self._quality.append(record)
            return
        self._estimator.add(record)
        if record.block < self._newest_block:  # measured again: what was found of later blocks followed from it
            for found in self._from_earlier_blocks:
                for block in [block for block in found if block > record.block]:
                    del found[block]
        self._newest_block = max(self._newest_block, record.block)
        if record.block in self._rounds:
            self._rounds[record.block].add(record)
        if isinstance(record, InstanceRecord):
            self._instances.append(record)
            return
        self._trials.append(record)
        if record.counts:
            counted = self._counted[record.point].setdefault(record.block, [])
            counted.append(record)
            done = self._rounds_of_baselines if record.point.config in self._baselines else self._rounds_done
            done[record.block] = max(done[record.block], len(counted))
        if (peak_bytes := record.memory.peak_bytes) is not None:
            config = record.point.config
            self._again_of_all = self._again_of_all if config in self._peaks else None
            self._peaks[config] = max(self._peaks.get(config, 0), peak_bytes)

    def rounds(self, block: int) -> int:
        measure = self._plan.study.measure
        if block >= measure.starts.max or (block >= measure.starts.min and not self._open(block)):
            return 0
        if measure.budget is None:
            return measure.trials.min
        if block not in self._rounds:
            self._rounds[block] = self._block_rounds(block)
        rounds = self._rounds[block].rounds()
        done = self._done(block) if block < self._newest_block else 0
        return min(rounds, done) if done else rounds  # complete: no later estimate opens it again

    def is_open(self, point: Point, block: int) -> bool:
        return point in self._open(block)

    def basis(self, block: int) -> int:
        """The first blocks are run in any case. Those after them are decided upon after each block; where several run
        at once, after as many as run at once, so that no machine waits for another within them."""
        first = self._in_any_case
        return 0 if block < first else block - (block - first) % self._at_once

    def fit_together(self, configs: Iterable[Config]) -> bool:
        schedule = self._plan.study.measure.schedule
        if schedule is Interleaving.VISITS:
            return False
        free_bytes = RESIDENT_SHARE * self._available_bytes
        for config in configs:
            free_bytes -= self._peak_bytes(config)
            if free_bytes < 0 or (schedule is Interleaving.AUTO and not self._suits_rounds(config)):
                return False
        return True

    def planned(self) -> BlockPlan | None:
        """What the budget buys, from what is known now; None without a budget, or where it buys too little."""
        measure = self._plan.study.measure
        if measure.budget is None:
            return None
        design = self._design(self._all_points, self._estimator)
        return self._plan_blocks(design, measure.budget, self._components(self._newest_block))

    def remaining_s(self) -> float:
        """Of the budget; without one, for the least that is left."""
        measure = self._plan.study.measure
        if measure.budget is not None:
            return max(0.0, measure.budget - max(self._elapsed.block_ends().values(), default=0.0))
        return self._estimator.remaining_s() / self._at_once

    def standings(self, blocks: int) -> Mapping[ModelGroup, SequentialAnalysis]:
        """What the records of the first blocks say of each model. Asked for once they are complete."""
        if blocks not in self._standings:
            trials = [trial for trial in self._trials if trial.block < blocks]
            instances = [instance for instance in self._instances if instance.block < blocks]
            others: list[InstanceRecord | QualityRecord] = [*instances, *self._quality]
            self._standings[blocks] = {field: field.standing(trials, others) for field in self._fields}
        return self._standings[blocks]

    def _left_s(self, block: int) -> float:
        """Of the budget, before this block."""
        ends_s = [end_s for number, end_s in self._elapsed.block_ends().items() if number < block]
        return (self._plan.study.measure.budget or 0.0) - max(ends_s, default=0.0)

    def _done(self, block: int) -> int:
        """Rounds; of the baselines' only where no other config has any."""
        return self._rounds_done[block] or self._rounds_of_baselines[block]

    def _open(self, block: int) -> frozenset[Point]:
        """The points with an undecided question, from the blocks before this one."""
        if block < self._in_any_case:
            return self._all_points
        basis = self.basis(block)
        if basis not in self._open_points:
            self._open_points[basis] = self._undecided(basis)
        return self._open_points[basis]

    @property
    def _in_any_case(self) -> int:
        """So many blocks are run before the first decision."""
        measure = self._plan.study.measure
        return min(max(measure.starts.min, 2), measure.starts.max)

    def _undecided(self, block: int) -> frozenset[Point]:
        if self._search is not None:
            return self._search(block)
        found: set[Point] = set()
        for field, own in self.standings(block).items():
            if own.end is not None:
                continue
            alone = (point for point in field.plan.points if point.workload not in own.speeds)
            found |= open_points(own, field.baseline) | {point for point in alone if self._is_vague(point, block)}
        return frozenset(found)

    def _is_vague(self, point: Point, blocks: int) -> bool:
        """Of a point with no other to compare with: its own figure is not known to the precision asked for."""
        metric = primary_metric_of(self._plan).metric
        found = (
            [value for trial in trials if (value := getattr(trial.metrics, metric)) is not None]
            for block, trials in self._counted[point].items()
            if block < blocks
        )
        groups = [values for values in found if values]
        return bool(groups) and not enough_instances(groups, self._plan.study.measure)

    def _block_rounds(self, block: int) -> BlockRounds:
        """As is best for the time that is left. A block that would not end in time with one round has one: it is begun
        only while those that are run in any case are not complete."""
        points = self._open(block)
        configs = self._starts_of(points)
        again = self._again(points) if block else self._guessed_again
        done = [rounds for number in range(block) if (rounds := self._done(number))]
        left_s = self._left_s(block)
        components = self._components(block)

        def rounds_for(known: Estimator) -> int:
            plan = self._plan_blocks(self._design_with(known, points, configs, again), left_s, components, done)
            return plan.rounds if plan else 1

        found = BlockRounds(
            points,
            self._gone_before(block, points),
            lambda: self._known_before(block),
            rounds_for,
            lambda moment_s: self._room(block, self._elapsed.until(moment_s)),
            most=self._plan.study.measure.trials.max,
        )
        records: list[InstanceRecord | TrialRecord] = [*self._instances, *self._trials]
        for record in records:
            if record.block == block:
                found.add(record)
        return found

    def _room(self, block: int, elapsed: Elapsed) -> Room:
        measure = self._plan.study.measure
        ends_s = elapsed.block_ends()
        if measure.budget is None or block not in ends_s:
            return Room(inf, is_last=False)
        block_s = ends_s[block] - max((end_s for number, end_s in ends_s.items() if number < block), default=0.0)
        fits = another_block_fits(ends_s[block], block_s, measure.budget)
        is_last = block + 1 >= self._in_any_case and (block + 1 >= measure.starts.max or not fits)
        return Room(measure.budget - ends_s[block], is_last)

    def _gone_before(self, block: int, points: frozenset[Point]) -> set[Point]:
        """Those that failed when they were last measured."""
        last = {
            trial.point: trial.outcome for trial in self._trials if trial.block < block and trial.kind == "measured"
        }
        return {point for point in points if last.get(point, Outcome.OK) is not Outcome.OK}

    def _known_before(self, block: int) -> Estimator:
        """From the blocks before it: a run that was interrupted in a block, or after it, must come to the same."""
        known = self._estimator.anew()
        recorded: list[InstanceRecord | TrialRecord] = [*self._instances, *self._trials]
        for record in recorded:
            if record.block < block:
                known.add(record)
        return known

    def _plan_blocks(
        self, design: Design, budget_s: float, components: VarianceComponents, done: Sequence[int] = ()
    ) -> BlockPlan | None:
        measure = self._plan.study.measure
        return plan_blocks(
            design,
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
        return measured_variance_components(model_group_speeds(self.standings(blocks)) if blocks > 1 else {})

    def _design(self, points: frozenset[Point], known: Estimator) -> Design:
        return self._design_with(known, points, self._starts_of(points), self._again(points))

    def _starts_of(self, points: frozenset[Point]) -> Counter[str]:
        """By setup."""
        if points is self._all_points:
            return self._configs
        return Counter(config.engine for config in {point.config for point in points})

    def _design_with(
        self, known: Estimator, points: frozenset[Point], configs: Counter[str], again: Sequence[Point]
    ) -> Design:
        if points is self._all_points:  # asked for after each trial of the first block
            trials_s, warm_ups_s = known.one_each_s, known.warm_ups_s
        else:
            chosen = [point for point in self._plan.points if point in points]
            trials_s, warm_ups_s = sum(map(known.trial_s, chosen)), sum(map(known.warm_up_s, chosen))
        starts_s = sum(number * (known.start_s(name) + STOP_S) for name, number in configs.items())
        again_s = sum(known.trial_s(point) for point in again)
        return Design(
            configs=max(configs.total(), 2),
            starts_s=starts_s + warm_ups_s,
            round_s=max(trials_s + again_s + TOUCH_S * (len(points) + len(again)), 1e-3),
        )

    def _again(self, points: frozenset[Point]) -> list[Point]:
        """Of the baselines, in each shift beside the first: there they have their rounds once more."""
        if points is not self._all_points:
            present = {point.config for point in points}
            configs = [config for config in self._all_configs if config in present]
            return [point for point in self._beside_shifts(configs) if point in points]
        if self._again_of_all is None:
            self._again_of_all = self._beside_shifts(self._all_configs)
        return self._again_of_all

    def _beside_shifts(self, configs: Sequence[Config]) -> list[Point]:
        """As above; none where all fit at once, and where those of a model come one after the other."""
        if self.fit_together(configs):
            return []
        found: list[Point] = []
        for field in self._fields:
            of_model = set(field.configs) - {field.baseline}
            others = [config for config in configs if config in of_model]
            shifts = shifts_beside(field.baseline, others, self.fit_together) if field.baseline else None
            if shifts is not None:
                found += [point for point in field.plan.points if point.config == field.baseline] * (len(shifts) - 1)
        return found

    def _suits_rounds(self, config: Config) -> bool:
        """Engines on a device would share its memory and clocks; one that cannot be frozen disturbs the others."""
        setup = self._setups[config.engine]
        return not self._on_device and self._engines[setup.name].can_freeze(setup)

    def _peak_bytes(self, config: Config) -> int:
        """As measured; before that, from its weights and what its engine usually takes besides."""
        if config in self._peaks:
            return self._peaks[config]
        return self._engines[config.engine].overhead_bytes + 2 * self._weight_bytes[config.variant]
