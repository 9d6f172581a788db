"""The pace of a study on several nodes with a budget, which is the wall time of all nodes together.

The first blocks share the budget: at least two per node, and as many as the study's minimum. A node
ends its rounds when its share is over. Later blocks begin only while the longest block so far fits
into the rest.
"""

import time
from collections import Counter
from dataclasses import replace
from math import ceil

from bitbench.planning.estimate import Estimator
from bitbench.records.block_lines import BlockLines
from bitbench.records.trial import TrialRecord
from bitbench.running.block_planner import BlockPlanner
from bitbench.running.progress import BlockTask
from bitbench.running.residence import Residence
from bitbench.study.plan import Config, Plan, Point

LEAST_WAVES = 2  # so that a study can drop decided points halfway


class ClusterPlanner(BlockPlanner):
    """A planner of a study whose blocks run on several nodes at once."""

    def __init__(
        self, plan: Plan, estimator: Estimator, residence: Residence, nodes: int, lines: BlockLines
    ) -> None:
        super().__init__(plan, estimator, residence, at_once=nodes)
        self._nodes = nodes
        self._lines = lines
        self._wall_began = time.monotonic() - sum(self._list_block_seconds()) / nodes

    def decide(self, block: int) -> BlockTask | None:
        """Return the task of a block, or None to end. Without a budget it is planned as on one
        machine. With a budget, each block gets the maximum of rounds."""
        starts = self._measure.starts
        if self._measure.budget is None:
            return super().decide(block)
        if block >= starts.max:
            return None
        points = self.open_points(block)
        is_in_any_case = block < max(starts.min, LEAST_WAVES * self._nodes)
        fits = max(self._list_block_seconds(), default=0.0) <= self._compute_wall_left_s()
        if not is_in_any_case and not (points and fits):
            return None
        return BlockTask(block, self._measure.trials.max, points)

    def seconds(self) -> float | None:
        """Return how long a block that begins now may take, or None without a budget."""
        if self._measure.budget is None:
            return None
        waves = max(LEAST_WAVES, ceil(self._measure.starts.min / self._nodes))
        return max(0.0, min(self._measure.budget / waves, self._compute_wall_left_s()))

    def _list_block_seconds(self) -> list[float]:
        return [line.seconds for line in self._lines.newest.values() if line.seconds is not None]

    def _compute_wall_left_s(self) -> float:
        return (self._measure.budget or 0.0) - (time.monotonic() - self._wall_began)


class TimedBlock:
    """A block on its node with as many rounds as its time allows, and at least one."""

    def __init__(self, task: BlockTask, seconds: float | None) -> None:
        self._most = task.rounds
        self._seconds = seconds
        self._wall_began = time.monotonic()
        self.task = task if seconds is None else replace(task, rounds=min(task.rounds, 1))
        self._counts: Counter[Point] = Counter()
        self._first_trial: float | None = None  # start time
        self._trials_done = 0
        self._configs_begun: set[Config] = set()
        self._config_count = len({point.config for point in task.points})

    def add(self, trial: TrialRecord) -> None:
        """Allow another round when a point has completed all rounds, and both the rest of this
        round and another one fit into the time.

        Configs that run one after the other share the time. Later configs get as many rounds as the
        first.
        """
        if trial.block != self.task.block:
            return
        self._configs_begun.add(trial.point.config)
        if trial.kind == "measured":
            if self._first_trial is None:
                self._first_trial = time.monotonic() - (trial.duration_s or 0.0)
            self._trials_done += 1
        if not trial.counts:
            return
        self._counts[trial.point] += 1
        done = self._counts[trial.point]
        if (
            self._seconds is None
            or self._first_trial is None
            or not self.task.rounds <= done < self._most
        ):
            return
        moment = time.monotonic()
        round_s = len(self.task.points) * (moment - self._first_trial) / self._trials_done
        share = len(self._configs_begun) / max(1, self._config_count)
        if moment - self._wall_began + 2 * round_s * share <= self._seconds * share:
            self.task = replace(self.task, rounds=done + 1)
