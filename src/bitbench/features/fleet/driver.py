"""`bitbench run --on`: gives blocks to the nodes of a Ray cluster, writes down what comes back, and alone decides what
is next.

Each result is on disk before the next one is fetched, so a study that was killed at any moment resumes by the same
command. What a void block still delivers is never read. Ray notices most losses. Signs of life in both directions show
a process that hangs or is cut off.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from bitbench.engines.registry import registered_engines_of
from bitbench.features.fleet.cluster import (
    ClusterAddress,
    Place,
    connected_cluster,
    first_line,
    list_places,
    make_actor,
    parse_cluster_address,
    require_places,
)
from bitbench.features.fleet.pace import ClusterPlanner
from bitbench.planning.plan import estimator_of
from bitbench.records.block_lines import BlockLine, BlockLines
from bitbench.records.folder import Writer
from bitbench.records.lock import Lock
from bitbench.records.quality import QualityMaterial
from bitbench.records.trial import InstanceRecord, Outcome, TrialRecord
from bitbench.running.blocks import refuse_sections_of_one_machine, void_block
from bitbench.running.group import Draft
from bitbench.running.loop import Schedule, record_loop_result
from bitbench.running.offers import Executor
from bitbench.running.progress import BlockTask
from bitbench.running.quality import QualityDraft
from bitbench.running.runner import StudyRun, study_residence
from bitbench.running.trial import TrialDraft
from bitbench.study.plan import Config
from bitbench.util.errors import BitbenchError, FleetError, UsageError

SIGN_S = 2.0  # between two signs of life, and two looks at the nodes of the cluster
SILENT_S = 20.0  # a host without a sign for so long is lost
START_S = (
    90.0  # until a new host gives its first sign: it imports, and ends what an earlier one left
)
AWAY_S = 8.0  # a place that was lost is left alone: the guardian of an engine needs up to 4 s
MOST_LOSSES = 3  # in a row: then the place is left for good
_WAIT_S = 0.5


@dataclass
class Host:
    """A place, the actor that has it, and what it is at."""

    place: Place
    name: str
    state: str = "away"  # away, asked, ready, or out (for good)
    until: float = 0.0  # away: when it gets an actor; else when it counts as lost
    losses: int = 0
    actor: Any = None
    lock: Any = None  # to come: what the study is resolved to there
    sign: Any = None  # to come
    signed: float = 0.0
    line: BlockLine | None = None  # the block that is under way here
    results: Any = None  # to come, one by one
    ids: dict[str, str] = field(default_factory=dict)  # of its instances: the study's by the host's


class StudyDriver:
    """Drives one study; `run` returns when nothing is left to measure."""

    def __init__(self, ray: Any, address: ClusterAddress, study: StudyRun, writer: Writer) -> None:
        self._ray, self._address, self._study, self._writer = ray, address, study, writer
        self._hosts: dict[tuple[str, int], Host] = {}
        self._lock: Lock | None = None
        self._schedule: Schedule | None = None
        self._looked = self._heard = 0.0

    def run(self) -> None:
        require_places(self._ray, self._address)
        while self._schedule is None or self._give_out(self._schedule):
            self._take_results()
            if (
                time.monotonic() > self._heard + _WAIT_S
            ):  # not after each result: every question to Ray takes time
                self._heard = time.monotonic()
                self._look_at_nodes()
                for host in self._hosts.values():
                    self._hear(host)
                self._require_hosts()

    def _require_hosts(self) -> None:
        """Raises FleetError where no node can work any more."""
        if all(host.state == "out" for host in self._hosts.values()):
            raise FleetError(
                "no node of the cluster can work on this study now; the same command resumes"
            )

    # Blocks

    def _give_out(self, schedule: Schedule) -> bool:
        """Give work to each host that is free. False: nothing is under way, and nothing more is wanted."""
        for host in self._hosts.values():
            if host.state == "ready" and host.line is None:
                line = self._next_line(schedule, host.name)
                if line is not None:
                    self._order(schedule, host, line)
        is_busy = any(host.line is not None for host in self._hosts.values())
        return is_busy or self._has_more(schedule)

    def _has_more(self, schedule: Schedule) -> bool:
        newest = schedule.lines.newest
        if self._wanted_quality(schedule) or any(
            self._is_left(schedule, line) for line in newest.values()
        ):
            return True
        first_new = next(
            block for block in count() if block not in newest or newest[block].event == "void"
        )
        return schedule.planner.decide(first_new) is not None

    def _is_left(self, schedule: Schedule, line: BlockLine) -> bool:
        return line.event == "begun" and bool(schedule.progress.configs_left(line.block))

    def _next_line(self, schedule: Schedule, name: str) -> BlockLine | None:
        """A block for this host. One that was interrupted goes on where it was begun, as it was decided then; where
        that host is gone, it is voided and begun again."""
        assert isinstance(schedule.planner, ClusterPlanner)
        names = {host.name for host in self._hosts.values() if host.state != "out"}
        is_complete = all(
            host.state != "asked" for host in self._hosts.values()
        )  # by GPU, names come with the facts
        under_way = {host.line.block for host in self._hosts.values() if host.line is not None}
        first_open: int | None = None
        for block in count():
            line = schedule.lines.newest.get(block)
            is_left = line is not None and self._is_left(schedule, line)
            if line is not None and is_left and block not in under_way:
                if line.host == name:
                    return line
                if line.host not in names and is_complete:
                    self._void(schedule, line, f"{line.host} is not among the nodes any more")
                    line = None
            if line is None or line.event == "void":
                if first_open is not None and schedule.planner.basis(block) > first_open:
                    return None
                task = schedule.planner.decide(block)
                if task is not None:
                    return schedule.begin_new(task, name)
                break
            if first_open is None and is_left:
                first_open = block
        if first_open is not None or not self._wanted_quality(schedule):
            return None
        return BlockLine(block=0, attempt=0, event="begun", host=name, at="", rounds=0)

    def _wanted_quality(self, schedule: Schedule) -> tuple[Config, ...]:
        return tuple(filter(schedule.progress.wants_quality, self._study.plan.quality))

    def _order(self, schedule: Schedule, host: Host, line: BlockLine) -> None:
        from bitbench.features.fleet.host import BlockOrder

        assert isinstance(schedule.planner, ClusterPlanner)
        task = schedule.task_of(line) if line.rounds else BlockTask(0, 0, frozenset())
        quality = self._wanted_quality(schedule) if line.block == 0 else ()
        order = BlockOrder(
            task=task,
            seconds=schedule.planner.seconds(),
            quality=quality,
            materials=self._materials_of(quality),
            history=_list_history(schedule.trials, line.block),
            repeatable=schedule.repeatable,
        )
        host.line, host.ids = line, {}
        host.results = host.actor.run.remote(order)

    def _materials_of(self, configs: Collection[Config]) -> dict[str, QualityMaterial]:
        """What their models are asked about quality, by the name of the model."""
        names = {self._study.plan.variant(config.variant).model_name for config in configs}
        materials = {name: self._study.folder.material(name) for name in names}
        return {name: material for name, material in materials.items() if material is not None}

    def _void(self, schedule: Schedule, line: BlockLine, cause: str) -> None:
        if line.rounds:
            void_block(line, cause, schedule, self._writer)

    # Results

    def _take_results(self) -> None:
        """Write down one result, or wait a moment where there is none."""
        under_way = {host.results: host for host in self._hosts.values() if host.line is not None}
        if not under_way:
            time.sleep(_WAIT_S / 5)
            return
        ready, _ = self._ray.wait(list(under_way), num_returns=1, timeout=_WAIT_S)
        for results in ready:
            host = under_way[results]
            try:
                result, logs = self._ray.get(next(results))
            except StopIteration:
                self._lose(host, "it ended without an end")
            except (
                self._ray.exceptions.RayError
            ) as error:  # it died, or our own code raised an error there
                self._lose(host, first_line(error))
            else:
                self._write(host, result, logs)

    def _write(self, host: Host, result: Any, logs: dict[str, bytes]) -> None:
        from bitbench.features.fleet.host import BlockEnd

        assert self._schedule is not None
        assert host.line is not None
        if isinstance(result, BlockEnd):
            if host.line.rounds:
                rounds = self._count_rounds(host.line.block)
                ended = self._schedule.lines.end(host.line, rounds, result.seconds)
                self._schedule.begin(self._schedule.task_of(ended))
            host.line, host.losses = None, 0
            self._study.copy_records()
            return
        for name, content in logs.items():
            if name not in host.ids:
                host.ids[name] = self._writer.new_instance()[0]
            self._writer.append_log(host.ids[name], content)
        record_loop_result(
            _with_study_ids(result, host), self._schedule, self._writer, self._study.observer
        )

    def _count_rounds(self, block: int) -> int:
        assert self._schedule is not None
        counts: dict[object, int] = {}
        for trial in self._schedule.trials:
            if trial.block == block and trial.counts:
                counts[trial.point] = counts.get(trial.point, 0) + 1
        return max(counts.values(), default=0)

    # Hosts

    def _look_at_nodes(self) -> None:
        """Give new places an actor. A host whose node Ray calls dead is lost, also if its actor still answers."""
        if time.monotonic() - self._looked < SIGN_S:
            return
        self._looked = time.monotonic()
        places = {
            (place.node_id, place.slot): place for place in list_places(self._ray, self._address)
        }
        for key in [key for key in self._hosts if key not in places]:
            self._lose(self._hosts.pop(key), "Ray says that its node is dead")
        for key, place in places.items():
            host = self._hosts.setdefault(key, Host(place, place.name))
            if host.state == "away" and time.monotonic() > host.until:
                self._ask(host)

    def _ask(self, host: Host) -> None:
        from bitbench.features.fleet.host import BlockHost

        study = self._study
        folder = study.source.folder.resolve()
        host.actor = make_actor(
            self._ray, BlockHost, host.place, study.plan.study, folder, study.at.asked_device
        )
        host.lock, host.sign = host.actor.prepare.remote(), host.actor.sign.remote()
        host.state, host.until = "asked", time.monotonic() + START_S

    def _hear(self, host: Host) -> None:
        """Take its sign of life, and what the study is resolved to on a new host."""
        if host.actor is None:
            return
        try:
            if host.sign is not None and self._is_there(host.sign):
                self._ray.get(host.sign)
                host.sign, host.signed = None, time.monotonic()
                host.until = host.signed + SILENT_S
            if host.sign is None and time.monotonic() > host.signed + SIGN_S:
                host.sign = host.actor.sign.remote()
            if host.state == "asked" and self._is_there(host.lock):
                self._admit(host, self._ray.get(host.lock))
            if time.monotonic() > host.until:
                self._lose(host, "it gives no sign of life")
        except (
            self._ray.exceptions.RayTaskError
        ) as error:  # our own code says why it cannot work there
            self._lose(
                host, first_line(error.cause), for_good=isinstance(error.cause, BitbenchError)
            )
        except self._ray.exceptions.RayError as error:
            self._lose(host, first_line(error))

    def _is_there(self, value: Any) -> bool:
        return bool(self._ray.wait([value], timeout=0)[0])

    def _admit(self, host: Host, found: Lock) -> None:
        """The first host names the study's class of machine; a host that differs in what matters takes no part."""
        gpus = found.host.accelerators
        if self._address.per_gpu and len(gpus) == 1 and gpus[0].uuid:
            host.name = f"{host.place.name.rpartition(':')[0] or host.place.name}:{gpus[0].uuid}"
        if self._lock is None:
            self._lock = self._study.begin(self._writer, hosts={host.name: found.host})
            self._begin_schedule()
        changes = list(self._lock.changes(found))
        if found.bitbench != self._lock.bitbench:
            changes.append(f"bitbench {found.bitbench} instead of {self._lock.bitbench}")
        if changes:
            self._study.observer.warn(
                f"{host.name} is not set up like the others: {'; '.join(changes)}"
            )
            self._leave(host, for_good=True)
            return
        self._lock = self._lock.model_copy(
            update={"hosts": {**self._lock.hosts, host.name: found.host}}
        )
        self._writer.write_lock(self._lock)
        host.state = "ready"

    def _begin_schedule(self) -> None:
        study = self._study
        study.quality_kits(self._writer)

        residence = study_residence(study.plan, study.at)

        def make_planner(lines: BlockLines) -> ClusterPlanner:
            estimator = estimator_of(study.plan, study.at)
            return ClusterPlanner(study.plan, estimator, residence, max(1, len(self._hosts)), lines)

        self._schedule = Schedule(study.plan, make_planner, residence, study.folder)
        study.observer.study_started(study.plan, self._schedule.measured)

    def _lose(self, host: Host, cause: str, *, for_good: bool = False) -> None:
        line = host.line
        host.losses += 1
        self._study.observer.warn(f"{host.name} was lost: {cause}")
        self._leave(host, for_good=for_good or host.losses >= MOST_LOSSES)
        if line is not None and self._schedule is not None:
            self._void(self._schedule, line, f"{host.name} was lost: {cause}")

    def _leave(self, host: Host, *, for_good: bool) -> None:
        if host.actor is not None:
            self._ray.kill(host.actor, no_restart=True)
        host.actor = host.lock = host.sign = host.line = host.results = None
        host.state, host.until = ("out" if for_good else "away"), time.monotonic() + AWAY_S


