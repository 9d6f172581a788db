"""A group of a block: its configs are started, warmed up, and take turns until each has its trials; then all end.

It touches no study folder. It yields drafts, and whoever drives it stores them and updates `progress` before asking for
the next one: here that is `measure.loop`.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bitbench.measure.frozen_servers import Residents, TurnConditions
from bitbench.measure.machine.device_memory import find_devices
from bitbench.measure.machine.memory import MemoryWatch
from bitbench.measure.progress import Progress
from bitbench.measure.quality import QualityDraft, measure_config, new_draft, wants_noise_floor, with_failure
from bitbench.measure.run_context import RunContext
from bitbench.measure.trial import ReadyInstance, TrialDraft, new_record, now, run_trial, touch
from bitbench.measure.warm_up import wants_round
from bitbench.ports import InstanceFailed
from bitbench.records.quality import Condition
from bitbench.records.trial import NOT_THE_ENGINES, Failure, InstanceRecord, Outcome, TrialRecord
from bitbench.study.plan import Group, Member, Point
from bitbench.study.workload import Workload

# After these the instance cannot be trusted with another trial.
ENDS_THE_INSTANCE = frozenset({Outcome.CRASHED, Outcome.TIMEOUT, Outcome.OOM})

Draft = InstanceRecord | TrialDraft | QualityDraft
Present = tuple[Member, ReadyInstance]
Turn = tuple[ReadyInstance, Workload]
NewInstance = Callable[[], tuple[str, Path]]  # an id and a log file


def run_group(
    group: Group, run: RunContext, progress: Progress, new_instance: NewInstance
) -> Generator[Draft, None, None]:
    """Start, warm up, take turns, measure quality, end: all at once, or in shifts beside the one that stays."""
    with ExitStack() as stack:
        residents = stack.enter_context(_residents(group, run))
        servers = _Servers(group, run, progress, residents, new_instance)
        stays = yield from servers.start([group.stays] if group.stays else [], stack)
        for shift in group.shifts_of_members:
            if group.stays and not servers.left(stays):
                return  # what is left has nothing to be compared through: the schedule says how it goes on
            with ExitStack() as own:
                members = yield from servers.start(shift, own)
                yield from servers.take_turns(members, stays)
                yield from servers.measure_quality(members)
                for _, ready in members:
                    residents.leave(ready)
        yield from servers.measure_quality(stays)


def _residents(group: Group, run: RunContext) -> Residents:
    setups = {member.config: run.plan.study.engine(member.config.engine) for member in group.members}
    can_freeze = {config: run.engine_of(config).can_freeze(setup) for config, setup in setups.items()}
    return Residents(can_freeze, run.observer)


@dataclass(frozen=True)
class _Servers:
    """The instances of a group, and what is done with them."""

    group: Group
    run: RunContext
    progress: Progress
    residents: Residents
    new_instance: NewInstance

    def left(self, present: Sequence[Present]) -> list[Present]:
        return [(member, ready) for member, ready in present if ready.id in self.residents]

    def start(self, members: Sequence[Member], stack: ExitStack) -> Generator[Draft, None, list[Present]]:
        """Return those that came up, warm. They end with the stack."""
        present: list[Present] = []
        for member in members:
            ready = yield from self._start(member, stack)
            if ready is not None:
                self.residents.join(ready)
                yield from self._warm_up(member, ready)
                present.append((member, ready))
        return present

    def take_turns(self, members: Sequence[Present], stays: Sequence[Present]) -> Iterator[Draft]:
        """Every point that wants a trial gets one in each round, in a new order; what others spoiled is repeated.

        One that is alone has no rounds, unless it is measured again in a block that has: not beside the others of it.
        """
        number = self.progress.rounds_begun(self.group.block)
        in_rounds = len(self.group.members) > 1 or (number > 0 and self.progress.is_taken_up_again(self.group.block))
        while wanted := self._wanted(members, stays):
            for ready, workload in self._shuffled(wanted, number):
                while self._can(ready, workload):
                    with self.residents.turn(ready, lambda awake: touch(awake, self.run)) as turn:
                        draft = run_trial(ready, workload, "measured", self._index(ready, workload), self.run)
                    circumstances = _circumstances(turn, number if in_rounds else None)
                    draft = TrialDraft(draft.record.model_copy(update=circumstances), draft.requests)
                    self._leave_if_over(ready, draft)
                    yield draft
                    if draft.record.outcome not in NOT_THE_ENGINES:
                        break
            number += 1

    def measure_quality(self, present: Sequence[Present]) -> Iterator[Draft]:
        """After their speed: so that it can disturb nothing."""
        for member, ready in self.left(present):
            condition = self.progress.wanted_score(member.config, ready.id)
            if condition is not None:
                with self.residents.turn(ready):
                    yield self._quality(ready, condition)
                    engine = self.run.engine_of(ready.config)
                    if condition is Condition.ALONE and wants_noise_floor(self.run.plan, engine, ready.config):
                        yield self._quality(ready, Condition.TOGETHER)  # last, so that it can spoil nothing

    def _start(self, member: Member, stack: ExitStack) -> Generator[Draft, None, ReadyInstance | None]:
        """One after the other, so that the time to ready is each one's own. None where it did not come up."""
        instance_id, log_file = self.new_instance()
        started_at, started, config = now(), time.monotonic(), member.config
        instance = self.run.start(config, log_file, occasion=str(self.group.block))
        stack.callback(instance.stop)
        limits = self.run.plan.study.limits
        watch = stack.enter_context(MemoryWatch(instance.pid, limits.memory, instance.stop, find_devices()))
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
        yield record.model_copy(update={"ready_s": ready_s, "facts": instance.facts(), "memory": watch.read()})
        vocabulary = self.run.vocabulary_of(config)
        return ReadyInstance(
            instance_id, config, self.group.block, instance, endpoint, vocabulary, watch, self.group.purpose
        )

    def _never_ready(self, member: Member, record: InstanceRecord, failure: Failure) -> Iterator[Draft]:
        """An instance that did not come up is the result of each of its points."""
        words = {"outcome": failure.outcome, "cause": failure.cause, "log_lines": failure.log_lines}
        yield record.model_copy(update=words)
        for workload in member.workloads:
            point = Point(config=member.config, workload=workload.name)
            yield TrialDraft(
                new_record(
                    point,
                    kind="measured",
                    block=record.block,
                    index=len(self.progress.trials_of(point, record.block)),
                    instance_id=record.id,
                    failure=failure,
                    purpose=self.group.purpose,
                )
            )
        condition = self.progress.wanted_score(member.config, record.id)
        if condition is Condition.ALONE or (condition is not None and not member.workloads):
            draft = new_draft(member.config, record.id, record.started_at or now(), condition)
            yield QualityDraft(with_failure(draft, failure, 0.0))

    def _warm_up(self, member: Member, ready: ReadyInstance) -> Iterator[Draft]:
        """Once per workload, or until it is steady where the first requests may compile or tune something; a warm-up
        that fails is the result of its point."""
        until_steady = self.run.tunes_kernels or ready.instance.facts().was_running
        with self.residents.turn(ready):
            for workload in member.workloads:
                rounds: list[TrialRecord] = []
                while wants_round(workload, rounds, until_steady=until_steady):
                    index = self._index(ready, workload)
                    draft = run_trial(ready, workload, "warmup", index, self.run, warm_up_round=len(rounds))
                    yield draft
                    if self._leave_if_over(ready, draft):
                        return
                    if draft.record.kind != "warmup":
                        break
                    rounds.append(draft.record)

    def _wanted(self, members: Sequence[Present], stays: Sequence[Present]) -> list[Turn]:
        """One that stays has a turn wherever another has one."""
        wanted = self._wanting(members)
        asked = {workload.name for _, workload in wanted}
        beside = [
            (ready, workload)
            for member, ready in stays
            for workload in member.workloads
            if workload.name in asked and self._can(ready, workload)
        ]
        return [*wanted, *(beside or self._wanting(stays))]

    def _wanting(self, present: Sequence[Present]) -> list[Turn]:
        return [
            (ready, workload)
            for member, ready in self.left(present)
            for workload in member.workloads
            if self.progress.wants_trial(_point(ready, workload), ready.block)
        ]

    def _can(self, ready: ReadyInstance, workload: Workload) -> bool:
        return ready.id in self.residents and self.progress.accepts_trial(_point(ready, workload), ready.block)

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
        measured = measure_config(
            ready.endpoint,
            plan=run.plan,
            engine=run.engine_of(ready.config),
            kit=run.quality[run.plan.variant(ready.config.variant).model],
            draft=new_draft(ready.config, ready.id, now(), condition),
            on_step=lambda step: run.observer.quality_running(ready.config, step),
        )
        record = measured.record
        seen = None if record.outcome is Outcome.OK else Failure(outcome=record.outcome, cause=record.cause or "")
        failure = ready.explain(seen, "measured")
        return measured if failure is None else QualityDraft(with_failure(record, failure, record.duration_s))


def _point(ready: ReadyInstance, workload: Workload) -> Point:
    return Point(config=ready.config, workload=workload.name)


def _circumstances(turn: TurnConditions, number: int | None) -> dict[str, float | int | None]:
    """`number`: None where it took no turns."""
    return {
        "round": number,
        "probe_before_s": turn.probe_before_s,
        "probe_after_s": turn.probe_after_s,
        "residents": turn.residents,
        "idle_cores": turn.idle_cores,
    }
