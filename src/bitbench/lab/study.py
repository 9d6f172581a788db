"""Joins the stages: a study file in, a study folder and its report out."""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bitbench import __version__, environments
from bitbench.core.asked.study import Study
from bitbench.core.cell import Plan
from bitbench.core.environment import Device
from bitbench.core.found.summary import StudySummary
from bitbench.core.ports import Engine, LoadClient, Observer
from bitbench.core.recorded.lock import Lock
from bitbench.core.recorded.study import StudyRecords
from bitbench.engines import registry
from bitbench.ground import yaml_file
from bitbench.ground.errors import LoadError, NotComparableError, ProfileError, StoreError, StudyFileError
from bitbench.ground.safe_files import read_bytes
from bitbench.lab.bench import Bench
from bitbench.lab.endpoint import EndpointRun
from bitbench.lab.group import GroupRunner
from bitbench.lab.load_study import PreparedLoad
from bitbench.lab.pace import OpenCells, StudyPace
from bitbench.lab.part import StudyPart
from bitbench.lab.profile import run_profiles
from bitbench.lab.quality import KitMaker, QualityDraft
from bitbench.lab.readiness import Readiness, readiness
from bitbench.lab.report import path_shortener, report_document, write_report
from bitbench.lab.source import StudySource
from bitbench.lab.trial import TrialDraft, now
from bitbench.lab.trust import Trust
from bitbench.lab.uses import uses_of
from bitbench.lab.variants import Workshop
from bitbench.load.inputs import check_files, hash_files
from bitbench.load.workers import LoadWorkers
from bitbench.models.words import word_token_ids
from bitbench.planning.estimate import Estimator
from bitbench.planning.expand import expand
from bitbench.planning.schedule import Progress
from bitbench.planning.study_file import parse_study
from bitbench.probes.busy import BUSY_CORES, cores_in_use
from bitbench.probes.host import collect_host_facts, has_cuda
from bitbench.probes.memory import available_memory
from bitbench.probes.noise import measure_noise
from bitbench.quality.files import check_quality_files, hash_quality_files
from bitbench.quality.tasks import ENVIRONMENT
from bitbench.report.paths import shorten_summary
from bitbench.statistics.budget_plan import BlockPlan
from bitbench.statistics.standing import baseline_of, kept_back
from bitbench.statistics.summarize import summarize
from bitbench.store.folder import StudyFolder, Writer

if TYPE_CHECKING:
    from bitbench.report.document.model import Document

# What may change in a study file between two runs into the same folder: how long to look, not what to look at.
CHANGEABLE_FIELDS = {"measure", "description", "baseline", "profile", "tune"}


def default_home() -> Path:
    """Where environments and models are kept: $BITBENCH_HOME, or a folder in the user's cache."""
    if chosen := os.environ.get("BITBENCH_HOME"):
        return Path(chosen).expanduser().resolve()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "bitbench"


