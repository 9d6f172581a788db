"""Joins the stages: a study file in, a study folder and its report out."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bitbench.engines import registry
from bitbench.engines.environments.installed import python_of
from bitbench.loadgen.inputs import check_files
from bitbench.measure.estimate import Estimator
from bitbench.measure.expand import expand
from bitbench.measure.machine.gpus import survey_gpus
from bitbench.measure.machine.host import collect_host_facts, processor_level
from bitbench.measure.readiness import Readiness, readiness
from bitbench.measure.requested_uses import uses_of
from bitbench.measure.trust import Trust
from bitbench.measure.variants import Workshop
from bitbench.ports import Engine, LoadClient, Observer
from bitbench.quality.files import check_quality_files
from bitbench.quality.tasks import ENVIRONMENT
from bitbench.records.host import HostFacts
from bitbench.study.capability import Capability
from bitbench.study.environment import Device
from bitbench.study.plan import Plan
from bitbench.study.processor import Level
from bitbench.study.source import StudySource
from bitbench.study.study import Study
from bitbench.util.errors import StudyFileError

if TYPE_CHECKING:
    from bitbench.analysis.results.summary import StudySummary
    from bitbench.measure.executors import Executor
    from bitbench.measure.load_study import PreparedLoad
    from bitbench.measure.partial_run import StudyPart
    from bitbench.measure.runner import StudyRunner
    from bitbench.records.folder import StudyFolder
    from bitbench.records.study_records import StudyRecords
    from bitbench.reports.document.model import Document
    from bitbench.reports.drawing import Drawing


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
        plan = self.planned(source, workshop)
        return plan, self._readiness(plan, workshop)

    def trust(self, study: Path | Study | StudySource) -> Trust:
        """What a study uses beyond measuring, and whether that has been allowed."""
        return self._trust(StudySource.of(study))

    def estimator(self, plan: Plan) -> Estimator:
        return Estimator(plan, self.engines_of(plan.study), self.level)

    def run(
        self,
        study: Path | Study | StudySource,
        into: "Path | StudyFolder | None",
        observer: Observer,
        *,
        budget_s: float | None = None,
        part: "StudyPart | None" = None,
        on: "Executor | None" = None,
    ) -> "StudyFolder":
        """Run what is left of a study; the same call again continues it. `budget_s` overrides the study's own; `part`:
        not all of it. `on`: who measures; else this machine does. Raises NotTrustedError for a file that uses what has
        not been allowed here."""
        return self.runner.run(study, into, observer, budget_s=budget_s, part=part, on=on)

    def load(self, prepared: "PreparedLoad", observer: Observer, client: LoadClient) -> "StudyFolder":
        """Sweep an endpoint that runs already, or search for its highest rate; the same call again continues it."""
        return self.runner.load(prepared, observer, client)

    @property
    def runner(self) -> "StudyRunner":
        """What measures. It imports as much as all the rest, which a command that plans need not wait for."""
        from bitbench.measure.runner import StudyRunner

        return StudyRunner(self)

    def summary(self, folder: "StudyFolder", records: "StudyRecords | None" = None) -> "StudySummary":
        """From the records alone: needs neither the engines nor the model. `records`: where they were read already."""
        from bitbench.reports.write import report_summary

        return report_summary(records or folder.read(), folder, self.home)

    def document(
        self,
        folder: "StudyFolder",
        summary: "StudySummary | None" = None,
        records: "StudyRecords | None" = None,
    ) -> "Document":
        """The report of a study, for any of the renderers."""
        from bitbench.reports.write import report_document

        records = records or folder.read()
        return report_document(records, folder, summary or self.summary(folder, records), self.home)

    def report(
        self, folder: "StudyFolder", document: "Document | None" = None, drawing: "Drawing | None" = None
    ) -> Path:
        """Write report/ from the records; the path is that of report.md, and index.html lies beside it."""
        from bitbench.reports.write import write_report

        return write_report(document or self.document(folder), folder, self.home, drawing)

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
        used = {config.engine for config in plan.configs}
        names = (engines[setup.engine].environment for setup in plan.study.engines if setup.name in used)
        tasks = [ENVIRONMENT] if plan.study.quality is not None and plan.study.quality.tasks else []
        return sorted({*tasks, *(name for name in names if name is not None)})

    def _trust(self, source: StudySource) -> Trust:
        try:
            uses = uses_of(source.study, source.folder, self.engines_of(source.study), self.home)
        except StudyFileError as error:
            raise source.located(error) from error
        return Trust(uses, source, self.home)

    def planned(self, source: StudySource, workshop: Workshop, target: Capability | None = None) -> Plan:
        """`target`: of a GPU elsewhere, instead of what this machine has."""
        study = source.study
        device: Device = "cuda" if target else self.device
        capability = target or self.capability
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
        self, source: StudySource, workshop: Workshop, observer: Observer, part: "StudyPart | None" = None
    ) -> Plan:
        """The plan, once its environments exist and its variants were made, or could not be."""
        plan = self.planned(source, workshop)
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

    def python_of(self, environment: str) -> Path:
        return python_of(environment, self.home)

    def host(self) -> HostFacts:
        """Without the GPUs of a machine where engines compute on the CPU: they change no figure."""
        facts = collect_host_facts()
        return (
            facts if self.device == "cuda" else facts.model_copy(update={"accelerators": (), "cuda_device_order": None})
        )
