"""A study without a folder or an engine: what is next follows from the records that it is told."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import count

from bitbench.engines.null import NullEngine
from bitbench.engines.registry import load_study_engines
from bitbench.planning.estimate import Estimator
from bitbench.records.trial import TrialRecord
from bitbench.running.block_planner import BlockPlanner
from bitbench.running.loop import Planner
from bitbench.running.progress import BlockTask, Progress, Recorded
from bitbench.running.residence import Chunk, Residence
from bitbench.study.plan import Group, Plan, Point

ENGINES = {"null": NullEngine()}


@dataclass(frozen=True)
class FixedPlanner:
    """So many blocks and rounds; `closed`: points that have nothing left to ask from the second block on."""

    plan: Plan
    blocks: int = 2
    trials: int = 2
    closed: tuple[Point, ...] = ()

    def add(self, record: Recorded) -> None:
        """Learn nothing."""

    def begin(self, task: BlockTask) -> None:
        """Learn nothing."""

    def decide(self, block: int) -> BlockTask | None:
        points = frozenset(self.plan.points) - (set(self.closed) if block else set())
        return BlockTask(block, self.trials, points) if block < self.blocks else None

    def rounds_by_the_clock(self, task: BlockTask, point: Point, progress: Progress) -> int:
        return task.rounds

    def remaining_s(self) -> float:
        return 0.0


@dataclass(frozen=True)
class FixedResidence:
    """All configs at once, so many at once beside the first, or one after the other."""

    plan: Plan
    together: bool = False
    most: int = 1

    def add(self, trial: TrialRecord) -> None:
        """Learn nothing."""

    def chunks(self, points: Collection[Point]) -> list[Chunk]:
        present = {point.config for point in points}
        configs = [config for config in self.plan.configs if config in present]
        if self.together:
            return [tuple(configs)]
        if self.most == 1:
            return [(config,) for config in configs]
        first, *others = configs
        size = self.most - 1
        return [(first, *others[place : place + size]) for place in range(0, len(others), size)]


class PaperStudy:
    """Decides and begins blocks as `bitbench.running.loop.Schedule` does."""

    def __init__(
        self,
        plan: Plan,
        planner: Planner | None = None,
        residence: Residence | FixedResidence | None = None,
        *,
        available_bytes: int = 2**34,
        repeatable: Collection[str] = (),
        tasks: Iterable[BlockTask] = (),
    ) -> None:
        """`tasks`: what an earlier call decided."""
        engines = load_study_engines(plan.study)
        own = Residence(plan, engines, available_bytes=available_bytes, on_device=False)
        self.plan = plan
        self.residence = residence or own
        self.planner = planner or BlockPlanner(plan, Estimator(plan, engines), own)
        self.progress = Progress(plan, repeatable)
        self.tasks: list[BlockTask] = []
        for task in tasks:
            self._begin(task)

    def _begin(self, task: BlockTask) -> None:
        self.tasks[task.block :] = [task]
        self.planner.begin(task)
        self.progress.begin(task)

    def add(self, records: Iterable[Recorded]) -> None:
        """Tell it records of an earlier call."""
        for record in records:
            self.planner.add(record)
            self.progress.add([record])
            if isinstance(record, TrialRecord):
                self.residence.add(record)

    def measure(self, record: Recorded) -> None:
        """Tell it a record of this call, after which it looks at the clock."""
        self.add([record])
        if isinstance(record, TrialRecord) and record.kind == "measured":
            task = self.tasks[record.block]
            self._begin(
                replace(
                    task, rounds=self.planner.rounds_by_the_clock(task, record.point, self.progress)
                )
            )

    def rounds(self, block: int) -> int:
        """Of a block that was begun; of the next one as it would be decided now."""
        task = self.tasks[block] if block < len(self.tasks) else self.planner.decide(block)
        return 0 if task is None else task.rounds

    def next_group(self) -> Group | None:
        for block in count():
            if block == len(self.tasks):
                task = self.planner.decide(block)
                if task is None:
                    return self.progress.find_next_quality()
                self._begin(task)
            group = self.progress.next_group(block, self.residence)  # type: ignore[arg-type]
            if group is not None:
                return group
        return None
