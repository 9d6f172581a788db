"""What runs a study: plan, load client, engines and driver, put together."""

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bitbench import __version__
from bitbench.core.asked.search import SearchLimits
from bitbench.core.asked.study import Study
from bitbench.core.cell import Plan
from bitbench.core.ports import Engine, LoadClient, Observer
from bitbench.core.recorded.host import HostFacts, HostNoise
from bitbench.core.recorded.lock import Lock
from bitbench.engines.starts import Starts
from bitbench.environments.installed import versions
from bitbench.fleet.channel import Roster
from bitbench.ground import yaml_file
from bitbench.ground.errors import (
    LoadError,
    NotComparableError,
    ProfileError,
    StoreError,
    StudyFileError,
    UsageError,
)
from bitbench.ground.linux import require_linux
from bitbench.ground.safe_files import read_bytes
from bitbench.ground.units import show_duration
from bitbench.lab.bench import Bench
from bitbench.lab.driver import StudyDriver
from bitbench.lab.endpoint import EndpointRun
from bitbench.lab.fleet import FleetExecutor, FleetStatus
from bitbench.lab.load_study import PreparedLoad
from bitbench.lab.loop import run_study
from bitbench.lab.pace import OpenCells, StudyPace
from bitbench.lab.part import StudyPart
from bitbench.lab.profile import run_profiles
from bitbench.lab.quality import KitMaker
from bitbench.lab.schedule import THIS_HOST, Schedule
from bitbench.lab.source import StudySource
from bitbench.lab.trial import now
from bitbench.lab.variants import Workshop
from bitbench.load.inputs import hash_files
from bitbench.load.workers import LoadWorkers
from bitbench.models.words import word_token_ids
from bitbench.planning.estimate import Estimator
from bitbench.planning.study_file import parse_study
from bitbench.probes.busy import BUSY_CORES, cores_in_use
from bitbench.probes.memory import available_memory
from bitbench.probes.noise import keep_noise, kept_noise, measure_noise
from bitbench.quality.files import hash_quality_files
from bitbench.report.document.words import plural
from bitbench.statistics.budget_plan import FEWEST_BLOCKS, BlockPlan
from bitbench.statistics.standing import kept_back
from bitbench.store.folder import StudyFolder, Writer

if TYPE_CHECKING:
    from bitbench.lab.study import Lab

# What may change in a study file between two runs into the same folder: how long to look, not what to look at.
CHANGEABLE_FIELDS = {"measure", "description", "baseline", "profile"}

CHOSEN_BY_SEARCH = {"name", "duration"}  # of its workloads, beside the rate: from what the endpoint takes without load


