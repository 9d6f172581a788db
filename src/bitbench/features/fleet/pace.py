"""How much is measured when several nodes work at once, with a budget: wall time of all nodes together.

The first blocks are as many as there are nodes, at least two on each, and share the budget; a node ends its rounds when
its share is over. Later blocks are begun only while the longest block so far fits into what is left.
"""

import time
from collections.abc import Mapping
from math import ceil

from bitbench.engines.registry import registered_engines_of
from bitbench.features.fleet.lines import BlockLine
from bitbench.measure.blocks import BlockPace, BlockTask
from bitbench.measure.budget import StudyPace
from bitbench.measure.machine.host import available_memory
from bitbench.measure.plan import estimator_of
from bitbench.measure.workplace import Workplace
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.study.plan import Config, Plan, Point, Purpose

LEAST_WAVES = 2  # so that a study can drop what is decided halfway


class ClusterPace(StudyPace):
    """The pace of a study whose blocks run on so many nodes at once. `lines`: the newest of each block."""

    def __init__(self, plan: Plan, workplace: Workplace, nodes: int, lines: Mapping[int, BlockLine]) -> None:
        super().__init__(
            plan,
            registered_engines_of(plan.study),
            estimator_of(plan, workplace),
            available_bytes=available_memory(),
            on_device=workplace.device != "cpu",
            at_once=nodes,
        )
        self._measure, self._points, self._nodes, self._lines = plan.study.measure, plan.points, nodes, lines
        earlier = [line.seconds for line in lines.values() if line.seconds is not None]
        self._wall_began = time.monotonic() - sum(earlier) / nodes

    def purpose(self, block: int) -> Purpose:  # noqa: ARG002
        return Purpose.SELECTION

    def rounds(self, block: int) -> int:
        """Without a budget as on one machine; with one, the most that a block may have."""
        if self._measure.budget is None:
            return super().rounds(block)
        line = self._lines.get(block)
        if line is not None and line.event == "ended":
            return max(1, line.rounds)  # its time was over
        starts = self._measure.starts
        first = min(starts.max, max(starts.min, LEAST_WAVES * self._nodes))
        if block < first:
            return self._measure.trials.max
        longest_s = max((line.seconds or 0.0 for line in self._lines.values()), default=0.0)
        is_decided = not any(self.is_open(point, block) for point in self._points)
        if block >= starts.max or is_decided or self._wall_left_s() < longest_s:
            return 0
        return self._measure.trials.max

    def seconds(self) -> float | None:
        """What a block that begins now may take; None without a budget."""
        if self._measure.budget is None:
            return None
        waves = max(LEAST_WAVES, ceil(self._measure.starts.min / self._nodes))
        return max(0.0, min(self._measure.budget / waves, self._wall_left_s()))

    def _wall_left_s(self) -> float:
        return (self._measure.budget or 0.0) - (time.monotonic() - self._wall_began)


class TimedPace(BlockPace):
    """The pace of one block on its node: rounds until the time is over, at least one."""

    def __init__(self, task: BlockTask, plan: Plan, workplace: Workplace, seconds: float | None) -> None:
        super().__init__(task, plan, workplace)
        self._seconds, self._wall_began = seconds, time.monotonic()
        self._allowed = 1
        self._counts: dict[Point, int] = {}
        self._first_trial: float | None = None  # when it began
        self._trials_done = 0
        self._configs_begun: set[Config] = set()
        self._config_count = len({point.config for point in task.points})

    def add(self, record: TrialRecord | InstanceRecord | QualityRecord) -> None:
        super().add(record)
        if not isinstance(record, TrialRecord) or record.block != self._task.block:
            return
        self._configs_begun.add(record.point.config)
        if record.kind == "measured":
            if self._first_trial is None:
                self._first_trial = time.monotonic() - (record.duration_s or 0.0)
            self._trials_done += 1
        if record.counts:
            self._counts[record.point] = self._counts.get(record.point, 0) + 1
            self._allow_more()

    def rounds(self, block: int) -> int:
        most = super().rounds(block)
        return most if self._seconds is None else min(most, self._allowed)

    def _allow_more(self) -> None:
        """Allow another round once some point has had all of them, and the rest of this one and another fit.

        Configs that come one after the other share the time; those after the first have as many rounds as it had.
        """
        done = max(self._counts.values())
        if self._seconds is None or self._first_trial is None or done < self._allowed:
            return
        moment = time.monotonic()
        round_s = len(self._task.points) * (moment - self._first_trial) / self._trials_done
        share = len(self._configs_begun) / max(1, self._config_count)
        if moment - self._wall_began + 2 * round_s * share <= self._seconds * share:
            self._allowed = done + 1
