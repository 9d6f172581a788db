"""Joins the stages: a study file in, a study folder and its report out."""

import os
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bitbench import __version__, environments
from bitbench.core.asked.search import SearchLimits
from bitbench.core.asked.study import Study
from bitbench.core.capability import Capability
from bitbench.core.cell import Plan
from bitbench.core.device_class import DeviceClass, DevicePlan
from bitbench.core.environment import Device
from bitbench.core.found.summary import StudySummary
from bitbench.core.ports import Engine, LoadClient, Observer
from bitbench.core.recorded.host import HostFacts
from bitbench.core.recorded.lock import Lock
from bitbench.core.recorded.processor import Level
from bitbench.core.recorded.study import StudyRecords
from bitbench.engines import registry
from bitbench.engines.device_use import device_use
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
from bitbench.lab.driver import Schedule, StudyDriver
from bitbench.lab.endpoint import EndpointRun
from bitbench.lab.executor import THIS_HOST, BlockWork, LocalExecutor
from bitbench.lab.fleet import FleetExecutor, FleetStatus
from bitbench.lab.load_study import PreparedLoad
from bitbench.lab.pace import OpenCells, StudyPace
from bitbench.lab.part import StudyPart
from bitbench.lab.profile import run_profiles
from bitbench.lab.quality import KitMaker
from bitbench.lab.readiness import Readiness, readiness
from bitbench.lab.report import path_shortener, report_document, write_report
from bitbench.lab.source import StudySource
from bitbench.lab.trial import now
from bitbench.lab.trust import Trust
from bitbench.lab.uses import uses_of
from bitbench.lab.variants import Workshop
from bitbench.load.inputs import check_files, hash_files
from bitbench.load.workers import LoadWorkers
from bitbench.models.words import word_token_ids
from bitbench.planning.device_plan import plan_on_device
from bitbench.planning.estimate import Estimator
from bitbench.planning.expand import expand
from bitbench.planning.study_file import parse_study
from bitbench.probes.busy import BUSY_CORES, cores_in_use
from bitbench.probes.gpus import survey_gpus
from bitbench.probes.host import collect_host_facts, processor_level
from bitbench.probes.memory import available_memory
from bitbench.probes.noise import measure_noise
from bitbench.quality.files import check_quality_files, hash_quality_files
from bitbench.quality.tasks import ENVIRONMENT
from bitbench.report.document.words import plural
from bitbench.report.paths import shorten_summary
from bitbench.statistics.budget_plan import FEWEST_BLOCKS, BlockPlan
from bitbench.statistics.standing import kept_back
from bitbench.statistics.summarize import summarize
from bitbench.store.folder import StudyFolder, Writer

if TYPE_CHECKING:
    from bitbench.report.document.model import Document

NOT_THIS_MACHINE = "planned for another machine"  # of an environment
# What may change in a study file between two runs into the same folder: how long to look, not what to look at.
CHANGEABLE_FIELDS = {"measure", "description", "baseline", "profile", "tune"}

CHOSEN_BY_SEARCH = {"name", "duration"}  # of its workloads, beside the rate: from what the endpoint takes without load


def default_home() -> Path:
    """Where environments and models are kept: $BITBENCH_HOME, or a folder in the user's cache."""
    if chosen := os.environ.get("BITBENCH_HOME"):
        return Path(chosen).expanduser().resolve()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "bitbench"


