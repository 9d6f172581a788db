"""What has been recorded of a study, and what that leaves to do of a block."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from bitbench.analysis.ranking import baselines_of
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

# Outcomes that the same inputs give again: the point is not tried in later blocks.
FINAL_OUTCOMES = frozenset({Outcome.UNSUPPORTED, Outcome.OOM})
# Others (a crash, a timeout) may be bad luck: tried once more, in another block with a new instance.
FAILED_BLOCKS_BEFORE_GIVING_UP = 2
# A trial in which our own client was late does not count and is repeated, so many times per block and call.
CLIENT_BOUND_REPEATS = 5
# One that was disturbed is repeated so many times per block and call, in a new instance where the old one is gone:
# whoever interferes twice will again.
DISTURBED_REPEATS = 1
# A block whose machine was lost is repeated so many times, elsewhere where there is another machine.
LOST_REPEATS = 3

T = TypeVar("T")
Recorded = TrialRecord | InstanceRecord | QualityRecord


@dataclass(frozen=True)
class BlockTask:
    """What one block measures: so many rounds of these points."""

    block: int
    rounds: int
    points: frozenset[Point]


def repeatable_rejections(records: Collection[Recorded]) -> frozenset[str]:
    """Ids of what the machine spoiled in earlier calls: the machine may be free by now, so these are tried again.

    Not where others of the block ran one after the other and have results: a trial of now would be compared with those
    of another hour. Where configs take turns, it has rounds of its own, beside the baseline.
    """
    trials = [
        record
        for record in records
        if isinstance(record, TrialRecord) and record.kind == "measured"
    ]
    visited: dict[tuple[str, int], set[Config]] = defaultdict(set)
    for trial in trials:
        if trial.outcome is Outcome.OK and trial.round is None:
            visited[trial.point.workload, trial.block].add(trial.point.config)
    kept = {
        trial.id
        for trial in trials
        if visited[trial.point.workload, trial.block] - {trial.point.config}
    }
    return frozenset(record.id for record in records if record.outcome in NOT_THE_ENGINES) - kept


class Progress:
    """Answers what a block still lacks, from the records and what was decided about the block."""

    def __init__(self, plan: Plan, repeatable: Collection[str] = ()) -> None:
        """`repeatable`: ids of records that do not count as attempts (see `repeatable_rejections`)."""
        self._plan = plan
        self._configs = plan.configs
        self._repeatable = repeatable
        self._baseline_of = baselines_of(plan)
        self._points: dict[Config, list[Point]] = defaultdict(list)
        for point in plan.points:
            self._points[point.config].append(point)
        self._trials: dict[Point, dict[int, list[TrialRecord]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._quality: dict[Config, list[Outcome]] = defaultdict(list)
        self._scored_in: dict[Config, str] = {}  # the instance that told its quality
        self._restarted: set[Config] = set()  # scored in a second start, or tried
        self._scored = frozenset(plan.quality)
        self._workloads = {workload.name: workload for workload in plan.study.workloads}
        self._lost: Counter[int] = Counter()  # machines that went away, by block
        self._tasks: dict[int, BlockTask] = {}

    def begin(self, task: BlockTask) -> None:
        """Take note of what a block measures, or of its new number of rounds."""
        self._tasks[task.block] = task

    def task(self, block: int) -> BlockTask:
        return self._tasks[block]

    def add(self, records: Iterable[Recorded]) -> None:
        for record in records:
            is_repeatable = record.id in self._repeatable
            if isinstance(record, QualityRecord):
                self._add_quality(record, is_repeatable=is_repeatable)
            elif isinstance(record, TrialRecord) and record.kind == "measured":
                self._trials[record.point][record.block].append(record)
            elif (
                isinstance(record, InstanceRecord)
                and record.outcome is Outcome.LOST
                and not is_repeatable
            ):
                self._lost[record.block] += 1

    def _add_quality(self, record: QualityRecord, *, is_repeatable: bool) -> None:
        if record.condition is Condition.RESTARTED:
            self._restarted.add(record.config)
        elif record.condition is Condition.ALONE and not is_repeatable:
            self._quality[record.config].append(record.outcome)
            if record.outcome is Outcome.OK:
                self._scored_in[record.config] = record.instance_id

    def trials_of(self, point: Point, block: int) -> Sequence[TrialRecord]:
        return self._trials[point][block]

    def metrics_of(self, point: Point, block: int) -> list[TrialMetrics]:
        """Those of all attempts, by which a late client is judged; not of another machine, where the block was lost."""
        return [
            trial.metrics
            for trial in self._trials[point][block]
            if trial.outcome is not Outcome.LOST
        ]

    def wants_second(self, config: Config, block: int) -> bool:
        """Whether no turn of this config had a second trial in this block."""
        return not any(
            trial.turn for point in self._points[config] for trial in self._trials[point][block]
        )

    def rounds_of(self, point: Point, block: int) -> int:
        """Return how many of its trials count. The second of a turn is beside those."""
        return sum(
            trial.outcome is Outcome.OK and trial.turn == 0 for trial in self._trials[point][block]
        )

    def wants_trial(self, point: Point, block: int) -> bool:
        """Whether this point needs another trial in this block."""
        task = self._tasks[block]
        if point not in task.points or self.rounds_of(point, block) >= task.rounds:
            return False
        return self.accepts_trial(point, block)

    def accepts_trial(self, point: Point, block: int) -> bool:
        """Whether one more could have a result: none failed in this block, and it was not given up before."""
        tried = [trial for trial in self._trials[point][block] if trial.id not in self._repeatable]
        # The second trial of a turn is not repeated, so that its rejection counts against no other.
        outcomes = Counter(
            trial.outcome
            for trial in tried
            if trial.turn == 0 or trial.outcome not in NOT_THE_ENGINES
        )
        if outcomes.keys() - NOT_THE_ENGINES - {Outcome.OK}:
            return False
        if (
            outcomes[Outcome.CLIENT_BOUND] > CLIENT_BOUND_REPEATS
            or outcomes[Outcome.DISTURBED] > DISTURBED_REPEATS
        ):
            return False
        if self._lost[block] > LOST_REPEATS:
            return False
        return outcomes[Outcome.OK] > 0 or not self._given_up(point)

    def rounds_begun(self, block: int) -> int:
        """Those of other chunks and of an interrupted run included: a number stands for one round of the block."""
        rounds = [trial.round for blocks in self._trials.values() for trial in blocks[block]]
        return max((number + 1 for number in rounds if number is not None), default=0)

    def is_round_complete(self, block: int, rounds: int) -> bool:
        """Return whether all points have so many rounds that can have a trial, and one more needs no start."""
        last_rounds: set[int | None] = set()
        configs: set[Config] = set()
        for point in self._tasks[block].points:
            if self.rounds_of(point, block) >= rounds:
                last_rounds.add(self._trials[point][block][-1].round)
                configs.add(point.config)
            elif self.accepts_trial(point, block):
                return False
        return len(last_rounds) == 1 and (None not in last_rounds or len(configs) == 1)

    def wanted_score(self, config: Config, instance_id: str | None) -> Condition | None:
        """How this instance, or any new one, is to be asked about quality; None: not at all. The second start of a
        config that has its quality is asked for some of it again, once."""
        if self.wants_quality(config):
            return Condition.ALONE
        scored_in = self._scored_in.get(config)
        is_second = (
            scored_in is not None and scored_in != instance_id and config not in self._restarted
        )
        return Condition.RESTARTED if is_second else None

    def wants_quality(self, config: Config) -> bool:
        """Return whether nothing says it yet. A failure that may be bad luck is tried again, in another instance."""
        if config not in self._scored:
            return False
        outcomes = self._quality[config]
        if Outcome.OK in outcomes or FINAL_OUTCOMES & set(outcomes):
            return False
        disturbed, lost = outcomes.count(Outcome.DISTURBED), outcomes.count(Outcome.LOST)
        if disturbed > DISTURBED_REPEATS or lost > LOST_REPEATS:
            return False
        return len(outcomes) - disturbed - lost < FAILED_BLOCKS_BEFORE_GIVING_UP

    def configs_left(self, block: int) -> list[Config]:
        """Return the configs that lack trials in this block, in its order."""
        return [member.config for member in self._members(block)]

    def next_group(self, block: int, residence: Residence) -> Group | None:
        """Return the configs of a chunk that lack trials, beside their baseline; None where the block is complete."""
        wanted = {member.config: member for member in self._members(block)}
        chunks = residence.chunks(self._tasks[block].points)
        for chunk in self._shuffled(chunks, block, "chunks"):
            if not wanted.keys().isdisjoint(chunk):
                members = [member for config, member in wanted.items() if config in chunk]
                return self._group(block, chunk, members)
        return None

    def _group(self, block: int, chunk: Chunk, members: list[Member]) -> Group:
        """Add the baseline where others of its chunk have rounds left, since they are compared through it."""
        baseline = self._baseline_of.get(members[0].config)
        if len(chunk) == 1 or baseline not in chunk:
            baseline = None
        elif all(member.config != baseline for member in members):
            asked = {workload.name for member in members for workload in member.workloads}
            points = [point for point in self._points[baseline] if point.workload in asked]
            beside = self._member(
                baseline, block, [point for point in points if self.accepts_trial(point, block)]
            )
            members = [*members, beside] if beside.workloads else members
        return Group(
            block=block, members=tuple(members), rounds=self._tasks[block].rounds, baseline=baseline
        )

    def next_quality(self) -> Group | None:
        """Return one config whose speed is not asked for, or is known already; then, for a noise floor, one that is
        unquantized and had no second start."""
        shuffled = self._shuffled(self._configs, 0, "configs")
        left = [config for config in shuffled if self.wants_quality(config)]
        again = [config for config in shuffled if self._wants_second_start(config)]
        for config in (*left, *again):
            return Group(block=0, members=(Member(config=config, workloads=()),), rounds=0)
        return None

    def _wants_second_start(self, config: Config) -> bool:
        quality = self._plan.study.quality
        if (
            quality is None
            or not quality.noise_floor
            or not self._plan.variant(config.variant).is_dense
        ):
            return False
        return self.wanted_score(config, None) is Condition.RESTARTED

    def _members(self, block: int) -> list[Member]:
        """Return the configs that lack trials in this block, each with its workloads in the order of the block."""
        found: list[Member] = []
        for config in self._shuffled(self._configs, block, "configs"):
            wanted = [point for point in self._points[config] if self.wants_trial(point, block)]
            if wanted:
                found.append(self._member(config, block, wanted))
        return found

    def _member(self, config: Config, block: int, points: Sequence[Point]) -> Member:
        workloads: list[Workload] = []
        for point in self._shuffled(self._points[config], block, config.name):
            if point in points:
                workloads.append(self._workloads[point.workload])
        return Member(config=config, workloads=tuple(workloads))

    def _shuffled(self, items: Collection[T], block: int, salt: str) -> list[T]:
        shuffled = list(items)
        Random(f"{self._plan.study.seed}/{block}/{salt}").shuffle(shuffled)
        return shuffled

    def _given_up(self, point: Point) -> bool:
        failed_blocks = 0
        for trials in self._trials[point].values():
            outcomes = {trial.outcome for trial in trials} - {Outcome.OK, *NOT_THE_ENGINES}
            if outcomes & FINAL_OUTCOMES:
                return True
            failed_blocks += bool(outcomes)
        return failed_blocks >= FAILED_BLOCKS_BEFORE_GIVING_UP