class StudyRunner:
    """Fills study folders in one lab: `Lab.run`, `Lab.profile` and `Lab.load` say what is asked of it."""

    def __init__(self, lab: "Lab") -> None:
        self._lab = lab

    def run(
        self,
        study: Path | Study | StudySource,
        into: Path | StudyFolder | None,
        observer: Observer,
        *,
        budget_s: float | None = None,
        part: StudyPart | None = None,
        on: Roster | None = None,
    ) -> StudyFolder:
        require_linux()
        source = StudySource.of(study).with_budget(budget_s)
        if part is None:
            refuse_what_another_command_runs(source)
        self._lab.trust(source).require()
        workshop = Workshop(self._lab.home, source.folder)
        plan = self._lab.ready_plan(source, workshop, observer, part)
        folder = into if isinstance(into, StudyFolder) else StudyFolder(into or Path(plan.study.name))
        if on is not None:
            refuse_on_a_fleet(plan, self._lab.engines_of(plan.study))
            with folder.writing() as writer, closing(FleetExecutor(on, writer, observer)) as fleet:
                self._run_on(fleet, plan=plan, source=source, workshop=workshop, writer=writer, observer=observer)
            return folder
        with folder.writing() as writer, LoadWorkers() as load:
            self._open(writer, plan, source, observer)
            bench = self.bench(plan.study, load, workshop, source.folder)
            kits = self.kit_maker(bench, workshop).kits(plan, writer, observer.note)
            bench = replace(bench, quality=kits)
            goes_on = part and part.goes_on
            search = (lambda blocks: goes_on(folder, blocks)) if goes_on else None
            schedule = Schedule(plan, lambda: self.pace(plan, bench.engines, search=search), folder)
            _announce(plan, schedule, observer, self._lab.estimator(plan).quality_s)
            run_study(plan, bench, schedule, writer, observer)
            run_profiles(plan, bench, writer, observer)
        return folder

    def _run_on(
        self,
        fleet: FleetExecutor,
        *,
        plan: Plan,
        source: StudySource,
        workshop: Workshop,
        writer: Writer,
        observer: Observer,
    ) -> None:
        """The driver of a fleet measures nothing itself, but resolves the study like every machine."""
        engines = self._lab.engines_of(plan.study)
        lock = self._open(writer, plan, source, observer, hosts=fleet.hosts())
        maker = KitMaker(engines, self._lab.python_of, workshop.model_folder, source.folder.resolve())
        maker.kits(plan, writer, observer.note)
        schedule = Schedule(plan, lambda: self.pace(plan, engines, fleet.size), writer.folder)
        _announce(plan, schedule, observer, self._lab.estimator(plan).quality_s)
        status = FleetStatus(writer, fleet, schedule)
        StudyDriver(
            lock,
            folder=str(source.folder.resolve()),
            writer=writer,
            observer=observer,
            executor=fleet,
            schedule=schedule,
            on_change=status.update,
        ).run()

    def profile(self, study: Study, folder: StudyFolder, observer: Observer) -> None:
        require_linux()
        source = StudySource.of(study)
        workshop = Workshop(self._lab.home, source.folder)
        plan = self._lab.ready_plan(source, workshop, observer)
        if plan.refusals:
            raise ProfileError(f"{plan.refusals[0].cell.contender.name}: {plan.refusals[0].reason}")
        with folder.writing() as writer, LoadWorkers() as load:
            self._open(writer, plan, source, observer)
            run_profiles(plan, self.bench(study, load, workshop, source.folder), writer, observer, is_all=True)

    def load(self, prepared: PreparedLoad, observer: Observer, client: LoadClient) -> StudyFolder:
        study, search, folder = prepared.study, prepared.search, StudyFolder(prepared.folder)
        lock = folder.lock()
        if lock is not None:
            refuse_other_load(lock, study, search, folder.path)
        if search is not None and lock and lock.search:  # its study has grown by the rates that were tried
            search = lock.search.model_copy(update={"trials": search.trials, "precision": search.precision})
            study = study.model_copy(update={"workloads": lock.plan.study.workloads})
        source = StudySource.of(study, folder.path)
        with folder.writing() as writer:
            workshop = Workshop(self._lab.home, source.folder)
            plan = self._lab.planned(source, workshop)
            if plan.refusals:
                raise LoadError(plan.refusals[0].reason)
            self._open(writer, plan, source, observer, search=search)
            run = EndpointRun(plan, self.bench(study, client, workshop, source.folder), writer, observer)
            if search is None:
                run.sweep()
            else:
                run.search(search)
        return folder

    def pace(
        self, plan: Plan, engines: Mapping[str, Engine], at_once: int = 1, search: OpenCells | None = None
    ) -> StudyPace:
        return StudyPace(
            plan,
            engines,
            Estimator(plan, engines, self._lab.level),
            available_bytes=available_memory(),
            on_device=self._lab.device != "cpu",
            at_once=at_once,
            search=search,
        )

    def bench(self, study: Study, load: LoadClient, workshop: Workshop, folder: Path) -> Bench:
        return Bench(
            engines=self._lab.engines_of(study),
            python_of=self._lab.python_of,
            load=load,
            folder=folder.resolve(),
            capability=self._lab.capability,
            starts=Starts() if self._lab.device == "cpu" else None,  # on a GPU it was not tried
            words_of=cache(lambda model: word_token_ids(workshop.model_folder(model))),
        )

    def kit_maker(self, bench: Bench, workshop: Workshop) -> KitMaker:
        return KitMaker(bench.engines, bench.python_of, workshop.model_folder, bench.folder)

    def _open(
        self,
        writer: Writer,
        plan: Plan,
        source: StudySource,
        observer: Observer,
        *,
        hosts: Mapping[str, HostFacts] | None = None,
        search: SearchLimits | None = None,
    ) -> Lock:
        """A new folder gets its lock; an old one must be about the same study, on the same host and versions. `hosts`:
        the machines that measure; None: this one."""
        folder, lock = writer.folder, writer.folder.lock()
        is_here = hosts is None
        hosts = {THIS_HOST: self._lab.host()} if hosts is None else hosts
        found = self.resolve(plan, source.folder, _class_of(hosts, lock)).model_copy(update={"hosts": dict(hosts)})
        busy_cores = cores_in_use() if is_here else 0.0
        if busy_cores > BUSY_CORES:
            observer.warn(f"other work keeps {busy_cores:.1f} cores of this machine busy; expect wide intervals")
        if lock:
            # A search writes a new rate into the study before it is in the lock.
            refuse_other_study(_study_in(folder), plan.study, {"workloads"} if search else set())
            refuse_other_facts(lock, found, folder)
            found = lock.resumed(found)
        else:
            refuse_other_file(folder, source.text)
            began: dict[str, object] = {"created_at": now(), "search": search}
            if is_here:
                began |= {"busy_cores": busy_cores, "noise": self._noise(found.host, observer)}
            found = found.model_copy(update=began)
        writer.write_study(source.text)
        writer.write_lock(found)
        return found

    def _noise(self, host: HostFacts, observer: Observer) -> HostNoise:
        """Of this machine, measured within the hour or now."""
        if (noise := kept_noise(self._lab.home, host)) is None:
            observer.note("measuring this machine's noise")
            noise = measure_noise()
            keep_noise(self._lab.home, host, noise)
        return noise

    def resolve(self, plan: Plan, folder: Path, host: HostFacts) -> Lock:
        """What this run finds here; when it began is not in it."""
        return Lock(
            bitbench=__version__,
            host=host,
            environments={name: versions(name, self._lab.home) for name in self._lab.environments_of(plan)},
            variants={
                variant.name: variant.content_hash for variant in plan.variants if variant.content_hash is not None
            },
            files={
                **hash_files(plan.study.workloads, folder),
                **(hash_quality_files(plan.study.quality, folder) if plan.study.quality else {}),
            },
            plan=plan,
        )


