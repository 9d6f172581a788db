"""A group of a block: its configs are started, warmed up, and take turns until each has its trials; then all end.

It touches no study folder. It yields drafts, and whoever drives it stores them and updates `progress` before asking for
the next one: here that is `measure.loop`.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from bitbench.measure.frozen_servers import Residents, TurnConditions
from bitbench.measure.machine.device_memory import find_devices
from bitbench.measure.machine.memory import MemoryWatch
from bitbench.measure.progress import Progress
from bitbench.measure.quality import QualityDraft, measure_config, new_draft, wants_noise_floor, with_failure
from bitbench.measure.run_context import Bench
from bitbench.measure.trial import ReadyInstance, TrialDraft, TrialKind, TrialRunner, new_record, now
from bitbench.ports import InstanceFailed, Observer
from bitbench.records.quality import Condition
from bitbench.records.trial import NOT_THE_ENGINES, Failure, InstanceRecord, Outcome
from bitbench.study.plan import Group, Member, Plan, Point
from bitbench.study.workload import Workload

# After these the instance cannot be trusted with another trial.
ENDS_THE_INSTANCE = frozenset({Outcome.CRASHED, Outcome.TIMEOUT, Outcome.OOM})

Draft = InstanceRecord | TrialDraft | QualityDraft
Present = tuple[Member, ReadyInstance]


@dataclass(frozen=True)
class GroupRunner:
    group: Group
    plan: Plan
    bench: Bench
    progress: Progress
    observer: Observer
    new_instance: Callable[[], tuple[str, Path]]  # an id and a log file

    def run(self) -> Generator[Draft, None, None]:
        for draft in self._drafts():
            if isinstance(draft, TrialDraft):
                yield replace(draft, record=draft.record.model_copy(update={"purpose": self.group.purpose}))
            else:
                yield draft

    def _drafts(self) -> Iterator[Draft]:
        with ExitStack() as stack:
            residents = stack.enter_context(self._residents())
            stays = self.group.stays
            kept = yield from self._enter([stays] if stays else [], stack, residents)
            for shift in self.group.shifts_of_members:
                if stays and not any(ready.id in residents for _, ready in kept):
                    return  # what is left has nothing to be compared through: the schedule says how it goes on
                with ExitStack() as own:
                    members = yield from self._enter(shift, own, residents)
                    yield from self._rounds(_Shift(tuple(members), tuple(kept)), residents)
                    yield from self._qualities(members, residents)
                    for _, ready in members:
                        residents.leave(ready)
            yield from self._qualities(kept, residents)

    def _enter(
        self, members: Sequence[Member], stack: ExitStack, residents: Residents
    ) -> Generator[Draft, None, list[Present]]:
        """Those that came up, warm."""
        present: list[Present] = []
        for member in members:
            ready = yield from self._start(member, stack)
            if ready is not None:
                residents.join(ready)
                yield from self._warm_up(member, ready, residents)
                present.append((member, ready))
        return present

    def _qualities(self, members: Sequence[Present], residents: Residents) -> Iterator[Draft]:
        for member, ready in members:
            if ready.id in residents and self.progress.wants_quality(member.config):
                engine = self.bench.engine_of(self.plan, ready.config)
                with residents.turn(ready):
                    yield self._quality(ready, Condition.ALONE)
                    if wants_noise_floor(self.plan, engine, ready.config):  # after it, so that it can spoil nothing
                        yield self._quality(ready, Condition.TOGETHER)

    def _residents(self) -> Residents:
        setups = {member.config: self.plan.study.engine(member.config.engine) for member in self.group.members}
        return Residents(
            {one: self.bench.engine_of(self.plan, one).can_freeze(setup) for one, setup in setups.items()},
            self.observer,
        )

    def _start(self, member: Member, stack: ExitStack) -> Generator[Draft, None, ReadyInstance | None]:
        """One after the other, so that the time to ready is each one's own. None where it did not come up."""
        instance_id, log_file = self.new_instance()
        started_at, started, config = now(), time.monotonic(), member.config
        instance = self.bench.start(self.plan, config, log_file, occasion=str(self.group.block))
        stack.callback(instance.stop)
        limits = self.plan.study.limits
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
        vocabulary = self.bench.vocabulary_of(self.plan, config)
        return ReadyInstance(instance_id, config, self.group.block, instance, endpoint, vocabulary, watch)

    def _never_ready(self, member: Member, record: InstanceRecord, failure: Failure) -> Iterator[Draft]:
        """An instance that did not come up is the result of each of its points."""
        words = {"outcome": failure.outcome, "cause": failure.cause, "log_lines": failure.log_lines}
        yield record.model_copy(update=words)
        for workload in member.workloads:
            point = Point(config=member.config, workload=workload.name)
            index = len(self.progress.trials_of(point, record.block))
            yield TrialDraft(
                new_record(
                    point, kind="measured", block=record.block, index=index, instance_id=record.id, failure=failure
                )
            )
        if self.progress.wants_quality(member.config):
            draft = new_draft(member.config, record.id, record.started_at or now())
            yield QualityDraft(with_failure(draft, failure, 0.0))

    def _warm_up(self, member: Member, ready: ReadyInstance, residents: Residents) -> Iterator[Draft]:
        """Once per workload; a warm-up that fails is the result of its point."""
        with residents.turn(ready):
            for workload in member.workloads:
                draft = self._trial(ready, workload, "warmup")
                yield draft
                if _is_over(ready, draft):
                    residents.leave(ready)
                    return

    def _rounds(self, shift: "_Shift", residents: Residents) -> Iterator[Draft]:
        """Every point that wants a trial gets one in each round, in a new order; what others spoiled is repeated.

        One that is alone has no rounds, unless it is measured again in a block that has: not beside the others of it.
        """
        number = self.progress.rounds_begun(self.group.block)
        in_rounds = len(self.group.members) > 1 or (number > 0 and self.progress.is_taken_up_again(self.group.block))
        while wanted := self._wanted(shift, residents):
            for ready, workload in self._shuffled(wanted, number):
                while self._can(ready, workload, residents):
                    draft = yield from self._turn(ready, workload, number if in_rounds else None, residents)
                    if draft.record.outcome not in NOT_THE_ENGINES:
                        break
            number += 1

    def _turn(
        self, ready: ReadyInstance, workload: Workload, number: int | None, residents: Residents
    ) -> Generator[Draft, None, TrialDraft]:
        with residents.turn(ready, self._touch) as turn:
            draft = self._trial(ready, workload, "measured")
        draft = TrialDraft(draft.record.model_copy(update=_circumstances(turn, number)), draft.requests)
        if _is_over(ready, draft):
            residents.leave(ready)
        yield draft
        return draft

    def _wanted(self, shift: "_Shift", residents: Residents) -> list[tuple[ReadyInstance, Workload]]:
        """One that stays has a turn wherever another has one."""
        found = self._wanting(shift.members, residents)
        asked = {workload.name for _, workload in found}
        beside = [
            (ready, workload)
            for member, ready in shift.stays
            for workload in member.workloads
            if workload.name in asked and self._can(ready, workload, residents)
        ]
        return [*found, *(beside or self._wanting(shift.stays, residents))]

    def _wanting(self, members: Sequence[Present], residents: Residents) -> list[tuple[ReadyInstance, Workload]]:
        return [
            (ready, workload)
            for member, ready in members
            for workload in member.workloads
            if ready.id in residents and self.progress.wants_trial(_point(ready, workload), ready.block)
        ]

    def _can(self, ready: ReadyInstance, workload: Workload, residents: Residents) -> bool:
        return ready.id in residents and self.progress.accepts_trial(_point(ready, workload), ready.block)

    def _shuffled(
        self, wanted: list[tuple[ReadyInstance, Workload]], number: int
    ) -> Iterator[tuple[ReadyInstance, Workload]]:
        """Workload by workload, so that the trials of one lie close together; configs in a new order each time."""
        random = Random(f"{self.plan.study.seed}/{self.group.block}/{number}")
        turns: dict[str, list[tuple[ReadyInstance, Workload]]] = {}
        for pair in wanted:
            turns.setdefault(pair[1].name, []).append(pair)
        names = list(turns)
        random.shuffle(names)
        for name in names:
            random.shuffle(turns[name])
            yield from turns[name]

    def _trial(self, ready: ReadyInstance, workload: Workload, kind: TrialKind) -> TrialDraft:
        index = len(self.progress.trials_of(_point(ready, workload), ready.block))
        return self._runner.run(ready, workload, kind, index)

    def _touch(self, ready: ReadyInstance) -> None:
        self._runner.touch(ready)

    @property
    def _runner(self) -> TrialRunner:
        return TrialRunner(self.plan.study, self.bench.load, self.bench.folder, self.observer)

    def _quality(self, ready: ReadyInstance, condition: Condition) -> QualityDraft:
        """After its speed: so that it can disturb nothing."""
        model = self.plan.variant(ready.config.variant).model
        measured = measure_config(
            ready.endpoint,
            plan=self.plan,
            engine=self.bench.engine_of(self.plan, ready.config),
            kit=self.bench.quality[model],
            draft=new_draft(ready.config, ready.id, now(), condition),
            on_step=lambda step: self.observer.quality_running(ready.config, step),
        )
        record = measured.record
        seen = None if record.outcome is Outcome.OK else Failure(outcome=record.outcome, cause=record.cause or "")
        failure = ready.explain(seen, "measured")
        return measured if failure is None else QualityDraft(with_failure(record, failure, record.duration_s))


def _is_over(ready: ReadyInstance, draft: TrialDraft) -> bool:
    """One that was disturbed may have lost its process by that, or nothing at all."""
    outcome = draft.record.outcome
    return outcome in ENDS_THE_INSTANCE or (outcome is Outcome.DISTURBED and ready.instance.failure() is not None)


@dataclass(frozen=True)
class _Shift:
    """Who is resident at a time: those that come for this shift, and the baseline beside all of them, if it stays."""

    members: tuple[Present, ...]
    stays: tuple[Present, ...]


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