class Lab:
    """One workplace: its home folder, and what can be done there."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or default_home()

    @property
    def device(self) -> Device:
        """What engines compute on here."""
        return "cuda" if has_cuda() else "cpu"

    def plan(self, study: Path | Study | StudySource) -> Plan:
        """What a study would run, and what not and why. Runs nothing, and needs neither weights nor environments."""
        return self.look_ahead(study)[0]

    def look_ahead(self, study: Path | Study | StudySource) -> tuple[Plan, Readiness]:
        """The plan, and what is missing here before it can run."""
        source = StudySource.of(study)
        workshop = Workshop(self.home, source.folder)
        plan = self._plan(source, workshop)
        return plan, self._readiness(plan, workshop)

    def trust(self, study: Path | Study | StudySource) -> Trust:
        """What a study uses beyond measuring, and whether that has been allowed."""
        return self._trust(StudySource.of(study))

    def estimator(self, plan: Plan) -> Estimator:
        return Estimator(plan, self.engines_of(plan.study))

    def run(
        self,
        study: Path | Study | StudySource,
        into: Path | None,
        observer: Observer,
        *,
        budget_s: float | None = None,
        part: StudyPart | None = None,
    ) -> StudyFolder:
        """Run what is left of a study; the same call again continues it. `budget_s` overrides the study's own; `part`:
        not all of it. Raises NotTrustedError for a file that uses what has not been allowed here."""
        source = StudySource.of(study).with_budget(budget_s)
        if source.study.tune is not None and part is None:
            asks = f"`tune` asks for a search; run it with: bitbench tune {source.file or 'FILE'}"
            raise source.located(StudyFileError(asks, ("tune",)))
        self._trust(source).require()
        workshop = Workshop(self.home, source.folder)
        plan = self._ready_plan(source, workshop, observer, part)
        folder = StudyFolder(into or Path(plan.study.name))
        with folder.writing() as writer, LoadWorkers() as load:
            self._open(writer, plan, source, observer)
            bench = self._bench(plan.study, load, workshop, source.folder)
            maker = KitMaker(bench.engines, bench.python_of, workshop.model_folder, bench.folder)
            bench = replace(bench, quality=maker.kits(plan, writer, observer.note))
            goes_on = part and part.goes_on
            search = (lambda blocks: goes_on(folder, blocks)) if goes_on else None
            _run_until_done(plan, bench, writer, observer, self._pace(plan, bench, search))
            run_profiles(plan, bench, writer, observer)
        return folder

    def profile(self, study: Study, folder: StudyFolder, observer: Observer) -> None:
        """Take the operator profiles of a study, and no trial; the same call again takes those that are missing."""
        source = StudySource.of(study)
        workshop = Workshop(self.home, source.folder)
        plan = self._ready_plan(source, workshop, observer)
        if plan.refusals:
            raise ProfileError(f"{plan.refusals[0].cell.contender.name}: {plan.refusals[0].reason}")
        with folder.writing() as writer, LoadWorkers() as load:
            self._open(writer, plan, source, observer)
            run_profiles(plan, self._bench(study, load, workshop, source.folder), writer, observer, is_all=True)

    def load(self, prepared: PreparedLoad, observer: Observer, client: LoadClient) -> StudyFolder:
        """Sweep an endpoint that runs already, or search for its highest rate; the same call again continues it."""
        study, search, folder = prepared.study, prepared.search, StudyFolder(prepared.folder)
        lock = folder.lock()
        if search is not None and lock and lock.search:  # its study has grown by the rates that were tried
            search = lock.search.model_copy(update={"trials": search.trials, "precision": search.precision})
            study = study.model_copy(update={"workloads": lock.plan.study.workloads})
        source = StudySource.of(study, folder.path)
        with folder.writing() as writer:
            workshop = Workshop(self.home, source.folder)
            plan = self._plan(source, workshop)
            if plan.refusals:
                raise LoadError(plan.refusals[0].reason)
            self._open(writer, plan, source, observer)
            run = EndpointRun(plan, self._bench(study, client, workshop, source.folder), writer, observer)
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

    def _plan(self, source: StudySource, workshop: Workshop) -> Plan:
        study = source.study
        try:
            check_files(study.workloads, source.folder)
            if study.quality is not None:
                check_quality_files(study.quality, source.folder)
            return expand(study, self.engines_of(study), workshop.variant, self.device)
        except StudyFileError as error:
            raise source.located(error) from error

    def _ready_plan(
        self, source: StudySource, workshop: Workshop, observer: Observer, part: StudyPart | None = None
    ) -> Plan:
        """The plan, once its environments exist and its variants were made, or could not be."""
        plan = self._plan(source, workshop)
        plan = part.of(plan) if part else plan
        self._readiness(plan, workshop).require()
        return workshop.make_missing(plan, observer)

    def _readiness(self, plan: Plan, workshop: Workshop) -> Readiness:
        needed = {*self.environments_of(plan), *workshop.makers(plan)}
        return readiness(needed, workshop.missing_models(plan), self.home)

    def _pace(self, plan: Plan, bench: Bench, search: OpenCells | None) -> StudyPace:
        return StudyPace(
            plan,
            bench.engines,
            Estimator(plan, bench.engines),
            available_bytes=available_memory(),
            on_device=self.device != "cpu",
            search=search,
        )

    def _bench(self, study: Study, load: LoadClient, workshop: Workshop, folder: Path) -> Bench:
        return Bench(
            engines=self.engines_of(study),
            python_of=lambda name: environments.python_of(name, self.home),
            load=load,
            folder=folder.resolve(),
            words_of=cache(lambda model: word_token_ids(workshop.model_folder(model))),
        )

    def _open(self, writer: Writer, plan: Plan, source: StudySource, observer: Observer) -> None:
        """A new folder gets its lock; an old one must be about the same study, on the same host and versions."""
        folder, lock = writer.folder, writer.folder.lock()
        found = self._resolve(plan, source.folder)
        busy_cores = cores_in_use()
        if busy_cores > BUSY_CORES:
            observer.warn(f"other work keeps {busy_cores:.1f} cores of this machine busy; expect wide intervals")
        if lock:
            refuse_other_study(_study_in(folder), plan.study)
            refuse_other_facts(lock, found, folder)
            found = lock.resumed(found)
        else:
            refuse_other_file(folder, source.text)
            observer.note("measuring this machine's noise")
            began = {"created_at": now(), "busy_cores": busy_cores, "noise": measure_noise()}
            found = found.model_copy(update=began)
        writer.write_study(source.text)
        writer.write_lock(found)

    def _resolve(self, plan: Plan, folder: Path) -> Lock:
        """What this run finds here; when it began is not in it."""
        return Lock(
            bitbench=__version__,
            host=collect_host_facts(),
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


def _study_in(folder: StudyFolder) -> Study:
    missing = f"{folder.path} has a lock.json but no study.yaml; restore it, or give another folder with --into"
    text = yaml_file.read_text(folder.study_file, missing=missing, error=StoreError)
    return parse_study(text, name=str(folder.study_file), by_hand=False)


def refuse_other_study(old: Study, new: Study) -> None:
    for field in sorted(type(new).model_fields.keys() - CHANGEABLE_FIELDS):
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


def _run_until_done(plan: Plan, bench: Bench, writer: Writer, observer: Observer, pace: StudyPace) -> None:
    trials, instances = writer.folder.trials(), writer.folder.instances()
    progress = Progress(plan, pace, baseline_of(plan))
    progress.add([*trials, *writer.folder.quality_records()])
    for trial in trials:
        pace.add(trial)
    for instance in instances:
        pace.add(instance)
    observer.study_started(plan, sum(trial.kind == "measured" for trial in trials))
    if (planned := pace.planned()) is not None:
        confirmed = "; one more start confirms the best" if kept_back(plan) else ""
        observer.note(f"the budget buys {_bought(planned)}{confirmed}")
    while (group := progress.next_group()) is not None:
        observer.group_started(group, pace.remaining_s())
        count = 0
        for draft in GroupRunner(group, plan, bench, progress, observer, writer.new_instance).run():
            if isinstance(draft, QualityDraft):
                measured = writer.append_quality(draft.record, draft.scores)
                progress.add([measured])
                observer.quality_finished(measured)
            elif isinstance(draft, TrialDraft):
                record = writer.append_trial(draft.record, draft.requests)
                progress.add([record])
                pace.add(record)
                observer.trial_finished(record)
            else:
                writer.append_instance(draft)
                pace.add(draft)
                observer.instance_ready(draft)
                continue
            count += 1
        if count == 0 and progress.next_group() == group:
            raise StoreError(f"{group.name} left no trial; see the logs in {writer.folder.logs}")


def _bought(planned: BlockPlan) -> str:
    """`3 starts × 4 rounds; ratios to about ±15 %`"""
    return f"{planned.blocks} starts × {planned.rounds} rounds; ratios to about ±{planned.relative_half_width:.0%}"
