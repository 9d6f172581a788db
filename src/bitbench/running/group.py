"""A group of a block: its configs are started, warmed up until steady, and take turns, one awake and the others
frozen, until each has its trials.

It touches no study folder. It yields drafts, and whoever drives it stores them and updates `progress` before asking
for the next one: here that is `measure.loop`.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from bitbench.machine.gpus import visible_gpus
from bitbench.machine.watches import MemoryWatch
from bitbench.ports import InstanceFailed
from bitbench.records.quality import Condition
from bitbench.records.trial import (
    NOT_THE_ENGINES,
    Failure,
    InstanceRecord,
    Outcome,
    TrialMetrics,
    TrialRecord,
)
from bitbench.running.progress import Progress
from bitbench.running.quality import (
    QualityDraft,
    failed_quality_record,
    fill_quality_draft,
    new_quality_record,
)
from bitbench.running.trial import (
    ReadyInstance,
    RunContext,
    TrialDraft,
    new_trial_record,
    now,
    run_trial,
    touch_before_trial,
)
from bitbench.study.plan import Config, Group, Member, Point
from bitbench.study.workload import Workload

AGREEMENT = 0.1  # of the shorter mean latency; rounds of a warm engine differ by a few percent
MOST_ROUNDS = 8
LIMIT_S = 60.0  # of all rounds of a workload together


def wants_warm_up_round(
    workload: Workload, rounds: Sequence[TrialRecord], *, until_steady: bool
) -> bool:
    """Whether this workload needs another round of warm-up. One that is the whole workload is long enough by itself.

    Where the first requests compile or tune kernels, one is not enough: SGLang on a GPU was seen to go from 1,187 to
    11,266 tok/s over five runs (sglang#4858). On CPUs the records show that one suffices (docs/measurement.md).
    """
    if not rounds:
        return True
    if not until_steady or workload.warm_up is workload or is_steady(rounds):
        return False
    return (
        len(rounds) < MOST_ROUNDS and sum(round_.duration_s or 0.0 for round_ in rounds) < LIMIT_S
    )


def is_steady(rounds: Sequence[TrialRecord]) -> bool:
    """Whether the last two rounds agree."""
    times = [round_.metrics.latency_s for round_ in rounds[-2:]]
    known = [time for time in times if time is not None]
    return len(known) == 2 and max(known) <= (1 + AGREEMENT) * min(known)


class Residents:
    """`can_freeze`: by config. An instance that is alone is left as it is, and is not frozen."""

    def __init__(self, can_freeze: Mapping[Config, bool]) -> None:
        self._can_freeze = can_freeze
        self._present: dict[str, ReadyInstance] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for ready in self._present.values():
            ready.instance.thaw()  # so that they can end by themselves

    def __contains__(self, instance_id: str) -> bool:
        return instance_id in self._present

    def freezes(self, config: Config) -> bool:
        """Whether it rests frozen between its turns."""
        return len(self._can_freeze) > 1 and self._can_freeze[config]

    def join(self, ready: ReadyInstance) -> None:
        self._present[ready.id] = ready

    def leave(self, ready: ReadyInstance) -> None:
        """It cannot be trusted any more: it is ended, and the others go on."""
        if self._present.pop(ready.id, None) is not None:
            ready.instance.stop()

    @contextmanager
    def turn(
        self, ready: ReadyInstance, touch: Callable[[ReadyInstance], None] | None = None
    ) -> Iterator[int]:
        """Yield how many others are in memory. `touch` wakes it up before it is measured: caches, clocks, the first
        request after a thaw."""
        others = len(self._present) - 1
        if len(self._can_freeze) == 1:
            yield others
            return
        ready.instance.thaw()
        if touch is not None:
            touch(ready)
        try:
            yield others
        finally:
            if self._can_freeze[ready.config]:
                ready.instance.freeze()


# After these the instance cannot be trusted with another trial.
ENDS_THE_INSTANCE = frozenset({Outcome.CRASHED, Outcome.TIMEOUT, Outcome.OOM})

Draft = InstanceRecord | TrialDraft | QualityDraft
Present = tuple[Member, ReadyInstance]
Turn = tuple[ReadyInstance, Workload]
NewInstance = Callable[[], tuple[str, Path]]  # an id and a log file


def run_group(
    group: Group, run: RunContext, progress: Progress, new_instance: NewInstance
) -> Generator[Draft, None, None]:
    """Start all members, warm them up, let them take turns, measure their quality, and end them."""
    with ExitStack() as stack:
        setups = {
            member.config: run.plan.study.engine(member.config.engine) for member in group.members
        }
        can_freeze = {
            config: run.engine_of(config).can_freeze(setup) for config, setup in setups.items()
        }
        residents = stack.enter_context(Residents(can_freeze))
        servers = _Servers(group, run, progress, residents, new_instance)
        present = yield from servers.start(stack)
        yield from servers.take_turns(present)
        yield from servers.measure_quality(present)


@dataclass(frozen=True)
class _Servers:
    """The instances of a group, and what is done with them."""

    group: Group
    run: RunContext
    progress: Progress
    residents: Residents
    new_instance: NewInstance
    warm: dict[tuple[str, str], TrialMetrics] = field(
        default_factory=dict
    )  # last warm-up, by instance and workload

    def start(self, stack: ExitStack) -> Generator[Draft, None, list[Present]]:
        """Return those that came up, warm. They end with the stack."""
        present: list[Present] = []
        for member in self.group.members:
            ready = yield from self._start(member, stack)
            if ready is not None:
                self.residents.join(ready)
                yield from self._warm_up(member, ready)
                present.append((member, ready))
        return present

    def take_turns(self, present: Sequence[Present]) -> Iterator[Draft]:
        """Every point that wants a trial gets one in each round, in a new order; what others spoiled is repeated.

        In its first turn of a block a config has a second trial right after the first, without freezing between them:
        `analysis.turns` compares the two.

        One that is alone has no rounds. In a block that has rounds it has some of its own, without other configs.
        """
        number = self.progress.rounds_begun(self.group.block)
        in_rounds = len(self.group.members) > 1 or number > 0
        while wanted := self._wanted(present):
            for ready, workload in self._shuffled(wanted, number):
                while self._can(ready, workload):
                    place = 0
                    with self.residents.turn(
                        ready, lambda awake: touch_before_trial(awake, self.run)
                    ) as others:
                        draft = self._trial(ready, workload)
                        if (
                            in_rounds
                            and draft.record.outcome is Outcome.OK
                            and self._wants_second(ready)
                        ):
                            yield _in_turn(draft, others, number, place)
                            place = 1
                            draft = self._trial(ready, workload)
                    draft = _in_turn(draft, others, number if in_rounds else None, place)
                    self._leave_if_over(ready, draft)
                    yield draft
                    if place or draft.record.outcome not in NOT_THE_ENGINES:
                        break
            number += 1

    def _wants_second(self, ready: ReadyInstance) -> bool:
        """In blocks of two rounds or more: with one it would take half of the time."""
        is_frozen = self.group.rounds > 1 and self.residents.freezes(ready.config)
        return is_frozen and self.progress.wants_second(ready.config, ready.block)

    def _trial(self, ready: ReadyInstance, workload: Workload) -> TrialDraft:
        point = _point(ready, workload)
        warm = self.warm.get((ready.id, workload.name))
        known = [*([warm] if warm else []), *self.progress.metrics_of(point, ready.block)]
        return run_trial(
            ready, workload, "measured", self._index(ready, workload), self.run, known=known
        )

    def measure_quality(self, present: Sequence[Present]) -> Iterator[Draft]:
        """After their speed: so that it can disturb nothing."""
        for member, ready in present:
            if ready.id not in self.residents:
                continue
            condition = self.progress.wanted_score(member.config, ready.id)
            if condition is not None:
                with self.residents.turn(ready):
                    yield self._quality(ready, condition)

    def _start(
        self, member: Member, stack: ExitStack
    ) -> Generator[Draft, None, ReadyInstance | None]:
        """One after the other, so that the time to ready is each one's own. None where it did not come up."""
        instance_id, log_file = self.new_instance()
        started_at, started, config = now(), time.monotonic(), member.config
        instance = self.run.start(config, log_file, occasion=str(self.group.block))
        stack.callback(instance.stop)
        limits = self.run.plan.study.limits
        gpus = visible_gpus() if self.run.on_device else ()
        watch = stack.enter_context(MemoryWatch(instance.pid, limits.memory, instance.stop, gpus))
        record = InstanceRecord(
            id=instance_id,
            config=config,
            block=self.group.block,
            started_at=started_at,
            outcome=Outcome.OK,
            log_file=f"logs/{log_file.name}",
        )
        try:
            endpoint = instance.wait_ready(limits.start)
        except InstanceFailed as failed:
            yield from self._never_ready(member, record, watch.failure or failed.failure)
            instance.stop()
            return None
        ready_s = time.monotonic() - started
        yield record.model_copy(
            update={"ready_s": ready_s, "facts": instance.facts(), "memory": watch.read()}
        )
        vocabulary = self.run.vocabulary_of(config)
        return ReadyInstance(
            instance_id, config, self.group.block, instance, endpoint, vocabulary, watch
        )

    def _never_ready(
        self, member: Member, record: InstanceRecord, failure: Failure
    ) -> Iterator[Draft]:
        """An instance that did not come up is the result of each of its points."""
        yield record.model_copy(update=dict(failure))
        for workload in member.workloads:
            point = Point(config=member.config, workload=workload.name)
            yield TrialDraft(
                new_trial_record(
                    point,
                    kind="measured",
                    block=record.block,
                    index=len(self.progress.trials_of(point, record.block)),
                    instance_id=record.id,
                    failure=failure,
                )
            )
        condition = self.progress.wanted_score(member.config, record.id)
        if condition is Condition.ALONE or (condition is not None and not member.workloads):
            draft = new_quality_record(
                member.config, record.id, record.started_at or now(), condition
            )
            yield QualityDraft(failed_quality_record(draft, failure, 0.0))

    def _warm_up(self, member: Member, ready: ReadyInstance) -> Iterator[Draft]:
        """Once per workload, or until it is steady where the first requests may compile or tune something; a warm-up
        that fails is the result of its point."""
        until_steady = self.run.on_device or ready.instance.facts().was_running
        with self.residents.turn(ready):
            for workload in member.workloads:
                rounds: list[TrialRecord] = []
                while wants_warm_up_round(workload, rounds, until_steady=until_steady):
                    index = self._index(ready, workload)
                    draft = run_trial(
                        ready, workload, "warmup", index, self.run, warm_up_round=len(rounds)
                    )
                    yield draft
                    if self._leave_if_over(ready, draft):
                        return
                    if draft.record.kind != "warmup":
                        break
                    rounds.append(draft.record)
                    self.warm[ready.id, workload.name] = draft.record.metrics

    def _wanted(self, present: Sequence[Present]) -> list[Turn]:
        """Those that want a trial, and the baseline wherever another has one."""
        here = [(member, ready) for member, ready in present if ready.id in self.residents]
        turns = [(ready, workload) for member, ready in here for workload in member.workloads]
        wanted = [turn for turn in turns if self._wants(*turn)]
        asked = {workload.name for ready, workload in wanted if ready.config != self.group.baseline}
        for ready, workload in turns:
            is_beside = ready.config == self.group.baseline and workload.name in asked
            if is_beside and not self._wants(ready, workload) and self._can(ready, workload):
                wanted.append((ready, workload))
        return wanted

    def _wants(self, ready: ReadyInstance, workload: Workload) -> bool:
        return self.progress.wants_trial(_point(ready, workload), ready.block)

    def _can(self, ready: ReadyInstance, workload: Workload) -> bool:
        return ready.id in self.residents and self.progress.accepts_trial(
            _point(ready, workload), ready.block
        )

    def _shuffled(self, wanted: list[Turn], number: int) -> Iterator[Turn]:
        """Workload by workload, so that the trials of one lie close together; configs in a new order each time."""
        random = Random(f"{self.run.plan.study.seed}/{self.group.block}/{number}")
        turns: dict[str, list[Turn]] = {}
        for turn in wanted:
            turns.setdefault(turn[1].name, []).append(turn)
        names = list(turns)
        random.shuffle(names)
        for name in names:
            random.shuffle(turns[name])
            yield from turns[name]

    def _index(self, ready: ReadyInstance, workload: Workload) -> int:
        """Of its next trial in the block."""
        return len(self.progress.trials_of(_point(ready, workload), ready.block))

    def _leave_if_over(self, ready: ReadyInstance, draft: TrialDraft) -> bool:
        """One that was disturbed may have lost its process by that, or nothing at all."""
        outcome = draft.record.outcome
        is_over = outcome in ENDS_THE_INSTANCE or (
            outcome is Outcome.DISTURBED and ready.instance.failure() is not None
        )
        if is_over:
            self.residents.leave(ready)
        return is_over

    def _quality(self, ready: ReadyInstance, condition: Condition) -> QualityDraft:
        run = self.run
        measured = fill_quality_draft(
            ready.endpoint,
            plan=run.plan,
            engine=run.engine_of(ready.config),
            kit=run.quality[run.plan.variant(ready.config.variant).model],
            draft=new_quality_record(ready.config, ready.id, now(), condition),
            on_step=lambda step: run.observer.quality_running(ready.config, step),
        )
        record = measured.record
        seen = (
            None
            if record.outcome is Outcome.OK
            else Failure(outcome=record.outcome, cause=record.cause or "")
        )
        failure = ready.explain(seen, "measured")
        return (
            measured
            if failure is None
            else QualityDraft(failed_quality_record(record, failure, record.duration_s))
        )


def _in_turn(draft: TrialDraft, others: int, round_: int | None, place: int) -> TrialDraft:
    circumstances = {"residents": others, "round": round_, "turn": place}
    return TrialDraft(draft.record.model_copy(update=circumstances), draft.rows)


def _point(ready: ReadyInstance, workload: Workload) -> Point:
    return Point(config=ready.config, workload=workload.name)