class Lab:
    """One workplace: its home folder, and what can be done there."""

    def __init__(self, home: Path | None = None, device: Device | None = None) -> None:
        """`device`: what engines compute on; None: a GPU where one can be used, else the CPU."""
        self.home = home or default_home()
        self._chosen_device = device

    @property
    def device(self) -> Device:
        """What engines compute on here."""
        return self._chosen_device or ("cuda" if survey_gpus().is_usable else "cpu")

    @property
    def capability(self) -> Capability | None:
        """The least compute capability among the GPUs that engines see; None on a CPU, and where it is unknown."""
        return survey_gpus().capability if self.device == "cuda" else None

    @property
    def level(self) -> Level | None:
        """Of the processor, where it is what computes."""
        return processor_level() if self.device == "cpu" else None

    def plan(self, study: Path | Study | StudySource) -> Plan:
        """What a study would run, and what not and why. Runs nothing, and needs neither weights nor environments."""
        return self.look_ahead(study)[0]

    def look_ahead(self, study: Path | Study | StudySource) -> tuple[Plan, Readiness]:
        """The plan, and what is missing here before it can run."""
        source = StudySource.of(study)
        workshop = Workshop(self.home, source.folder)
        plan = self._plan(source, workshop)
        return plan, self._readiness(plan, workshop)

    def plan_for(
        self, study: Path | Study, device: DeviceClass, price_per_hour: float | None = None
    ) -> tuple[Plan, DevicePlan, Readiness]:
        """The plan on devices that this machine need not have, what it takes there, and what to install there first."""
        source = StudySource.of(study)
        workshop = Workshop(self.home, source.folder)
        engines = self.engines_of(source.study)
        start_s = {setup.name: engines[setup.engine].start_s for setup in source.study.engines}
        asked = self._plan(source, workshop, device)
        plan, on_device = plan_on_device(asked, device, device_use, start_s, price_per_hour)
        names = sorted({*self.environments_of(plan), *workshop.makers(plan)})
        return plan, on_device, Readiness(dict.fromkeys(names, NOT_THIS_MACHINE), tuple(workshop.missing_models(plan)))

    def trust(self, study: Path | Study | StudySource) -> Trust:
        """What a study uses beyond measuring, and whether that has been allowed."""
        return self._trust(StudySource.of(study))

    def estimator(self, plan: Plan) -> Estimator:
        return Estimator(plan, self.engines_of(plan.study))

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
        """Run what is left of a study; the same call again continues it. `budget_s` overrides the study's own; `part`:
        not all of it. `on`: machines that take a block each; else this one runs all. Raises NotTrustedError for a file
        that uses what has not been allowed here."""
        require_linux()
        source = StudySource.of(study).with_budget(budget_s)
        if source.study.tune is not None and part is None:
            asks = f"`tune` asks for a search; run it with: bitbench tune {source.file or 'FILE'}"
            raise source.located(StudyFileError(asks, ("tune",)))
        self._trust(source).require()
        workshop = Workshop(self.home, source.folder)
        plan = self.ready_plan(source, workshop, observer, part)
        folder = into if isinstance(into, StudyFolder) else StudyFolder(into or Path(plan.study.name))
        if on is not None:
            refuse_on_a_fleet(plan, self.engines_of(plan.study))
            with folder.writing() as writer, closing(FleetExecutor(on, writer, observer)) as fleet:
                self._run_on(fleet, plan=plan, source=source, workshop=workshop, writer=writer, observer=observer)
            return folder
        with folder.writing() as writer, LoadWorkers() as load:
            lock = self._open(writer, plan, source, observer)
            bench = self.bench(plan.study, load, workshop, source.folder)
            kits = self.kit_maker(bench, workshop).kits(plan, writer, observer.note)
            bench = replace(bench, quality=kits)
            goes_on = part and part.goes_on
            search = (lambda blocks: goes_on(folder, blocks)) if goes_on else None
            schedule = Schedule(plan, lambda: self.pace(plan, bench.engines, search=search), folder)

            def work() -> BlockWork:
                pace, progress = schedule.pace, schedule.progress
                return BlockWork(
                    plan, bench, progress, observer, writer.new_instance, folder.logs, remaining_s=pace.remaining_s
                )

            _announce(plan, schedule, observer, self.estimator(plan).quality_s)
            executor = LocalExecutor(work, lock.host)
            StudyDriver(
                lock,
                folder=str(bench.folder),
                writer=writer,
                observer=observer,
                executor=executor,
                schedule=schedule,
            ).run()
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
        engines = self.engines_of(plan.study)
        lock = self._open(writer, plan, source, observer, hosts=fleet.hosts())
        maker = KitMaker(engines, self._python_of, workshop.model_folder, source.folder.resolve())
        maker.kits(plan, writer, observer.note)
        schedule = Schedule(plan, lambda: self.pace(plan, engines, fleet.size), writer.folder)
        _announce(plan, schedule, observer, self.estimator(plan).quality_s)
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
        """Take the operator profiles of a study, and no trial; the same call again takes those that are missing."""
        require_linux()
        source = StudySource.of(study)
        workshop = Workshop(self.home, source.folder)
        plan = self.ready_plan(source, workshop, observer)
        if plan.refusals:
            raise ProfileError(f"{plan.refusals[0].cell.contender.name}: {plan.refusals[0].reason}")
        with folder.writing() as writer, LoadWorkers() as load:
            self._open(writer, plan, source, observer)
            run_profiles(plan, self.bench(study, load, workshop, source.folder), writer, observer, is_all=True)

    def load(self, prepared: PreparedLoad, observer: Observer, client: LoadClient) -> StudyFolder:
        """Sweep an endpoint that runs already, or search for its highest rate; the same call again continues it."""
        study, search, folder = prepared.study, prepared.search, StudyFolder(prepared.folder)
        lock = folder.lock()
        if lock is not None:
            refuse_other_load(lock, study, search, folder.path)
        if search is not None and lock and lock.search:  # its study has grown by the rates that were tried
            search = lock.search.model_copy(update={"trials": search.trials, "precision": search.precision})
            study = study.model_copy(update={"workloads": lock.plan.study.workloads})
        source = StudySource.of(study, folder.path)
        with folder.writing() as writer:
            workshop = Workshop(self.home, source.folder)
            plan = self._plan(source, workshop)
            if plan.refusals:
                raise LoadError(plan.refusals[0].reason)
            self._open(writer, plan, source, observer, search=search)
            run = EndpointRun(plan, self.bench(study, client, workshop, source.folder), writer, observer)
            if search is None:
                run.sweep()
            else:
                run.search(search)
        return folder

    def summary(self, folder: StudyFolder, records: StudyRecords | None = None) -> StudySummary:
        """From the records alone: needs neither the engines nor the model. `records`: where they were read already."""
        records = records or folder.read()
        return shorten_summary(summarize(records), path_shortener(folder, records.plan, self.home))

    def document(
        self, folder: StudyFolder, summary: StudySummary | None = None, records: StudyRecords | None = None
    ) -> "Document":
        """The report of a study, for any of the renderers."""
        records = records or folder.read()
        return report_document(records, folder, summary or self.summary(folder, records), self.home)

    def report(self, folder: StudyFolder, document: "Document | None" = None) -> Path:
        """Write report/ from the records; the path is that of report.md, and index.html lies beside it."""
        return write_report(document or self.document(folder), folder, self.home)

    def engines_of(self, study: Study) -> dict[str, Engine]:
        engines: dict[str, Engine] = {}
        for index, setup in enumerate(study.engines):
            if setup.engine in engines:
                continue
            try:
                engines[setup.engine] = registry.engine(setup.engine)
            except StudyFileError as error:
                raise StudyFileError(str(error), ("engines", index)) from error
        return engines

    def engines_with_models(self) -> list[str]:
        """Names of the installed engines that run a model."""
        return [name for name, engine in registry.engines().items() if engine.needs_model]

    def environments_of(self, plan: Plan) -> list[str]:
        engines = self.engines_of(plan.study)
        used = {contender.engine for contender in plan.contenders}
        names = (engines[setup.engine].environment for setup in plan.study.engines if setup.name in used)
        tasks = [ENVIRONMENT] if plan.study.quality is not None and plan.study.quality.tasks else []
        return sorted({*tasks, *(name for name in names if name is not None)})

    def _trust(self, source: StudySource) -> Trust:
        try:
            uses = uses_of(source.study, source.folder, self.engines_of(source.study), self.home)
        except StudyFileError as error:
            raise source.located(error) from error
        return Trust(uses, source, self.home)

    def _plan(self, source: StudySource, workshop: Workshop, target: DeviceClass | None = None) -> Plan:
        """`target`: another device than this machine's."""
        study = source.study
        device: Device = "cuda" if target else self.device
        capability = target.compute_capability if target else self.capability
        try:
            check_files(study.workloads, source.folder)
            if study.quality is not None:
                check_quality_files(study.quality, source.folder)
            return expand(
                study,
                self.engines_of(study),
                workshop.variant,
                device,
                capability=capability,
                level=None if target else self.level,
            )
        except StudyFileError as error:
            raise source.located(error) from error

    def ready_plan(
        self, source: StudySource, workshop: Workshop, observer: Observer, part: StudyPart | None = None
    ) -> Plan:
        """The plan, once its environments exist and its variants were made, or could not be."""
        plan = self._plan(source, workshop)
        plan = part.of(plan) if part else plan
        self._readiness(plan, workshop).require()
        return workshop.make_missing(plan, observer)

    def _readiness(self, plan: Plan, workshop: Workshop) -> Readiness:
        needed = {*self.environments_of(plan), *workshop.makers(plan)}
        return readiness(
            needed,
            workshop.missing_models(plan),
            self.home,
            device=self.device,
            asked_for=self._chosen_device,
            making_s=workshop.making_s(plan),
        )

    def pace(
        self, plan: Plan, engines: Mapping[str, Engine], at_once: int = 1, search: OpenCells | None = None
    ) -> StudyPace:
        return StudyPace(
            plan,
            engines,
            Estimator(plan, engines),
            available_bytes=available_memory(),
            on_device=self.device != "cpu",
            at_once=at_once,
            search=search,
        )

    def bench(self, study: Study, load: LoadClient, workshop: Workshop, folder: Path) -> Bench:
        return Bench(
            engines=self.engines_of(study),
            python_of=self._python_of,
            load=load,
            folder=folder.resolve(),
            capability=self.capability,
            words_of=cache(lambda model: word_token_ids(workshop.model_folder(model))),
        )

    def _python_of(self, environment: str) -> Path:
        return environments.python_of(environment, self.home)

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
        hosts = {THIS_HOST: self.host()} if hosts is None else hosts
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
                observer.note("measuring this machine's noise")
                began |= {"busy_cores": busy_cores, "noise": measure_noise()}
            found = found.model_copy(update=began)
        writer.write_study(source.text)
        writer.write_lock(found)
        return found

    def host(self) -> HostFacts:
        """Without the GPUs of a machine where engines compute on the CPU: they change no figure."""
        facts = collect_host_facts()
        return (
            facts if self.device == "cuda" else facts.model_copy(update={"accelerators": (), "cuda_device_order": None})
        )

    def resolve(self, plan: Plan, folder: Path, host: HostFacts) -> Lock:
        """What this run finds here; when it began is not in it."""
        return Lock(
            bitbench=__version__,
            host=host,
            environments={name: environments.versions(name, self.home) for name in self.environments_of(plan)},
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
    return parse_study(text, name=str(folder.study_file), by_hand=False)


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
    for field in sorted(type(new).model_fields.keys() - CHANGEABLE_FIELDS - set(changeable)):
        if getattr(old, field) != getattr(new, field):
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
