"""`bitbench run --on`: the driver of a study on a Ray cluster. It gives blocks to nodes, writes
down their results, and decides alone what is next.

Each result is on disk before the next one is fetched, so the same command resumes a study that was
killed at any moment. Later results of a void block are never read. Ray notices most losses. Signs
of life in both directions reveal a process that hangs or is cut off.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from bitbench.engines.registry import load_study_engines
from bitbench.features.fleet.cluster import (
    ClusterAddress,
    Place,
    connect_cluster,
    get_first_line,
    list_places,
    make_actor,
    parse_cluster_address,
    require_places,
)
from bitbench.features.fleet.pace import ClusterPlanner
from bitbench.planning.plan import make_estimator
from bitbench.records.block_lines import BlockLine, BlockLines
from bitbench.records.folder import Writer
from bitbench.records.lock import Lock
from bitbench.records.quality import QualityMaterial
from bitbench.records.trial import InstanceRecord, Outcome, TrialRecord
from bitbench.running.blocks import refuse_sections_of_one_machine, revert_block
from bitbench.running.group import Draft
from bitbench.running.loop import Schedule, record_loop_result
from bitbench.running.offers import Executor
from bitbench.running.progress import BlockTask
from bitbench.running.quality import QualityDraft
from bitbench.running.runner import StudyRun, make_residence
from bitbench.running.trial import TrialDraft
from bitbench.study.plan import Config
from bitbench.util.errors import BitbenchError, FleetError, UsageError

SIGN_S = 2.0  # interval of signs of life, and of checks of the cluster's nodes
SILENT_S = 20.0  # a host that is silent for so long is lost
# Time for the first sign of a new host, which imports and ends leftovers of an earlier one.
START_S = 90.0
AWAY_S = 8.0  # pause for a lost place: the guardian of an engine needs up to 4 s
MOST_LOSSES = 3  # losses in a row after which a place is not used again
_WAIT_S = 0.5


@dataclass
class Host:
    """A place in the cluster, its actor, and the state of its work."""

    place: Place
    name: str
    state: str = "away"  # away, asked, ready, or out (for good)
    until: float = 0.0  # away: when it gets an actor. Otherwise: when it counts as lost.
    losses: int = 0
    actor: Any = None
    lock: Any = None  # future: the resolved study on that host
    sign: Any = None  # future
    signed: float = 0.0
    line: BlockLine | None = None  # the block that runs here
    results: Any = None  # futures, one after the other
    ids: dict[str, str] = field(default_factory=dict)  # the study's instance ids by the host's


class StudyDriver:
    """A driver of one study. `run` returns when nothing is left to measure."""

    def __init__(self, ray: Any, address: ClusterAddress, study: StudyRun, writer: Writer) -> None:
        self._ray = ray
        self._address = address
        self._study = study
        self._writer = writer
        self._hosts: dict[tuple[str, int], Host] = {}
        self._lock: Lock | None = None
        self._schedule: Schedule | None = None
        self._nodes_checked = 0.0
        self._hosts_checked = 0.0

    def run(self) -> None:
        """Measure until nothing is left. Raise FleetError if no node can work."""
        require_places(self._ray, self._address)
        while self._schedule is None or self._give_out(self._schedule):
            self._take_results()
            # Not after each result, since every question to Ray takes time.
            if time.monotonic() > self._hosts_checked + _WAIT_S:
                self._hosts_checked = time.monotonic()
                self._look_at_nodes()
                for host in self._hosts.values():
                    self._check_host(host)
                self._require_hosts()

    def _require_hosts(self) -> None:
        """Raise FleetError if no node can work any more."""
        if all(host.state == "out" for host in self._hosts.values()):
            raise FleetError(
                "no node of the cluster can work on this study now; the same command resumes"
            )

    # Blocks

    def _give_out(self, schedule: Schedule) -> bool:
        """Give work to each free host. Return False if nothing is running and nothing is left."""
        for host in self._hosts.values():
            if host.state == "ready" and host.line is None:
                line = self._find_next_line(schedule, host.name)
                if line is not None:
                    self._order(schedule, host, line)
        is_busy = any(host.line is not None for host in self._hosts.values())
        return is_busy or self._has_more(schedule)

    def _has_more(self, schedule: Schedule) -> bool:
        newest = schedule.lines.newest
        if self._list_quality_left(schedule):
            return True
        if any(self._is_left(schedule, line) for line in newest.values()):
            return True
        first_new = 0
        while first_new in newest and newest[first_new].event != "void":
            first_new += 1
        return schedule.planner.decide(first_new) is not None

    def _is_left(self, schedule: Schedule, line: BlockLine) -> bool:
        return line.event == "begun" and bool(schedule.progress.list_incomplete_configs(line.block))

    def _find_next_line(self, schedule: Schedule, name: str) -> BlockLine | None:
        """Return a block for this host, or None. An interrupted block continues on its host as it
        was decided. If that host is gone, the block is voided and begins again."""
        assert isinstance(schedule.planner, ClusterPlanner)
        names = {host.name for host in self._hosts.values() if host.state != "out"}
        # A host with one GPU gets its final name when it is admitted.
        is_complete = all(host.state != "asked" for host in self._hosts.values())
        running = {host.line.block for host in self._hosts.values() if host.line is not None}
        first_open: int | None = None
        for block in count():
            line = schedule.lines.newest.get(block)
            is_left = line is not None and self._is_left(schedule, line)
            if line is not None and is_left and block not in running:
                if line.host == name:
                    return line
                if line.host not in names and is_complete:
                    self._clear_block(
                        schedule, line, f"{line.host} is not among the nodes any more"
                    )
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
        if first_open is not None or not self._list_quality_left(schedule):
            return None
        return BlockLine(block=0, attempt=0, event="begun", host=name, at="", rounds=0)

    def _list_quality_left(self, schedule: Schedule) -> tuple[Config, ...]:
        return tuple(filter(schedule.progress.is_quality_due, self._study.plan.quality))

    def _order(self, schedule: Schedule, host: Host, line: BlockLine) -> None:
        """Send the block to the host's actor."""
        from bitbench.features.fleet.host import BlockOrder

        assert isinstance(schedule.planner, ClusterPlanner)
        task = schedule.make_task(line) if line.rounds else BlockTask(0, 0, frozenset())
        quality = self._list_quality_left(schedule) if line.block == 0 else ()
        order = BlockOrder(
            task=task,
            seconds=schedule.planner.seconds(),
            quality=quality,
            materials=self._collect_materials(quality),
            history=_list_history(schedule.trials, line.block),
            repeatable=schedule.repeatable,
        )
        host.line = line
        host.ids = {}
        host.results = host.actor.run.remote(order)

    def _collect_materials(self, configs: Collection[Config]) -> dict[str, QualityMaterial]:
        """Return the quality material of these configs by the name of the model."""
        names = {self._study.plan.variant(config.variant).model_name for config in configs}
        materials: dict[str, QualityMaterial] = {}
        for name in names:
            material = self._study.folder.material(name)
            if material is not None:
                materials[name] = material
        return materials

    def _clear_block(self, schedule: Schedule, line: BlockLine, cause: str) -> None:
        if line.rounds:
            revert_block(line, cause, schedule, self._writer)

    # Results

    def _take_results(self) -> None:
        """Write down one result, or wait a moment if none exists."""
        running = {host.results: host for host in self._hosts.values() if host.line is not None}
        if not running:
            time.sleep(_WAIT_S / 5)
            return
        ready, _ = self._ray.wait(list(running), num_returns=1, timeout=_WAIT_S)
        for results in ready:
            host = running[results]
            try:
                result, logs = self._ray.get(next(results))
            except StopIteration:
                self._drop_host(host, "it ended without an end")
            except self._ray.exceptions.RayError as error:
                # The actor died, or bitbench's own code raised an error there.
                self._drop_host(host, get_first_line(error))
            else:
                self._write(host, result, logs)

    def _write(self, host: Host, result: Any, logs: dict[str, bytes]) -> None:
        """Write down a result and the logs that came with it, or the end of the block."""
        from bitbench.features.fleet.host import BlockEnd

        assert self._schedule is not None
        assert host.line is not None
        if isinstance(result, BlockEnd):
            if host.line.rounds:
                rounds = self._count_rounds(host.line.block)
                ended = self._schedule.lines.end(host.line, rounds, result.seconds)
                self._schedule.begin(self._schedule.make_task(ended))
            host.line = None
            host.losses = 0
            self._study.copy_records()
            return
        for name, content in logs.items():
            if name not in host.ids:
                host.ids[name] = self._writer.new_instance()[0]
            self._writer.append_log(host.ids[name], content)
        record_loop_result(
            _replace_instance_ids(result, host), self._schedule, self._writer, self._study.observer
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
        """Give new places an actor. A host is lost if Ray calls its node dead, even if its actor
        still answers."""
        if time.monotonic() - self._nodes_checked < SIGN_S:
            return
        self._nodes_checked = time.monotonic()
        places = {
            (place.node_id, place.slot): place for place in list_places(self._ray, self._address)
        }
        for key in [key for key in self._hosts if key not in places]:
            self._drop_host(self._hosts.pop(key), "Ray says that its node is dead")
        for key, place in places.items():
            host = self._hosts.setdefault(key, Host(place, place.name))
            if host.state == "away" and time.monotonic() > host.until:
                self._ask(host)

    def _ask(self, host: Host) -> None:
        """Start an actor on the host and have it prepare the study."""
        from bitbench.features.fleet.host import BlockHost

        study = self._study
        folder = study.source.folder.resolve()
        host.actor = make_actor(
            self._ray, BlockHost, host.place, study.plan.study, folder, study.at.asked_device
        )
        host.lock = host.actor.prepare.remote()
        host.sign = host.actor.sign.remote()
        host.state = "asked"
        host.until = time.monotonic() + START_S

    def _check_host(self, host: Host) -> None:
        """Take the host's sign of life, and admit a new host when it is prepared."""
        if host.actor is None:
            return
        try:
            if host.sign is not None and self._is_there(host.sign):
                self._ray.get(host.sign)
                host.sign = None
                host.signed = time.monotonic()
                host.until = host.signed + SILENT_S
            if host.sign is None and time.monotonic() > host.signed + SIGN_S:
                host.sign = host.actor.sign.remote()
            if host.state == "asked" and self._is_there(host.lock):
                self._enable_host(host, self._ray.get(host.lock))
            if time.monotonic() > host.until:
                self._drop_host(host, "it gives no sign of life")
        except self._ray.exceptions.RayTaskError as error:
            # bitbench's own code says why it cannot work there.
            is_final = isinstance(error.cause, BitbenchError)
            self._drop_host(host, get_first_line(error.cause), for_good=is_final)
        except self._ray.exceptions.RayError as error:
            self._drop_host(host, get_first_line(error))

    def _is_there(self, future: Any) -> bool:
        return bool(self._ray.wait([future], timeout=0)[0])

    def _enable_host(self, host: Host, lock: Lock) -> None:
        """Let the host take part. The first one sets the study's class of machine, and a host that
        differs in relevant facts is left out."""
        gpus = lock.host.accelerators
        if self._address.per_gpu and len(gpus) == 1 and gpus[0].uuid:
            host.name = f"{host.place.name.rpartition(':')[0] or host.place.name}:{gpus[0].uuid}"
        if self._lock is None:
            self._lock = self._study.begin(self._writer, hosts={host.name: lock.host})
            self._begin_schedule()
        changes = list(self._lock.changes(lock))
        if lock.bitbench != self._lock.bitbench:
            changes.append(f"bitbench {lock.bitbench} instead of {self._lock.bitbench}")
        if changes:
            self._study.observer.warn(
                f"{host.name} is not set up like the others: {'; '.join(changes)}"
            )
            self._release_host(host, for_good=True)
            return
        hosts = {**self._lock.hosts, host.name: lock.host}
        self._lock = self._lock.model_copy(update={"hosts": hosts})
        self._writer.write_lock(self._lock)
        host.state = "ready"

    def _begin_schedule(self) -> None:
        study = self._study
        study.make_quality_kits(self._writer)

        residence = make_residence(study.plan, study.at)

        def make_planner(lines: BlockLines) -> ClusterPlanner:
            estimator = make_estimator(study.plan, study.at)
            return ClusterPlanner(study.plan, estimator, residence, max(1, len(self._hosts)), lines)

        self._schedule = Schedule(study.plan, make_planner, residence, study.folder)
        study.observer.study_started(study.plan, self._schedule.measured)

    def _drop_host(self, host: Host, cause: str, *, for_good: bool = False) -> None:
        """Give up the host's block, and the host itself for a while or for good."""
        line = host.line
        host.losses += 1
        self._study.observer.warn(f"{host.name} was lost: {cause}")
        self._release_host(host, for_good=for_good or host.losses >= MOST_LOSSES)
        if line is not None and self._schedule is not None:
            self._clear_block(self._schedule, line, f"{host.name} was lost: {cause}")

    def _release_host(self, host: Host, *, for_good: bool) -> None:
        """End the host's actor."""
        if host.actor is not None:
            self._ray.kill(host.actor, no_restart=True)
        host.actor = host.lock = host.sign = host.line = host.results = None
        host.state = "out" if for_good else "away"
        host.until = time.monotonic() + AWAY_S


def _replace_instance_ids(draft: Draft, host: Host) -> Draft:
    """Return the draft with the instance ids of the study."""
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
    """Return the trials that a host needs: all of this block, all failed ones, and the one with the
    highest memory of each config."""
    largest: dict[Config, TrialRecord] = {}
    for trial in sorted(trials, key=lambda trial: trial.memory.peak_bytes or 0):
        largest[trial.point.config] = trial
    largest_ids = {trial.id for trial in largest.values()}
    return tuple(
        trial
        for trial in trials
        if trial.block == block or trial.outcome is not Outcome.OK or trial.id in largest_ids
    )


def ray_executor(cluster: str) -> Executor:
    """Return the function that `run --on` calls. Raise UsageError for a bad address."""
    return partial(_run_on_cluster, parse_cluster_address(cluster))


def _run_on_cluster(address: ClusterAddress, study: StudyRun) -> None:
    if address.per_gpu and study.at.device == "cpu":
        raise UsageError(
            "a block per GPU needs engines on GPUs; `bitbench doctor` says what is usable here"
        )
    _refuse_one_machine_study(study)
    with study.folder.open_writer() as writer, connect_cluster(address) as ray:
        StudyDriver(ray, address, study, writer).run()


def _refuse_one_machine_study(study: StudyRun) -> None:
    """Raise UsageError if the study needs a single machine."""
    engines = load_study_engines(study.plan.study)
    for setup in study.plan.study.engines:
        engine = engines[setup.engine]
        if engine.environment is None and not engine.can_freeze(setup):
            raise UsageError(
                f"{setup.name} runs elsewhere, and several nodes would load it at once; "
                "leave --on out"
            )
    refuse_sections_of_one_machine(study.plan)