def _class_of(hosts: Mapping[str, HostFacts], lock: Lock | None) -> HostFacts:
    """That of all machines of a study: the lock's where they are like it, else the first one's. Raises
    NotComparableError where they differ among themselves: their figures would be averaged as if they were one's."""
    first, *others = hosts
    for other in others:
        if names := hosts[first].differences(hosts[other]):
            told = "; ".join(f"{name}: {hosts[first].shown(name)} and {hosts[other].shown(name)}" for name in names)
            raise NotComparableError(
                f"{first} and {other} are machines of different classes ({told}); give machines of one class, and the "
                "others in a study of their own"
            )
    known = lock.host if lock else hosts[first]
    return hosts[first] if known.differences(hosts[first]) else known


def _study_in(folder: StudyFolder) -> Study:
    missing = f"{folder.path} has a lock.json but no study.yaml; restore it, or give another folder with --into"
    text = yaml_file.read_text(folder.study_file, missing=missing, error=StoreError)
    return parse_study(text, name=str(folder.study_file))


def refuse_what_another_command_runs(source: StudySource) -> None:
    """Raises StudyFileError for a file with a section that `bitbench run` would pass over."""
    for key, section in source.study.sections.items():
        if section.run_by is not None:
            asks = f"`{key}` is not for `bitbench run`; run it with: bitbench {section.run_by} {source.file or 'FILE'}"
            raise source.located(StudyFileError(asks, (key,)))


