"""Drives a study on several machines: gives them blocks, writes down what comes back, and alone decides what is next.

Only the driver writes. Each result is appended and synced before the next is asked for, so a study that was killed at
any moment goes on from its folder by the same command.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bitbench.features.fleet.channel import RunLost, RunRefused
from bitbench.features.fleet.machines import Ended, Fleet, Machine, RemoteRun
from bitbench.features.fleet.orders import BlockOrder, make_order
from bitbench.measure.group import Draft
from bitbench.measure.loop import record_draft
from bitbench.measure.quality import QualityDraft, new_draft, with_failure
from bitbench.measure.schedule import Schedule
from bitbench.measure.trial import TrialDraft, new_record, now
from bitbench.ports import Observer
from bitbench.records.folder import Writer
from bitbench.records.lock import Lock
from bitbench.records.trial import Failure, InstanceRecord, Outcome
from bitbench.study.plan import Config, Point
from bitbench.util.errors import StoreError


@dataclass
class UnderWay:
    """An order, and the number of its next result."""

    order: BlockOrder
    machine: Machine
    run: RemoteRun
    seq: int = 0
    results: int = 0


class StudyDriver:
    def __init__(
        self,
        lock: Lock,
        *,
        folder: str,
        writer: Writer,
        observer: Observer,
        fleet: Fleet,
        schedule: Schedule,
        on_change: Callable[[Sequence[UnderWay]], None] = lambda _: None,
    ) -> None:
        """`folder`: what file names in the study are relative to. `on_change`: told who works on what."""
        self._lock, self._folder = lock, folder
        self._writer, self._observer, self._fleet = writer, observer, fleet
        self._schedule, self._on_change = schedule, on_change
        self._under_way: list[UnderWay] = []
        self._orders = 0

    def run(self) -> None:
        try:
            while self._has_work():
                moved = [self._advance(work) for work in tuple(self._under_way)]
                self._on_change(self._under_way)
                if not any(moved):
                    self._fleet.wait()
        finally:
            for work in self._under_way:
                work.run.stop()
            self._under_way.clear()
            self._on_change(self._under_way)

    def _has_work(self) -> bool:
        """Gives it to machines that are free. False: everything is recorded."""
        busy = {work.machine.name for work in self._under_way}
        for machine in self._fleet.machines():
            if machine.name not in busy and (found := self._next_work(machine.name)) is not None:
                order = self._order(*found)
                self._under_way.append(UnderWay(order, machine, self._fleet.start(order, machine)))
        return bool(self._under_way) or self._next_work(None) is not None

    def _next_work(self, host: str | None) -> tuple[int, int] | None:
        """A block and its rounds, for a machine of this name or for whichever; a block that was begun stays where it
        is. Without rounds: only quality is left."""
        taken = {work.order.block for work in self._under_way if work.order.rounds}
        while (block := self._schedule.progress.next_block(taken)) is not None:
            begun_on = self._schedule.hosts.get(block)
            if begun_on is not None and not self._fleet.knows(begun_on):
                self._lose(block, begun_on, f"{begun_on}, where this block was begun, is not among the machines")
            elif host is None or begun_on in (None, host):
                return block, self._schedule.pace.rounds(block)
            else:
                taken.add(block)
        if any(work.order.rounds for work in self._under_way) or not self._left_to_score():
            return None
        return 0, 0

    def _order(self, block: int, rounds: int) -> BlockOrder:
        self._orders += 1
        return make_order(
            f"o{self._orders}",
            self._lock,
            self._folder,
            self._schedule.pace,
            self._schedule.trials,
            excused=self._schedule.excused,
            block=block,
            rounds=rounds,
            quality=self._left_to_score() if rounds else self._left_to_score()[:1],
        )

    def _left_to_score(self) -> tuple[Config, ...]:
        taken = {config for work in self._under_way for config in work.order.quality}
        wants = self._schedule.progress.wants_quality
        return tuple(config for config in self._lock.plan.quality if config not in taken and wants(config))

    def _advance(self, work: UnderWay) -> bool:
        """Whether anything came."""
        try:
            result = work.run.next(work.seq)
        except RunRefused as refusal:
            self._end(work)
            self._fleet.refused(work.machine, str(refusal), is_passing=refusal.is_passing)
            return True
        except RunLost as lost:
            self._end(work)
            self._fleet.lost(work.machine, str(lost))
            cause = f"The machine {work.machine.name} was lost: {lost}. Not the engine's doing; the block is repeated."
            self._lose(work.order.block if work.order.rounds else work.order.quality[0], work.machine.name, cause)
            return True
        if result is None:
            return False
        if isinstance(result, Ended):
            self._end(work)
            if work.results == 0 and self._schedule.progress.next_block() == work.order.block and work.order.rounds:
                raise StoreError(f"{work.order.name} left no trial; see the logs in {self._writer.folder.logs}")
            return True
        self._write(result)
        work.seq += 1
        work.results += not isinstance(result, InstanceRecord)
        return True

    def _end(self, work: UnderWay) -> None:
        work.run.stop()
        self._under_way.remove(work)

    def _write(self, draft: Draft) -> None:
        record_draft(draft, self._schedule, self._writer, self._observer)

    def _lose(self, block: int | Config, host: str, cause: str) -> None:
        """Written down; what the block had before is taken back by that. `block`: a config where only its quality
        was asked for."""
        self._observer.warn(cause)
        failure = Failure(outcome=Outcome.LOST, cause=cause)
        instance_id, log_file = self._writer.new_instance()
        if isinstance(block, Config):
            if self._schedule.progress.wants_quality(block):  # else it came before the machine was lost
                self._write(QualityDraft(with_failure(new_draft(block, instance_id, now()), failure, 0.0)))
            return
        members = self._schedule.progress.whole_block(block).members
        if not members:
            return  # it was complete
        member = members[0]
        self._writer.append_instance(
            InstanceRecord(
                id=instance_id,
                config=member.config,
                block=block,
                host=host,
                started_at=now(),
                outcome=Outcome.LOST,
                cause=cause,
                log_file=f"logs/{log_file.name}",
            )
        )
        self._schedule.reload()
        point = Point(config=member.config, workload=member.workloads[0].name)
        index = len(self._schedule.progress.trials_of(point, block))
        trial = new_record(point, kind="measured", block=block, index=index, instance_id=instance_id, failure=failure)
        self._write(TrialDraft(trial))
