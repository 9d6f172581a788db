"""Puts a run together: plan, engines, load client, quality and schedule; on this machine, on others, on an endpoint,
or from the options of `bitbench quality`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from bitbench.analysis.budget import BlockPlan
from bitbench.engines.endpoint import refuse_unusual_keys
from bitbench.engines.environments import environment_python, versions
from bitbench.engines.registry import registered_engines_of
from bitbench.feature import offered, study_keys_of_features
from bitbench.loadgen.inputs import hash_input_files
from bitbench.loadgen.workers import LoadWorkers
from bitbench.machine.host import (
    BUSY_CORES,
    available_memory,
    cores_in_use,
    disturbs,
    usable_threads,
)
from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import estimator_of, ready_plan
from bitbench.planning.readiness import readiness_environments
from bitbench.planning.variants import VariantStore
from bitbench.ports import LoadClient, Observer
from bitbench.quality.material import hash_quality_files
from bitbench.records.block_lines import BlockLines
from bitbench.records.folder import StudyFolder, Writer
from bitbench.records.kept_tables import write_kept_tables
from bitbench.records.lock import HostFacts, Lock
from bitbench.reports.document.words import plural
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
from bitbench.util.errors import (
    NotComparableError,
    StoreError,
    StudyFileError,
)
from bitbench.util.files import read_bytes
from bitbench.util.machine_faults import require_native
from bitbench.util.units import show_duration
from bitbench.util.version import __version__

# What may change in a study file between two runs into the same folder: how long to look, not what to look at.
CHANGEABLE_FIELDS = {"measure", "description", "baseline"}


@dataclass(frozen=True)
class StudyPart:
    """Not all of a study's configs, or not as long as the study's own claims would have it."""

    of: Callable[[Plan], Plan]  # the same plan with fewer configs
    # Which points go on after so many blocks; none: it ends. None: as the claims of the study say.
    goes_on: Callable[[StudyFolder, int], frozenset[Point]] | None = None


def measure_study(
    study: Path | Study | StudySource,
    into: Path | StudyFolder | None,
    observer: Observer,
    at: Workplace,
    *,
    budget_s: float | None = None,
    part: StudyPart | None = None,
    on: Executor | None = None,
    mirror: str | None = None,
    key_from: Collection[str] = (),
) -> StudyFolder:
    """Run what is left of a study; the same call again continues it. `budget_s` overrides the study's own; `part`: not
    all of it. `on`: who measures; else this machine does. `mirror`: a URL where records are copied, and come from.
    `key_from`: variables whose values a study may send as API keys, beside the usual ones."""
    require_native()
    source = StudySource.of(study).with_budget(budget_s)
    if part is None:
        _refuse_what_another_command_runs(source)
    try:
        refuse_unusual_keys(source.study, key_from)
    except StudyFileError as error:
        raise source.located(error) from error
    store = VariantStore(at.home, source.folder)
    plan = ready_plan(source, store, at, observer, *([part.of] if part else []))
    folder = into if isinstance(into, StudyFolder) else StudyFolder(into or Path(plan.study.name))
    if mirror is None:
        _measure_run(on, StudyRun(at, plan, source, store, folder, observer), part)
        return folder
    copied = Mirror(mirror, folder, observer)
    copied.fetch()
    try:
        _measure_run(on, StudyRun(at, plan, source, store, folder, observer, copied), part)
    finally:
        copied.push(is_last=True)
    return folder


def _measure_run(on: Executor | None, ready: "StudyRun", part: StudyPart | None) -> None:
    """To its end, with its records as columns."""
    if on is None:
        _measure_here(ready, part)
    else:
        on(ready)
    write_kept_tables(ready.folder)


def _measure_here(ready: "StudyRun", part: StudyPart | None) -> None:
    folder = ready.folder
    with folder.writing() as writer, LoadWorkers() as load:
        ready.begin(writer)
        run = replace(ready.context(load), quality=ready.quality_kits(writer))
        goes_on = part and part.goes_on
        schedule = ready.schedule(
            search=(lambda blocks: goes_on(folder, blocks)) if goes_on else None
        )
        run_study(run, schedule, writer, ready.copy_records)
        for key, offer in offered("after_trials").items():
            if key in ready.plan.study.sections:
                offer.load()(run, writer)


@dataclass(frozen=True)
class StudyRun:
    """A study that is planned and has its variants, for whoever measures it."""

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
        """Write down what is measured, and on which `hosts`; None: on this machine, called `name`. A new folder gets
        its lock; an old one must be about the same study, on the same host and versions: else NotComparableError or
        StoreError."""
        folder, lock, is_here = writer.folder, writer.folder.lock(), hosts is None
        hosts = {name: self.at.host()} if hosts is None else hosts
        found = resolve_run(self.plan, self.source.folder, _class_of(hosts, lock), self.at.home)
        found = found.model_copy(update={"hosts": dict(hosts)})
        busy_cores = cores_in_use() if is_here else 0.0
        if busy_cores > BUSY_CORES:
            self.observer.warn(busy_machine_warning(self.plan.study, self.at.device, busy_cores))
        if lock:
            # A search writes a new rate into the study before it is in the lock.
            refuse_other_study(
                _study_in(folder), self.plan.study, {"workloads"} if search else set()
            )
            refuse_other_facts(lock, found, folder)
            found = lock.resumed(found)
        else:
            refuse_other_file(folder, self.source.text)
            began: dict[str, object] = {"created_at": now(), "search": search}
            if is_here:
                began["busy_cores"] = busy_cores
            found = found.model_copy(update=began)
        writer.write_study(self.source.text)
        writer.write_lock(found)
        if self.mirror is not None:
            self.mirror.begin()
        return found

    def copy_records(self) -> None:
        """To the mirror, if there is one: after each group, while no trial runs."""
        if self.mirror is not None:
            self.mirror.push()

    def context(self, load: LoadClient) -> RunContext:
        run = run_context(
            self.plan, self.store, self.source.folder, self.at, load=load, observer=self.observer
        )
        return replace(run, rows_folder=self.folder.requests)

    def quality_kits(self, writer: Writer) -> dict[str, QualityKit]:
        """By model; what is asked about quality is in the folder then."""
        maker = run_kit_maker(self.plan.study, self.store, self.source.folder, self.at.home)
        return maker.kits(self.plan, writer, self.observer.note)

    def schedule(self, search: OpenPoints | None = None) -> Schedule:
        """What the folder lacks, told to the observer."""
        residence = study_residence(self.plan, self.at)

        def make_planner(_: BlockLines) -> BlockPlanner:
            estimator = estimator_of(self.plan, self.at)
            return BlockPlanner(self.plan, estimator, residence, search=search)

        schedule = Schedule(self.plan, make_planner, residence, self.folder)
        self.observer.study_started(self.plan, schedule.measured)
        assert isinstance(schedule.planner, BlockPlanner)
        _announce_budget(
            self.plan, schedule.planner, self.observer, estimator_of(self.plan, self.at).quality_s
        )
        return schedule


def busy_machine_warning(study: Study, device: Device, busy_cores: float) -> str:
    """Say what other work does to trials: where `OtherWork` rejects them, they do not only vary more."""
    busy = f"other work keeps {busy_cores:.1f} of {usable_threads()} cores busy"
    computes_here = any(engine.needs_model for engine in registered_engines_of(study).values())
    if device == "cpu" and computes_here and disturbs(busy_cores):
        return f"{busy}: trials will be rejected until it ends"
    return f"{busy}; expect wide intervals"


def run_context(
    plan: Plan,
    store: VariantStore,
    folder: Path,
    at: Workplace,
    *,
    load: LoadClient,
    observer: Observer,
) -> RunContext:
    """`folder`: of the study file. Without what quality needs."""
    return RunContext(
        plan=plan,
        engines=registered_engines_of(plan.study),
        python_of=partial(environment_python, home=at.home),
        load=load,
        observer=observer,
        folder=folder.resolve(),
        capability=at.capability,
        words_of=cache(store.words),
        on_device=at.device != "cpu",
    )


def run_kit_maker(study: Study, store: VariantStore, folder: Path, home: Path) -> KitMaker:
    return KitMaker(
        registered_engines_of(study),
        partial(environment_python, home=home),
        store.model_folder,
        folder.resolve(),
    )


def study_residence(plan: Plan, at: Workplace) -> Residence:
    return Residence(
        plan,
        registered_engines_of(plan.study),
        available_bytes=available_memory(),
        on_device=at.device != "cpu",
    )


def resolve_run(plan: Plan, folder: Path, host: HostFacts, home: Path) -> Lock:
    """What this run finds here; when it began is not in it."""
    return Lock(
        bitbench=__version__,
        host=host,
        environments={name: versions(name, home) for name in readiness_environments(plan)},
        variants={
            variant.name: variant.content_hash
            for variant in plan.variants
            if variant.content_hash is not None
        },
        files={
            **hash_input_files(plan.study.workloads, folder),
            **(hash_quality_files(plan.study.quality, folder) if plan.study.quality else {}),
        },
        plan=plan,
    )


def _class_of(hosts: Mapping[str, HostFacts], lock: Lock | None) -> HostFacts:
    """That of all machines of a study, which are alike: the lock's where they are like it, else the first one's."""
    first = next(iter(hosts.values()))
    return first if lock is None or lock.host.differences(first) else lock.host


def _study_in(folder: StudyFolder) -> Study:
    missing = f"{folder.path} has a lock.json but no study.yaml; restore it, or give another folder with --into"
    text = yaml_file.read_yaml_text(folder.study_file, missing=missing, error=StoreError)
    return parse_study(text, name=str(folder.study_file))


def _refuse_what_another_command_runs(source: StudySource) -> None:
    """Raises StudyFileError for a file with a section that `bitbench run` would pass over."""
    for key, section in source.study.sections.items():
        if section.run_by is not None:
            asks = f"`{key}` is not for `bitbench run`; run it with: bitbench {section.run_by} {source.file or 'FILE'}"
            raise source.located(StudyFileError(asks, (key,)))


def refuse_other_study(old: Study, new: Study, changeable: Collection[str] = ()) -> None:
    may_change = CHANGEABLE_FIELDS | {
        key for key, offer in study_keys_of_features().items() if offer.load().may_change
    }
    fields = {*type(new).model_fields, *old.sections, *new.sections}
    for field in sorted(fields - may_change - set(changeable)):
        if getattr(old, field, None) != getattr(new, field, None):
            others = ", ".join(f"`{name}`" for name in sorted(may_change))
            raise StoreError(
                f"this folder contains another study: `{field}` differs from the file; "
                f"give another folder with --into (only {others} may change)"
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


def _announce_budget(
    plan: Plan, planner: BlockPlanner, observer: Observer, quality_s: float
) -> None:
    """Say what the budget buys, if there is one."""
    if (planned := planner.planned()) is not None:
        besides = f"; quality takes about {show_duration(quality_s)} besides" if quality_s else ""
        observer.note(f"the budget buys {_bought(planned)}{besides}")
    elif plan.study.measure.budget is not None:
        needed = max(FEWEST_BLOCKS, plan.study.measure.starts.min)
        fewest = plan.study.measure.starts.min
        note = f"the budget is less than {needed} starts × 1 round take"
        decided = "; nothing will be decided" if fewest < FEWEST_BLOCKS else ""
        observer.note(f"{note}: {plural(fewest, 'start')} will be measured{decided}")


def _bought(planned: BlockPlan) -> str:
    """`3 starts × 4 rounds; ratios to about ±15 %`"""
    size = f"{plural(planned.blocks, 'start')} × {plural(planned.rounds, 'round')}"
    return f"{size}; ratios to about ±{100 * planned.relative_half_width:.0f} %"