def refuse_other_load(lock: Lock, study: Study, search: SearchLimits | None, folder: Path) -> None:
    """A folder of a sweep is not continued by a search, nor one of a search by a sweep or with other requests."""
    if lock.plan.study.engines != study.engines:
        return  # another endpoint or no endpoint at all, which is refused as another study
    elsewhere = "repeat the command that began it, or give another folder with --into"
    if (lock.search is None) is not (search is None):
        began, asked = ("a search", "a sweep") if search is None else ("a sweep", "a search")
        raise StoreError(f"{folder} contains {began} of an endpoint, and this is {asked}; {elsewhere}")
    if search is None:
        return
    requests = [one.workloads[0] for one in (lock.plan.study, study)]
    before, after = ({**dict(one), "arrival": one.arrival.kind} for one in requests)
    differing = sorted(name for name in after if name not in CHOSEN_BY_SEARCH and before[name] != after[name])
    if differing:
        raise StoreError(f"{folder} contains a search with other requests ({', '.join(differing)}); {elsewhere}")


def refuse_other_study(old: Study, new: Study, changeable: Collection[str] = ()) -> None:
    may_change = {key for key, section in new.sections.items() if section.may_change}
    fields = {*type(new).model_fields, *old.sections, *new.sections}
    for field in sorted(fields - CHANGEABLE_FIELDS - may_change - set(changeable)):
        if getattr(old, field, None) != getattr(new, field, None):
            raise StoreError(
                f"this folder contains another study: `{field}` differs from the file; "
                "give another folder with --into (only `measure`, `baseline`, `profile` and `description` may change)"
            )


def refuse_other_file(folder: StudyFolder, text: str) -> None:
    """A study.yaml where no run began is a person's own, unless it says the same."""
    if folder.study_file.exists() and read_bytes(folder.study_file) != text.encode():
        raise StoreError(
            f"{folder.study_file} is another study, and would be overwritten; give another folder with --into"
        )


def refuse_other_facts(lock: Lock, found: Lock, folder: StudyFolder) -> None:
    """Trials from before and after such a change would be averaged as if they were the same thing."""
    if changes := "; ".join(lock.changes(found)):
        raise NotComparableError(
            f"{folder.path} was measured under other conditions ({changes}); give a new folder with --into"
        )


def _announce(plan: Plan, schedule: Schedule, observer: Observer, quality_s: float) -> None:
    observer.study_started(plan, schedule.measured)
    if (planned := schedule.pace.planned()) is not None:
        confirmed = "; one more start confirms the best" if kept_back(plan) else ""
        besides = f"; quality takes about {show_duration(quality_s)} besides" if quality_s else ""
        observer.note(f"the budget buys {_bought(planned)}{confirmed}{besides}")
    elif plan.study.measure.budget is not None:
        starts = max(FEWEST_BLOCKS, plan.study.measure.instances.min)
        observer.note(f"the budget is less than {starts} starts × 1 round take; these are measured in any case")


def refuse_on_a_fleet(plan: Plan, engines: Mapping[str, Engine]) -> None:
    """What one machine has to do alone."""
    for setup in plan.study.engines:
        engine = engines[setup.engine]
        if engine.environment is None and not engine.can_freeze(setup):
            raise UsageError(f"{setup.name} runs elsewhere, and several machines would load it at once; leave --on out")
    if plan.study.measure.budget is not None:
        raise UsageError("a budget plans the time of one machine; with --on say `instances` and `trials` instead")
    if plan.study.profile is not None:
        raise UsageError("profiles are taken on one machine; leave `profile` out of a study that runs with --on")


def _bought(planned: BlockPlan) -> str:
    """`3 starts × 4 rounds; ratios to about ±15 %`"""
    size = f"{plural(planned.blocks, 'start')} × {plural(planned.rounds, 'round')}"
    return f"{size}; ratios to about ±{100 * planned.relative_half_width:.0f} %"