def _with_study_ids(draft: Draft, host: Host) -> Draft:
    """The draft under the ids that the study gives."""
    if isinstance(draft, InstanceRecord):
        name = host.ids[draft.id]
        return draft.model_copy(
            update={"id": name, "log_file": f"logs/{name}.log", "host": host.name}
        )
    update = {"instance_id": host.ids[draft.record.instance_id]}
    if isinstance(draft, TrialDraft):
        return TrialDraft(draft.record.model_copy(update=update), draft.rows)
    return QualityDraft(draft.record.model_copy(update=update), draft.scores)


def _list_history(trials: Collection[TrialRecord], block: int) -> tuple[TrialRecord, ...]:
    """What a host has to know: all of this block; of others what failed, and the most memory of each config."""
    largest: dict[Config, TrialRecord] = {}
    for trial in sorted(trials, key=lambda trial: trial.memory.peak_bytes or 0):
        largest[trial.point.config] = trial
    kept = {trial.id for trial in largest.values()}
    return tuple(
        trial
        for trial in trials
        if trial.block == block or trial.outcome is not Outcome.OK or trial.id in kept
    )


def ray_executor(where: str) -> Executor:
    """What `run --on` calls. Raises UsageError."""
    return partial(_drive, parse_cluster_address(where))


def _drive(address: ClusterAddress, study: StudyRun) -> None:
    if address.per_gpu and study.at.device == "cpu":
        raise UsageError(
            "a block per GPU needs engines on GPUs; `bitbench doctor` says what is usable here"
        )
    _refuse_one_machine_study(study)
    with study.folder.writing() as writer, connected_cluster(address) as ray:
        StudyDriver(ray, address, study, writer).run()


def _refuse_one_machine_study(study: StudyRun) -> None:
    """Raises UsageError."""
    engines = registered_engines_of(study.plan.study)
    for setup in study.plan.study.engines:
        engine = engines[setup.engine]
        if engine.environment is None and not engine.can_freeze(setup):
            raise UsageError(
                f"{setup.name} runs elsewhere, and several nodes would load it at once; leave --on out"
            )
    refuse_sections_of_one_machine(study.plan)
