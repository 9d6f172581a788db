"""What to do next, as a pure function of the plan and of what has been recorded.

Nothing is remembered between runs but the records: a study that was killed goes on from them alone.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from random import Random
from typing import Protocol, TypeVar

from bitbench.records.quality import Condition, QualityRecord
from bitbench.records.trial import NOT_THE_ENGINES, InstanceRecord, Outcome, TrialMetrics, TrialRecord
from bitbench.study.plan import Config, Group, Member, Plan, Point

# Outcomes that the same inputs give again: the point is not tried in later blocks.
FINAL_OUTCOMES = frozenset({Outcome.UNSUPPORTED, Outcome.OOM})
# Others (a crash, a timeout) may be bad luck: tried once more, in another block with a new instance.
FAILED_BLOCKS_BEFORE_GIVING_UP = 2
# A trial in which our own client was late does not count and is repeated, so many times per block.
CLIENT_BOUND_REPEATS = 5
# One that was disturbed is repeated so many times per block, in a new instance where the old one is gone: whoever
# interferes twice will again.
DISTURBED_REPEATS = 1
# A block whose machine was lost is repeated so many times, elsewhere where there is another machine.
LOST_REPEATS = 3

T = TypeVar("T")
Recorded = TrialRecord | InstanceRecord | QualityRecord
Shifts = tuple[tuple[Config, ...], ...]


class Pace(Protocol):
    """How much is measured, decided from the blocks that are complete."""

    def rounds(self, block: int) -> int:
        """Trials of each point in this block; 0: the study ends before it."""

    def is_open(self, point: Point, block: int) -> bool:
        """Whether a question is left for which this point has to run in this block."""

    def basis(self, block: int) -> int:
        """How many of the first blocks have to be complete before the other questions about this one are asked."""

    def fit_together(self, configs: Iterable[Config]) -> bool:
        """Whether these may be resident at once and take turns; no more of them are looked at than it takes."""


def progress_excuses(records: Collection[Recorded]) -> frozenset[str]:
    """Ids of what the machine spoiled in earlier calls, and does not count against this one: it may be free by now.

    Not where others of the block ran one after the other and have results: a trial of now would be compared with those
    of another hour. Where configs take turns, it has rounds of its own, beside the baseline.
    """
    trials = [record for record in records if isinstance(record, TrialRecord) and record.kind == "measured"]
    visited: dict[tuple[str, int], set[Config]] = defaultdict(set)
    for trial in trials:
        if trial.outcome is Outcome.OK and trial.round is None:
            visited[trial.point.workload, trial.block].add(trial.point.config)
    kept = {trial.id for trial in trials if visited[trial.point.workload, trial.block] - {trial.point.config}}
    return frozenset(record.id for record in records if record.outcome in NOT_THE_ENGINES) - kept


class Progress:
    """What has been recorded so far, and what that leaves to do.

    A block that is complete stays so, and so does a config's part of it. What was found complete is therefore not
    looked at again: the answers are those of a fresh object with the same records, at a cost that does not grow with
    what is behind.
    """

    def __init__(
        self,
        plan: Plan,
        pace: Pace,
        baselines: Mapping[Config, Config] | None = None,
        first_block: int = 0,
        excused: Collection[str] = (),
    ) -> None:
        """`baselines`: of each config, the one through which it is compared with those that do not fit into memory
        beside it. `first_block`: those before it are somebody else's. `excused`: ids of records that have a number, but
        do not count against another trial (see the function of this name)."""
        self._plan = plan
        self._pace = pace
        self._baseline_of = baselines or {}
        self._baselines = tuple(dict.fromkeys(self._baseline_of.values()))
        self._excused = excused
        self._points: dict[Config, list[Point]] = defaultdict(list)
        for point in plan.points:
            self._points[point.config].append(point)
        self._trials: dict[Point, dict[int, list[TrialRecord]]] = defaultdict(lambda: defaultdict(list))
        self._quality: dict[Config, list[Outcome]] = defaultdict(list)
        self._scored_in: dict[Config, str] = {}  # the instance that told its quality
        self._restarted: set[Config] = set()  # scored in a second start, or tried
        self._scored = frozenset(plan.quality)
        self._workloads = {workload.name: workload for workload in plan.study.workloads}
        self._lost: Counter[int] = Counter()  # machines that went away, by block
        self._block = first_block  # the first that may not be complete
        self._waiting = self._shuffled(first_block)  # its configs, without the first ones that were found complete

    def add(self, records: Iterable[Recorded]) -> None:
        for record in records:
            is_excused = record.id in self._excused
            if isinstance(record, QualityRecord):
                self._add_quality(record, is_excused=is_excused)
            elif isinstance(record, TrialRecord) and record.kind == "measured":
                self._trials[record.point][record.block].append(record)
            elif isinstance(record, InstanceRecord) and record.outcome is Outcome.LOST and not is_excused:
                self._lost[record.block] += 1

    def _add_quality(self, record: QualityRecord, *, is_excused: bool) -> None:
        if record.condition is Condition.RESTARTED:
            self._restarted.add(record.config)
        elif record.condition is Condition.ALONE and not is_excused:
            self._quality[record.config].append(record.outcome)
            if record.outcome is Outcome.OK:
                self._scored_in[record.config] = record.instance_id

    def trials_of(self, point: Point, block: int) -> Sequence[TrialRecord]:
        return self._trials[point][block]

    def metrics_of(self, point: Point, block: int) -> list[TrialMetrics]:
        """Those of all attempts, by which a late client is judged; not of another machine, where the block was lost."""
        return [trial.metrics for trial in self._trials[point][block] if trial.outcome is not Outcome.LOST]

    def wants_second(self, config: Config, block: int) -> bool:
        """Whether no turn of this config had a second trial in this block."""
        own = chain.from_iterable(self._trials[point].get(block, ()) for point in self._points[config])
        return not any(trial.turn for trial in own)

    def wants_trial(self, point: Point, block: int) -> bool:
        """Whether this point needs another trial in this block. The second of a turn is beside those."""
        counted = sum(trial.outcome is Outcome.OK and trial.turn == 0 for trial in self._trials[point][block])
        if counted >= self._pace.rounds(block) or not self.accepts_trial(point, block):
            return False
        return self._pace.is_open(point, block)

    def accepts_trial(self, point: Point, block: int) -> bool:
        """Whether one more could have a result: none failed in this block, and it was not given up before."""
        tried = [trial for trial in self._trials[point][block] if trial.id not in self._excused]
        # The second trial of a turn is not repeated, so that its rejection counts against no other.
        outcomes = Counter(trial.outcome for trial in tried if trial.turn == 0 or trial.outcome not in NOT_THE_ENGINES)
        if outcomes.keys() - NOT_THE_ENGINES - {Outcome.OK}:
            return False
        if outcomes[Outcome.CLIENT_BOUND] > CLIENT_BOUND_REPEATS or outcomes[Outcome.DISTURBED] > DISTURBED_REPEATS:
            return False
        if self._lost[block] > LOST_REPEATS:
            return False
        return outcomes[Outcome.OK] > 0 or not self._given_up(point)

    def rounds_begun(self, block: int) -> int:
        """Those of other shifts and of an interrupted run included: a number stands for one round of the block."""
        rounds = [trial.round for blocks in self._trials.values() for trial in blocks.get(block, ())]
        return max((number + 1 for number in rounds if number is not None), default=0)

    def is_taken_up_again(self, block: int) -> bool:
        """By another call than the one that gave up a part of it."""
        return any(trial.id in self._excused for blocks in self._trials.values() for trial in blocks.get(block, ()))

    def wanted_score(self, config: Config, instance_id: str | None) -> Condition | None:
        """How this instance, or any new one, is to be asked about quality; None: not at all. The second start of a
        config that has its quality is asked for some of it again, once."""
        if self.wants_quality(config):
            return Condition.ALONE
        scored_in = self._scored_in.get(config)
        is_second = scored_in is not None and scored_in != instance_id and config not in self._restarted
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

    def next_block(self, under_way: Collection[int] = ()) -> int | None:
        """The first block with work that no machine has yet; None where there is none, or where blocks that are under
        way decide about it."""
        block, first_open = self._block, None
        while (first_open is None or self._pace.basis(block) <= first_open) and self._pace.rounds(block) > 0:
            if block not in under_way:
                if self.whole_block(block).members:
                    return block
            elif first_open is None:
                first_open = block
            block += 1
        return None

    def whole_block(self, block: int) -> Group:
        """All that is left of a block, in its order; how it is divided is decided by the memory of its machine."""
        members = (self._member(config, block) for config in self._shuffled(block))
        return Group(
            block=block,
            members=tuple(member for member in members if member.workloads),
            rounds=self._pace.rounds(block),
        )

    def next_group(self) -> Group | None:
        """The next configs to start: blocks in order, configs and workloads shuffled by the seed."""
        while (rounds := self._pace.rounds(self._block)) > 0:
            wanted = self._wanted()
            first, second = next(wanted, None), next(wanted, None)
            if first is None:
                self._block += 1
                self._waiting = self._shuffled(self._block)
                continue
            others = (member.config for member in wanted)
            left = (self._in_shifts(baseline, rounds) for baseline in self._baselines if self._has_left(baseline))
            group = next(filter(None, left), None)
            if group is None and second is not None:
                together = self._pace.fit_together(chain([first.config, second.config], others))
                if together:
                    group = Group(block=self._block, members=tuple(self._wanted()), rounds=rounds)
                elif (baseline := self._baseline_beside_first()) is not None:
                    group = self._in_shifts(baseline, rounds)
            alone = Group(block=self._block, members=(first,), rounds=rounds)
            return group or alone
        return self._quality_alone()

    def _baseline_beside_first(self) -> Config | None:
        """Of the first that waits and is none itself."""
        others = (member.config for member in self._wanted() if member.config not in self._baselines)
        comer = next(others, None)
        return None if comer is None else self._baseline_of.get(comer)

    def _in_shifts(self, baseline: Config, rounds: int) -> Group | None:
        """Those of its model that wait, beside the baseline; None where none waits, one does not fit beside it, or it
        cannot run."""
        waiting = (member for member in self._wanted() if self._baseline_of.get(member.config) == baseline)
        comers = (member for member in waiting if member.config != baseline)
        first = next(comers, None)  # of many, most need not be looked at to see that none fits
        if first is None or not self._pace.fit_together([baseline, first.config]):
            return None
        others = [first, *comers]
        link = self._link(baseline, others)
        if link is None:
            return None
        order = {config: place for place, config in enumerate(self._plan.configs)}
        in_order = sorted((member.config for member in others), key=order.__getitem__)
        shifts = shifts_beside(baseline, in_order, self._pace.fit_together)
        if shifts is None:
            return None
        mixed = tuple(
            tuple(self._mixed(shift, self._block, "shift")) for shift in self._mixed(shifts, self._block, "shifts")
        )
        return Group(block=self._block, members=(link, *others), rounds=rounds, shifts=mixed)

    def _link(self, baseline: Config, others: Sequence[Member]) -> Member | None:
        """The baseline as what they are compared through: on all of their workloads, whether or not it is open itself.

        None where it cannot run one of them.
        """
        names = {workload.name for member in others for workload in member.workloads}
        points = [point for point in self._points[baseline] if self.accepts_trial(point, self._block)]
        if not names <= {point.workload for point in points}:
            return None
        asked = [point for point in points if point.workload in names or self.wants_trial(point, self._block)]
        mixed = self._mixed(asked, self._block, baseline.name)
        return Member(config=baseline, workloads=tuple(self._workloads[point.workload] for point in mixed))

    def _has_left(self, baseline: Config) -> bool:
        """Whether it took turns in this block and has its rounds: what is left of the others after an interruption
        would have no counterpart without it."""
        if self._member(baseline, self._block).workloads:
            return False
        trials = chain.from_iterable(self._trials[point][self._block] for point in self._points[baseline])
        return any(trial.round is not None for trial in trials)

    def _quality_alone(self) -> Group | None:
        """One whose speed is not asked for, or is known already; then, for a noise floor, one that is unquantized and
        had no second start."""
        shuffled = self._shuffled(self._block)
        left = (config for config in shuffled if self.wants_quality(config))
        again = (config for config in shuffled if self._wants_second_start(config))
        first = next(chain(left, again), None)
        return None if first is None else Group(block=0, members=(Member(config=first, workloads=()),), rounds=0)

    def _wants_second_start(self, config: Config) -> bool:
        quality = self._plan.study.quality
        if quality is None or not quality.noise_floor or not self._plan.variant(config.variant).is_dense:
            return False
        return self.wanted_score(config, None) is Condition.RESTARTED

    def _wanted(self) -> Iterator[Member]:
        """Configs of the block that need trials, in its order."""
        while self._waiting and not self._member(self._waiting[0], self._block).workloads:
            self._waiting.popleft()
        members = (self._member(config, self._block) for config in self._waiting)
        yield from (member for member in members if member.workloads)

    def _member(self, config: Config, block: int) -> Member:
        workloads = tuple(
            self._workloads[point.workload]
            for point in self._mixed(self._points[config], block, config.name)
            if self.wants_trial(point, block)
        )
        return Member(config=config, workloads=workloads)

    def _shuffled(self, block: int) -> deque[Config]:
        return deque(self._mixed(self._plan.configs, block, "configs"))

    def _mixed(self, items: Sequence[T], block: int, salt: str) -> list[T]:
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


def shifts_beside(baseline: Config, others: Sequence[Config], fit: Callable[[Sequence[Config]], bool]) -> Shifts | None:
    """Who comes together of configs that do not fit into memory at once. Each shift fits beside the baseline; they are
    filled in the order given, so that the same configs meet in every block.

    None where one of them does not fit beside it: shifts and visits in one block would vary differently.
    """
    shifts: list[list[Config]] = []
    for config in others:
        if not fit([baseline, config]):
            return None
        room = next((shift for shift in shifts if fit([baseline, *shift, config])), None)
        if room is None:
            shifts.append([config])
        else:
            room.append(config)
    return tuple(map(tuple, shifts))
