"""`bitbench run --on`: drives a study on several machines, writes down what comes back, alone decides what is next,
and says who works on what.

Only the driver writes. Each result is appended and synced before the next is asked for, so a study that was killed at
any moment goes on from its folder by the same command.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bitbench.engines.registry import registered_engines_of
from bitbench.features.fleet.channel import Roster, RunLost, RunRefused
from bitbench.features.fleet.computing import FLEET_FORMAT, FleetState, MachineState
from bitbench.features.fleet.machines import Ended, Fleet, Machine, RemoteRun
from bitbench.features.fleet.orders import BlockOrder, make_order
from bitbench.features.fleet.roster import roster_of
from bitbench.measure.group import Draft
from bitbench.measure.loop import Schedule, record_loop_result
from bitbench.measure.offers import Executor, LogObserver
from bitbench.measure.quality import QualityDraft, failed_quality_record, new_quality_record
from bitbench.measure.runner import StudyRun
from bitbench.measure.trial import TrialDraft, new_trial_record, now
from bitbench.ports import Engine, Observer
from bitbench.records.folder import StudyFolder, Writer
from bitbench.records.lock import HostFacts, Lock
from bitbench.records.strict_reader import read_record_file
from bitbench.records.trial import Failure, InstanceRecord, Outcome
from bitbench.study.plan import Config, Plan, Point
from bitbench.util.errors import NotComparableError, StoreError, UsageError
from bitbench.util.files import SafeFolder
from bitbench.util.units import show_bytes


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
        record_loop_result(draft, self._schedule, self._writer, self._observer)

    def _lose(self, block: int | Config, host: str, cause: str) -> None:
        """Written down; what the block had before is taken back by that. `block`: a config where only its quality
        was asked for."""
        self._observer.warn(cause)
        failure = Failure(outcome=Outcome.LOST, cause=cause)
        instance_id, log_file = self._writer.new_instance()
        if isinstance(block, Config):
            if self._schedule.progress.wants_quality(block):  # else it came before the machine was lost
                self._write(
                    QualityDraft(failed_quality_record(new_quality_record(block, instance_id, now()), failure, 0.0))
                )
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
        trial = new_trial_record(
            point, kind="measured", block=block, index=index, instance_id=instance_id, failure=failure
        )
        self._write(TrialDraft(trial))


_PLACE, _NAME = "fleet", "state.json"  # in a study folder


def fleet_driver_state(where: str, *, without_token: bool = False) -> FleetState:
    """`where`: a study folder, or an address as `--on` takes it."""
    if not Path(where).is_dir():
        return _asked(where, without_token=without_token)
    file = StudyFolder.existing(Path(where)).path / _PLACE / _NAME
    if not file.exists():
        raise StoreError(f"{where} was not run on several machines; `bitbench run STUDY --on WHERE` does that")
    return read_record_file(file, FleetState, FLEET_FORMAT, "remove it; it is only a view")


def _asked(address: str, *, without_token: bool) -> FleetState:
    roster = roster_of(address, without_token=without_token)
    with closing(Fleet(roster, None, LogObserver())) as fleet:
        facts = fleet.hosts()
        machines = tuple(
            MachineState(name=station.seat.name, state=station.state, activity=_described(facts.get(station.seat.name)))
            for station in fleet.stations
        )
    return FleetState(updated_at=now(), machines=machines)


def _described(host: HostFacts | None) -> str:
    if host is None:
        return ""
    facts = (
        host.cpu_model,
        f"{host.cores} cores" if host.cores else None,
        show_bytes(host.memory_bytes) if host.memory_bytes else None,
        *(accelerator.name for accelerator in host.accelerators),
    )
    return ", ".join(fact for fact in facts if fact)


class FleetStatus:
    """Tells the study folder who works on what, for `bitbench fleet`."""

    def __init__(self, folder: StudyFolder, fleet: Fleet, schedule: Schedule) -> None:
        self._files, self._fleet, self._schedule = SafeFolder(folder.path), fleet, schedule
        self._files.remove_matching(_PLACE, re.compile(re.escape(_NAME)), frozenset({_NAME}))  # what a kill left of it
        self._blocks: dict[str, set[int]] = {}  # by machine
        self._written: tuple[MachineState, ...] | None = None

    def update(self, under_way: Sequence[UnderWay]) -> None:
        """Written where it says something new."""
        orders = {work.machine.name: work.order for work in under_way}
        for block, host in self._schedule.hosts.items():
            self._blocks.setdefault(host, set()).add(block)
        states = tuple(
            MachineState(
                name=station.seat.name,
                state=station.state,
                works_on=order.name if (order := orders.get(station.seat.name)) else None,
                activity=station.activity if order else "",
                blocks=len(self._blocks.get(station.seat.name, ())),
            )
            for station in self._fleet.stations
        )
        if states != self._written:
            self._written = states
            state = FleetState(
                updated_at=now(),
                trials=self._schedule.measured,
                remaining_s=self._schedule.pace.remaining_s(),
                machines=states,
            )
            self._files.write(f"{_PLACE}/{_NAME}", state.model_dump_json(indent=1) + "\n")


def fleet_executor(where: str, *, without_token: bool) -> Executor:
    return partial(_drive_study, roster_of(where, without_token=without_token))


def _drive_study(roster: Roster, study: StudyRun) -> None:
    """Drive it, and measure nothing here; the study is resolved as on every machine."""
    refuse_what_one_machine_does(study.plan, registered_engines_of(study.plan.study))
    with study.folder.writing() as writer, closing(Fleet(roster, writer, study.observer)) as fleet:
        hosts = fleet.hosts()
        refuse_driving_mixed_machines(hosts)
        lock = study.begin(writer, hosts=hosts)
        study.quality_kits(writer)
        schedule = study.schedule(at_once=lambda: fleet.size)
        StudyDriver(
            lock,
            folder=str(study.source.folder.resolve()),
            writer=writer,
            observer=study.observer,
            fleet=fleet,
            schedule=schedule,
            on_change=FleetStatus(study.folder, fleet, schedule).update,
        ).run()


def refuse_what_one_machine_does(plan: Plan, engines: Mapping[str, Engine]) -> None:
    for setup in plan.study.engines:
        engine = engines[setup.engine]
        if engine.environment is None and not engine.can_freeze(setup):
            raise UsageError(f"{setup.name} runs elsewhere, and several machines would load it at once; leave --on out")
    if plan.study.measure.budget is not None:
        raise UsageError("a budget plans the time of one machine; with --on say `starts` and `trials` instead")
    for section in plan.study.sections.values():
        if section.on_one_machine is not None:
            raise UsageError(section.on_one_machine)


def refuse_driving_mixed_machines(hosts: Mapping[str, HostFacts]) -> None:
    """Raises NotComparableError where machines differ: their figures would be averaged as if they were one's."""
    first, *others = hosts
    for other in others:
        if names := hosts[first].differences(hosts[other]):
            told = "; ".join(f"{name}: {hosts[first].shown(name)} and {hosts[other].shown(name)}" for name in names)
            raise NotComparableError(
                f"{first} and {other} are machines of different classes ({told}); give machines of one class, and the "
                "others in a study of their own"
            )
