"""The recorded results of a study, and the trials and scores that they leave to do."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from bitbench.analysis.ranking import collect_baselines
from bitbench.records.quality import Condition, QualityRecord
from bitbench.records.trial import (
    NOT_THE_ENGINES,
    InstanceRecord,
    Outcome,
    TrialMetrics,
    TrialRecord,
)
from bitbench.running.residence import Chunk, Residence
from bitbench.study.plan import Config, Group, Member, Plan, Point
from bitbench.study.workload import Workload

# The same inputs give these outcomes again, so later blocks do not retry the point.
FINAL_OUTCOMES = frozenset({Outcome.UNSUPPORTED, Outcome.OOM})
# Other failures (a crash, a timeout) may be bad luck. A later block retries them in a new instance.
FAILED_BLOCKS_BEFORE_GIVING_UP = 2
# Repeats per block and call of a trial in which our own client was late.
CLIENT_BOUND_REPEATS = 5
# Repeats per block and call of a disturbed trial, in a new instance if the old one is gone. A
# source that disturbs two attempts will disturb the next.
DISTURBED_REPEATS = 1
# Repeats of a block whose machine was lost, on another machine if there is one.
LOST_REPEATS = 3

T = TypeVar("T")
Recorded = TrialRecord | InstanceRecord | QualityRecord


@dataclass(frozen=True)
class BlockTask:
    """The points that one block measures, and in how many rounds."""

    block: int
    rounds: int
    points: frozenset[Point]


def list_repeatable_rejections(records: Collection[Recorded]) -> frozenset[str]:
    """Return the ids of records that the machine spoiled in earlier calls, to be tried again.

    The machine may be free by now. A trial is not repeated if another config of its block ran
    without turns and has a result: the two would be hours apart. Configs that take turns are
    repeated, because they get additional rounds with their baseline.
    """
    trials: list[TrialRecord] = []
    measured_alone: dict[tuple[str, int], set[Config]] = defaultdict(set)
    for record in records:
        if isinstance(record, TrialRecord) and record.kind == "measured":
            trials.append(record)
            if record.outcome is Outcome.OK and record.round is None:
                measured_alone[record.point.workload, record.block].add(record.point.config)
    final: set[str] = set()
    for trial in trials:
        if measured_alone[trial.point.workload, trial.block] - {trial.point.config}:
            final.add(trial.id)
    return frozenset(record.id for record in records if record.outcome in NOT_THE_ENGINES) - final


class Progress:
    """The records and decisions of a study. It answers what a block still lacks."""

    def __init__(self, plan: Plan, repeatable: Collection[str] = ()) -> None:
        """`repeatable` has ids of records that do not count (see `list_repeatable_rejections`)."""
        self._plan = plan
        self._configs = plan.configs
        self._repeatable = repeatable
        self._baseline_of = collect_baselines(plan)
        self._points: dict[Config, list[Point]] = defaultdict(list)
        for point in plan.points:
            self._points[point.config].append(point)
        self._trials: dict[Point, dict[int, list[TrialRecord]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._quality: dict[Config, list[Outcome]] = defaultdict(list)
        self._scored_in: dict[Config, str] = {}  # the instance whose quality was scored
        self._restarted: set[Config] = set()  # configs whose second start was scored or failed
        self._scored = frozenset(plan.quality)
        self._workloads = {workload.name: workload for workload in plan.study.workloads}
        self._lost: Counter[int] = Counter()  # number of lost machines, by block
        self._tasks: dict[int, BlockTask] = {}

    def begin(self, task: BlockTask) -> None:
        """Register what a block measures, or its new number of rounds."""
        self._tasks[task.block] = task

    def task(self, block: int) -> BlockTask:
        return self._tasks[block]

    def add(self, records: Iterable[Recorded]) -> None:
        """Count these records."""
        for record in records:
            is_repeatable = record.id in self._repeatable
            if isinstance(record, QualityRecord):
                self._add_quality(record, is_repeatable=is_repeatable)
            elif isinstance(record, TrialRecord) and record.kind == "measured":
                self._trials[record.point][record.block].append(record)
            elif isinstance(record, InstanceRecord) and record.outcome is Outcome.LOST:
                self._lost[record.block] += not is_repeatable

    def _add_quality(self, record: QualityRecord, *, is_repeatable: bool) -> None:
        if record.condition is Condition.RESTARTED:
            self._restarted.add(record.config)
        elif record.condition is Condition.ALONE and not is_repeatable:
            self._quality[record.config].append(record.outcome)
            if record.outcome is Outcome.OK:
                self._scored_in[record.config] = record.instance_id

    def get_trials(self, point: Point, block: int) -> Sequence[TrialRecord]:
        return self._trials[point][block]

    def list_metrics(self, point: Point, block: int) -> list[TrialMetrics]:
        """Return the metrics of all attempts at a point, for the verdict on a late client.

        Attempts on a machine that was lost are left out.
        """
        trials = self._trials[point][block]
        return [trial.metrics for trial in trials if trial.outcome is not Outcome.LOST]

    def should_run_second(self, config: Config, block: int) -> bool:
        """Return True if no turn of this config had a second trial in this block."""
        for point in self._points[config]:
            if any(trial.turn for trial in self._trials[point][block]):
                return False
        return True

    def count_rounds(self, point: Point, block: int) -> int:
        """Return how many trials of a point count. The second trial of a turn does not."""
        count = 0
        for trial in self._trials[point][block]:
            count += trial.outcome is Outcome.OK and trial.turn == 0
        return count

    def is_trial_due(self, point: Point, block: int) -> bool:
        """Return True if this point needs another trial in this block."""
        task = self._tasks[block]
        if point not in task.points or self.count_rounds(point, block) >= task.rounds:
            return False
        return self.is_trial_possible(point, block)

    def is_trial_possible(self, point: Point, block: int) -> bool:
        """Return True if another trial could have a result.

        It could not if a trial failed in this block or the point was given up before.
        """
        outcomes: Counter[Outcome] = Counter()
        for trial in self._trials[point][block]:
            # The second trial of a turn is not repeated, so its rejection does not count.
            is_second_rejected = trial.turn != 0 and trial.outcome in NOT_THE_ENGINES
            if trial.id not in self._repeatable and not is_second_rejected:
                outcomes[trial.outcome] += 1
        if outcomes.keys() - NOT_THE_ENGINES - {Outcome.OK}:
            return False
        if outcomes[Outcome.CLIENT_BOUND] > CLIENT_BOUND_REPEATS:
            return False
        if outcomes[Outcome.DISTURBED] > DISTURBED_REPEATS or self._lost[block] > LOST_REPEATS:
            return False
        return outcomes[Outcome.OK] > 0 or not self._is_given_up(point)

    def count_begun_rounds(self, block: int) -> int:
        """Return how many rounds of a block have begun, in all of its chunks and all runs."""
        begun = 0
        for trials_by_block in self._trials.values():
            for trial in trials_by_block[block]:
                if trial.round is not None:
                    begun = max(begun, trial.round + 1)
        return begun

    def is_round_complete(self, block: int, rounds: int) -> bool:
        """Return True if all points that accept trials have this many rounds.

        It is False if another round would need a launch.
        """
        last_rounds: set[int | None] = set()
        configs: set[Config] = set()
        for point in self._tasks[block].points:
            if self.count_rounds(point, block) >= rounds:
                last_rounds.add(self._trials[point][block][-1].round)
                configs.add(point.config)
            elif self.is_trial_possible(point, block):
                return False
        return len(last_rounds) == 1 and (None not in last_rounds or len(configs) == 1)

    def find_score_condition(self, config: Config, instance_id: str | None) -> Condition | None:
        """Return how to score the quality in this instance, or in any new one, or None.

        The second instance of a config that has a score repeats a part of it, once.
        """
        if self.is_quality_due(config):
            return Condition.ALONE
        scored_in = self._scored_in.get(config)
        if scored_in is None or scored_in == instance_id or config in self._restarted:
            return None
        return Condition.RESTARTED

    def is_quality_due(self, config: Config) -> bool:
        """Return True if the quality of this config is still to be scored.

        Another instance retries a failure that may be bad luck.
        """
        if config not in self._scored:
            return False
        outcomes = self._quality[config]
        if Outcome.OK in outcomes or FINAL_OUTCOMES & set(outcomes):
            return False
        disturbed = outcomes.count(Outcome.DISTURBED)
        lost = outcomes.count(Outcome.LOST)
        if disturbed > DISTURBED_REPEATS or lost > LOST_REPEATS:
            return False
        return len(outcomes) - disturbed - lost < FAILED_BLOCKS_BEFORE_GIVING_UP

    def list_incomplete_configs(self, block: int) -> list[Config]:
        """Return the configs that lack trials, in the order of the block."""
        return [member.config for member in self._members(block)]

    def next_group(self, block: int, residence: Residence) -> Group | None:
        """Return the configs of a chunk that lack trials, with their baseline.

        Return None if the block is complete.
        """
        members = {member.config: member for member in self._members(block)}
        chunks = residence.chunks(self._tasks[block].points)
        for chunk in self._shuffle_by_seed(chunks, block, "chunks"):
            if not members.keys().isdisjoint(chunk):
                present = [member for config, member in members.items() if config in chunk]
                return self._group(block, chunk, present)
        return None

    def _group(self, block: int, chunk: Chunk, members: list[Member]) -> Group:
        """Return the group of these members, with the baseline that they are compared through."""
        baseline = self._baseline_of.get(members[0].config)
        if len(chunk) == 1 or baseline not in chunk:
            baseline = None
        elif all(member.config != baseline for member in members):
            baseline_member = self._find_baseline_member(baseline, block, members)
            if baseline_member is not None:
                members = [*members, baseline_member]
        return Group(
            block=block, members=tuple(members), rounds=self._tasks[block].rounds, baseline=baseline
        )

    def _find_baseline_member(
        self, baseline: Config, block: int, members: list[Member]
    ) -> Member | None:
        """Return the baseline with the workloads of the others, or None if it accepts no trials."""
        compared: set[str] = set()
        for member in members:
            compared.update(workload.name for workload in member.workloads)
        points: list[Point] = []
        for point in self._points[baseline]:
            if point.workload in compared and self.is_trial_possible(point, block):
                points.append(point)
        return self._make_member(baseline, block, points) if points else None

    def find_next_quality(self) -> Group | None:
        """Return the next config to score without trials, or None.

        First come configs that lack a score. Then come second starts of unquantized configs, for
        the noise floor.
        """
        shuffled = self._shuffle_by_seed(self._configs, 0, "configs")
        for needs_start in (self.is_quality_due, self._is_second_start_due):
            for config in shuffled:
                if needs_start(config):
                    member = Member(config=config, workloads=())
                    return Group(block=0, members=(member,), rounds=0)
        return None

    def _is_second_start_due(self, config: Config) -> bool:
        quality = self._plan.study.quality
        if quality is None or not quality.noise_floor:
            return False
        is_dense = self._plan.variant(config.variant).is_dense
        return is_dense and self.find_score_condition(config, None) is Condition.RESTARTED

    def _members(self, block: int) -> list[Member]:
        """Return the configs that lack trials, with their workloads, in the order of the block."""
        members: list[Member] = []
        for config in self._shuffle_by_seed(self._configs, block, "configs"):
            points = [point for point in self._points[config] if self.is_trial_due(point, block)]
            if points:
                members.append(self._make_member(config, block, points))
        return members

    def _make_member(self, config: Config, block: int, points: Sequence[Point]) -> Member:
        workloads: list[Workload] = []
        for point in self._shuffle_by_seed(self._points[config], block, config.name):
            if point in points:
                workloads.append(self._workloads[point.workload])
        return Member(config=config, workloads=tuple(workloads))

    def _shuffle_by_seed(self, items: Collection[T], block: int, salt: str) -> list[T]:
        shuffled = list(items)
        Random(f"{self._plan.study.seed}/{block}/{salt}").shuffle(shuffled)
        return shuffled

    def _is_given_up(self, point: Point) -> bool:
        """Return True if a failure is final, or too many blocks failed."""
        failed_blocks = 0
        for trials in self._trials[point].values():
            outcomes = {trial.outcome for trial in trials} - {Outcome.OK, *NOT_THE_ENGINES}
            if outcomes & FINAL_OUTCOMES:
                return True
            failed_blocks += bool(outcomes)
        return failed_blocks >= FAILED_BLOCKS_BEFORE_GIVING_UP
