"""Puts a run together: plan, engines, load client, quality inputs and schedule."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from bitbench.analysis.budget import BlockPlan
from bitbench.engines.endpoint import refuse_unusual_keys
from bitbench.engines.environments import environment_python, versions
from bitbench.engines.registry import load_study_engines
from bitbench.feature import collect_feature_study_keys, collect_offers
from bitbench.loadgen.inputs import hash_input_files
from bitbench.loadgen.workers import LoadWorkers
from bitbench.machine.host import (
    BUSY_CORES,
    count_usable_threads,
    get_available_memory,
    is_disturbing,
    measure_busy_cores,
)
from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import make_estimator, ready_plan
from bitbench.planning.readiness import list_needed_environments
from bitbench.planning.variants import VariantStore
from bitbench.ports import LoadClient, Observer
from bitbench.quality.material import hash_quality_files
from bitbench.records.block_lines import BlockLines
from bitbench.records.folder import StudyFolder, Writer
from bitbench.records.kept_tables import write_kept_tables
from bitbench.records.lock import HostFacts, Lock
from bitbench.reports.document.words import format_count
from bitbench.running.block_planner import BlockPlanner, OpenPoints
from bitbench.running.loop import THIS_HOST, Schedule, run_study
from bitbench.running.mirror import Mirror
from bitbench.running.offers import Executor
from bitbench.running.quality import KitMaker, QualityKit
from bitbench.running.residence import Residence
from bitbench.running.trial import RunContext, now
from bitbench.study.environment import Device
from bitbench.study.objective import SearchLimits
from bitbench.study.plan import Plan, Point
from bitbench.study.study import FEWEST_BLOCKS, Study
from bitbench.study.study_file import StudySource, parse_study
from bitbench.util import yaml_file
from bitbench.util.errors import NotComparableError, StoreError, StudyFileError
from bitbench.util.files import read_bytes
from bitbench.util.machine_faults import require_native
from bitbench.util.units import show_duration
from bitbench.util.version import __version__

# Fields that may change between two runs into the same folder: they say how long to measure, and
# not what.
CHANGEABLE_FIELDS = {"measure", "description", "baseline"}


@dataclass(frozen=True)
class StudyPart:
    """A part of a study: fewer configs, or another rule for when it ends."""

    of: Callable[[Plan], Plan]  # returns the same plan with fewer configs
    # Returns the points that continue after a number of blocks. An empty set ends the study. With
    # None, the claims of the study decide.
    goes_on: Callable[[StudyFolder, int], frozenset[Point]] | None = None


def measure_study(
    study: Path | Study | StudySource,
    into: Path | StudyFolder | None,
    observer: Observer,
    workplace: Workplace,
    *,
    budget_s: float | None = None,
    part: StudyPart | None = None,
    on: Executor | None = None,
    mirror: str | None = None,
    key_from: Collection[str] = (),
) -> StudyFolder:
    """Run a study, or what its folder still lacks, and return the folder.

    `budget_s` overrides the budget of the study. `part` limits what is measured. `on` measures
    instead of this machine. `mirror` is a URL that records are copied from before the run, and to
    after each group. `key_from` names further variables whose values may be sent as API keys.
    """
    require_native()
    source = StudySource.of(study).replace_budget(budget_s)
    if part is None:
        _refuse_what_another_command_runs(source)
    try:
        refuse_unusual_keys(source.study, key_from)
    except StudyFileError as error:
        raise source.locate_error(error) from error
    store = VariantStore(workplace.home, source.folder)
    selections = [part.of] if part else []
    plan = ready_plan(source, store, workplace, observer, *selections)
    folder = into if isinstance(into, StudyFolder) else StudyFolder(into or Path(plan.study.name))
    study_run = StudyRun(workplace, plan, source, store, folder, observer)
    if mirror is None:
        _measure_run(on, study_run, part)
        return folder
    copied = Mirror(mirror, folder, observer)
    copied.fetch()
    try:
        _measure_run(on, replace(study_run, mirror=copied), part)
    finally:
        copied.push(is_last=True)
    return folder


def _measure_run(on: Executor | None, study_run: "StudyRun", part: StudyPart | None) -> None:
    """Measure a study here or elsewhere, and write its records as columns, too."""
    if on is None:
        _measure_here(study_run, part)
    else:
        on(study_run)
    write_kept_tables(study_run.folder)


def _measure_here(study_run: "StudyRun", part: StudyPart | None) -> None:
    """Measure a study on this machine, and then run the extensions that it asks for."""
    folder = study_run.folder
    search: OpenPoints | None = None
    if part is not None and part.goes_on is not None:
        search = partial(part.goes_on, folder)
    with folder.open_writer() as writer, LoadWorkers() as load:
        study_run.begin(writer)
        run = replace(study_run.context(load), quality=study_run.make_quality_kits(writer))
        schedule = study_run.schedule(search=search)
        run_study(run, schedule, writer, study_run.copy_records)
        for key, offer in collect_offers("after_trials").items():
            if key in study_run.plan.study.sections:
                offer.load()(run, writer)


@dataclass(frozen=True)
class StudyRun:
    """A planned study whose variants are there, ready to be measured."""

    at: Workplace
    plan: Plan
    source: StudySource
    store: VariantStore
    folder: StudyFolder
    observer: Observer
    mirror: Mirror | None = None

    def begin(
        self,
        writer: Writer,
        *,
        hosts: Mapping[str, HostFacts] | None = None,
        name: str = THIS_HOST,
        search: SearchLimits | None = None,
    ) -> Lock:
        """Write the study and its lock to the folder, and return the lock.

        The study runs on `hosts`, or else on this machine under `name`. A new folder gets a new
        lock. Raise StoreError if the folder has another study, and NotComparableError if its host
        or versions differ.
        """
        folder = writer.folder
        old_lock = folder.lock()
        is_here = hosts is None
        if hosts is None:
            hosts = {name: self.at.host()}
        host = _choose_host_facts(hosts, old_lock)
        lock = resolve_run(self.plan, self.source.folder, host, self.at.home)
        lock = lock.model_copy(update={"hosts": dict(hosts)})
        busy_cores = measure_busy_cores() if is_here else 0.0
        if busy_cores > BUSY_CORES:
            self.observer.warn(describe_busy_machine(self.plan.study, self.at.device, busy_cores))
        if old_lock:
            # A search writes a new rate into the study before it is in the lock.
            changeable = {"workloads"} if search else set[str]()
            refuse_other_study(_read_study(folder), self.plan.study, changeable)
            refuse_other_facts(old_lock, lock, folder)
            lock = old_lock.merge_run(lock)
        else:
            refuse_other_file(folder, self.source.text)
            began: dict[str, object] = {"created_at": now(), "search": search}
            if is_here:
                began["busy_cores"] = busy_cores
            lock = lock.model_copy(update=began)
        writer.write_study(self.source.text)
        writer.write_lock(lock)
        if self.mirror is not None:
            self.mirror.begin()
        return lock

    def copy_records(self) -> None:
        """Copy the records to the mirror, if there is one. Call it only while no trial runs."""
        if self.mirror is not None:
            self.mirror.push()

    def context(self, load: LoadClient) -> RunContext:
        """Return the context of this run, without its quality inputs."""
        run = run_context(
            self.plan, self.store, self.source.folder, self.at, load=load, observer=self.observer
        )
        return replace(run, rows_folder=self.folder.requests)

    def make_quality_kits(self, writer: Writer) -> dict[str, QualityKit]:
        """Return the quality inputs by model, and write them to the folder."""
        maker = run_kit_maker(self.plan.study, self.store, self.source.folder, self.at.home)
        return maker.kits(self.plan, writer, self.observer.note)

    def schedule(self, search: OpenPoints | None = None) -> Schedule:
        """Return the schedule of what the folder lacks, and announce it to the observer."""
        residence = make_residence(self.plan, self.at)

        def make_planner(_: BlockLines) -> BlockPlanner:
            estimator = make_estimator(self.plan, self.at)
            return BlockPlanner(self.plan, estimator, residence, search=search)

        schedule = Schedule(self.plan, make_planner, residence, self.folder)
        self.observer.study_started(self.plan, schedule.measured)
        assert isinstance(schedule.planner, BlockPlanner)
        quality_s = make_estimator(self.plan, self.at).quality_s
        _announce_budget(self.plan, schedule.planner, self.observer, quality_s)
        return schedule


def describe_busy_machine(study: Study, device: Device, busy_cores: float) -> str:
    """Return a warning that other work widens intervals, or that `OtherWork` will reject trials."""
    busy = f"other work keeps {busy_cores:.1f} of {count_usable_threads()} cores busy"
    computes_here = any(engine.needs_model for engine in load_study_engines(study).values())
    if device == "cpu" and computes_here and is_disturbing(busy_cores):
        return f"{busy}: trials will be rejected until it ends"
    return f"{busy}; expect wide intervals"


def run_context(
    plan: Plan,
    store: VariantStore,
    folder: Path,
    workplace: Workplace,
    *,
    load: LoadClient,
    observer: Observer,
) -> RunContext:
    """Return the context of a run, without its quality inputs. `folder` has the study file."""
    return RunContext(
        plan=plan,
        engines=load_study_engines(plan.study),
        python_of=partial(environment_python, home=workplace.home),
        load=load,
        observer=observer,
        folder=folder.resolve(),
        capability=workplace.capability,
        words_of=cache(store.words),
        on_device=workplace.device != "cpu",
    )


def run_kit_maker(study: Study, store: VariantStore, folder: Path, home: Path) -> KitMaker:
    """Return the maker of the quality inputs of this study."""
    return KitMaker(
        load_study_engines(study),
        partial(environment_python, home=home),
        store.model_folder,
        folder.resolve(),
    )


def make_residence(plan: Plan, workplace: Workplace) -> Residence:
    """Return the memory budget of this machine for the configs of a plan."""
    return Residence(
        plan,
        load_study_engines(plan.study),
        available_bytes=get_available_memory(),
        on_device=workplace.device != "cpu",
    )


def resolve_run(plan: Plan, folder: Path, host: HostFacts, home: Path) -> Lock:
    """Return the lock of a run that begins here now, without the time at which it began."""
    hashes: dict[str, str] = {}
    for variant in plan.variants:
        if variant.content_hash is not None:
            hashes[variant.name] = variant.content_hash
    files = hash_input_files(plan.study.workloads, folder)
    if plan.study.quality:
        files |= hash_quality_files(plan.study.quality, folder)
    return Lock(
        bitbench=__version__,
        host=host,
        environments={name: versions(name, home) for name in list_needed_environments(plan)},
        variants=hashes,
        files=files,
        plan=plan,
    )


def _choose_host_facts(hosts: Mapping[str, HostFacts], lock: Lock | None) -> HostFacts:
    """Return the facts that the machines of a study share.

    The facts in the lock win if the first machine matches them.
    """
    first = next(iter(hosts.values()))
    return first if lock is None or lock.host.differences(first) else lock.host


def _read_study(folder: StudyFolder) -> Study:
    missing = (
        f"{folder.path} has a lock.json but no study.yaml; "
        "restore it, or give another folder with --into"
    )
    text = yaml_file.read_yaml_text(folder.study_file, missing=missing, error=StoreError)
    return parse_study(text, name=str(folder.study_file))


def _refuse_what_another_command_runs(source: StudySource) -> None:
    """Raise StudyFileError for a file with a section that `bitbench run` would ignore."""
    for key, section in source.study.sections.items():
        if section.run_by is not None:
            command = f"bitbench {section.run_by} {source.file or 'FILE'}"
            problem = f"`{key}` is not for `bitbench run`; run it with: {command}"
            raise source.locate_error(StudyFileError(problem, (key,)))


def refuse_other_study(old: Study, new: Study, changeable: Collection[str] = ()) -> None:
    """Raise StoreError if two studies differ in a field that may not change.

    The fields that may change are CHANGEABLE_FIELDS, keys of features that say so, and
    `changeable`.
    """
    may_change = set(CHANGEABLE_FIELDS)
    for key, offer in collect_feature_study_keys().items():
        if offer.load().may_change:
            may_change.add(key)
    fields = {*type(new).model_fields, *old.sections, *new.sections}
    for field in sorted(fields - may_change - set(changeable)):
        if getattr(old, field, None) != getattr(new, field, None):
            others = ", ".join(f"`{name}`" for name in sorted(may_change))
            raise StoreError(
                f"this folder contains another study: `{field}` differs from the file; "
                f"give another folder with --into (only {others} may change)"
            )


def refuse_other_file(folder: StudyFolder, text: str) -> None:
    """Raise StoreError if the folder has a study.yaml with another text.

    Without a run that began, the file belongs to the user.
    """
    if folder.study_file.exists() and read_bytes(folder.study_file) != text.encode():
        raise StoreError(
            f"{folder.study_file} is another study, and would be overwritten; "
            "give another folder with --into"
        )


def refuse_other_facts(lock: Lock, current: Lock, folder: StudyFolder) -> None:
    """Raise NotComparableError if the host or the versions have changed.

    Otherwise trials from before and after the change would be averaged together.
    """
    changes = "; ".join(lock.changes(current))
    if changes:
        raise NotComparableError(
            f"{folder.path} was measured under other conditions ({changes}); "
            "give a new folder with --into"
        )


def _announce_budget(
    plan: Plan, planner: BlockPlanner, observer: Observer, quality_s: float
) -> None:
    """Tell the observer how many starts and rounds the budget buys, if the study has one."""
    planned = planner.planned()
    if planned is not None:
        quality = f"; quality takes about {show_duration(quality_s)} besides" if quality_s else ""
        observer.note(f"the budget buys {_describe_planned_blocks(planned)}{quality}")
    elif plan.study.measure.budget is not None:
        fewest = plan.study.measure.starts.min
        needed = max(FEWEST_BLOCKS, fewest)
        consequence = "; nothing will be decided" if fewest < FEWEST_BLOCKS else ""
        observer.note(
            f"the budget is less than {needed} starts × 1 round take: "
            f"{format_count(fewest, 'start')} will be measured{consequence}"
        )


def _describe_planned_blocks(planned: BlockPlan) -> str:
    """Return text such as `3 starts × 4 rounds; ratios to about ±15 %`."""
    size = f"{format_count(planned.blocks, 'start')} × {format_count(planned.rounds, 'round')}"
    return f"{size}; ratios to about ±{100 * planned.relative_half_width:.0f} %"
