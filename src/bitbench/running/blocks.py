"""Measures one block of a study, such as one task of a job array, and joins such parts.

Seeds, orders and prompts follow from the study's seed, the block, the config and the index. So a
block is the same on every machine. Only log names and record ids change when parts are joined.
"""

import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bitbench.loadgen.workers import LoadWorkers
from bitbench.planning.estimate import Estimator
from bitbench.planning.plan import make_estimator
from bitbench.records.block_lines import BlockLine, BlockLines
from bitbench.records.folder import StudyFolder, StudyRecords, Writer
from bitbench.records.quality import QualityRecord
from bitbench.records.request_rows import RequestParts
from bitbench.records.trial import InstanceRecord, Outcome
from bitbench.running.loop import THIS_HOST, Schedule, run_study
from bitbench.running.progress import BlockTask, Progress, Recorded
from bitbench.running.runner import (
    StudyRun,
    make_residence,
    refuse_other_facts,
    refuse_other_study,
)
from bitbench.running.trial import now
from bitbench.study.plan import Plan, Point
from bitbench.study.study_file import format_study
from bitbench.util.errors import StoreError, UsageError
from bitbench.util.files import read_bytes

# This machine's name in records, if its host name is not unique.
MACHINE_VARIABLE = "BITBENCH_MACHINE"


class OneBlockPlanner:
    """A `running.loop.Planner` for one block, whose size was decided elsewhere."""

    def __init__(self, task: BlockTask, estimator: Estimator) -> None:
        self._task = task
        self._estimator = estimator

    def add(self, record: Recorded) -> None:
        """Improve the estimate of the time that is left."""
        if not isinstance(record, QualityRecord):
            self._estimator.add(record)

    def begin(self, task: BlockTask) -> None:
        """Do nothing: the task was given at the start."""

    def decide(self, block: int) -> BlockTask | None:
        return self._task if block == self._task.block else None

    def rounds_by_the_clock(
        self,
        task: BlockTask,
        point: Point,  # noqa: ARG002
        progress: Progress,  # noqa: ARG002
    ) -> int:
        return task.rounds

    def remaining_s(self) -> float:
        return self._estimator.remaining_s()


def measure_block(block: int, study: StudyRun) -> None:
    """Measure one block of a study into its folder. The same call again resumes it.

    Quality is measured with block 0. A block that was begun on another machine is repeated as a
    whole, so that all of it is from one machine. Raise UsageError for a study whose blocks cannot
    be decided alone.
    """
    _refuse_block(block, study.plan)
    plan = study.plan
    if block != 0:
        plan = plan.model_copy(update={"quality": ()})
    part = replace(study, plan=plan)
    machine = _get_machine_name()
    task = BlockTask(block, plan.study.measure.trials.min, frozenset(plan.points))
    with study.folder.open_writer() as writer, LoadWorkers() as load:
        _refuse_other_blocks(block, study.folder)
        study.begin(writer, name=machine)
        run = replace(part.context(load), quality=part.make_quality_kits(writer))
        schedule = Schedule(
            plan,
            lambda _: OneBlockPlanner(task, make_estimator(plan, study.at)),
            make_residence(plan, study.at),
            study.folder,
            host=machine,
            first_block=block,
        )
        line = schedule.lines.newest.get(block)
        if line is not None and line.event == "begun" and line.host != machine:
            cause = f"{line.host} was lost in this block, which {machine} repeats."
            revert_block(line, cause, schedule, writer)
        study.observer.study_started(plan, schedule.measured)
        run_study(run, schedule, writer, study.copy_records)


def revert_block(line: BlockLine, cause: str, schedule: Schedule, writer: Writer) -> None:
    """Void the records of a block whose machine was lost, unless the block is complete."""
    incomplete = schedule.progress.list_incomplete_configs(line.block)
    if not incomplete:
        return
    schedule.lines.mark_void(line, cause)
    instance_id, log_file = writer.new_instance()
    writer.append_instance(
        InstanceRecord(
            id=instance_id,
            config=incomplete[0],
            block=line.block,
            host=line.host,
            started_at=now(),
            outcome=Outcome.LOST,
            cause=cause,
            log_file=f"logs/{log_file.name}",
        )
    )
    schedule.reload()


def _get_machine_name() -> str:
    """Return the name of this machine in records."""
    return os.environ.get(MACHINE_VARIABLE) or platform.node() or THIS_HOST


def _refuse_block(block: int, plan: Plan) -> None:
    """Raise UsageError if this block of the study cannot be measured alone."""
    measure = plan.study.measure
    if block >= measure.starts.max:
        raise UsageError(
            f"--block {block}: this study has at most {measure.starts.max} blocks, counted from 0"
        )
    if measure.budget is not None:
        raise UsageError(
            "a budget plans all blocks together; with --block, give `starts` and `trials` instead"
        )
    refuse_sections_of_one_machine(plan)


def refuse_sections_of_one_machine(plan: Plan) -> None:
    """Raise UsageError if a section of the study needs all blocks on one machine."""
    for section in plan.study.sections.values():
        if section.on_one_machine is not None:
            raise UsageError(section.on_one_machine)


def _refuse_other_blocks(block: int, folder: StudyFolder) -> None:
    """Raise StoreError if the folder has records of another block."""
    others = {instance.block for instance in folder.instances()} - {block}
    if others:
        raise StoreError(
            f"{folder.path} contains block {min(others)}; "
            f"give block {block} a folder of its own with --into"
        )


def join_parts(parts: Sequence[Path], into: Path) -> StudyFolder:
    """Copy the records of the parts into one study, under new ids, and return its folder.

    The same call again adds only what is new. Raise StoreError for parts of another study or a
    block that two parts measured, and NotComparableError for a part from another class of machine.
    """
    folder = StudyFolder(into)
    records = [StudyFolder.existing(path).read() for path in parts]
    records.sort(key=lambda part: min((instance.block for instance in part.instances), default=0))
    _refuse_parts(records)
    with folder.open_writer() as writer:
        for part_records in records:
            _join(part_records, writer)
    return folder


def _refuse_parts(parts: Sequence[StudyRecords]) -> None:
    """Raise an error if the parts do not belong together, before anything is written."""
    names: dict[int, str] = {}
    for part in parts:
        refuse_other_study(parts[0].study, part.study)
        refuse_other_facts(parts[0].lock, part.lock, StudyFolder(Path(part.name)))
        if THIS_HOST in part.lock.hosts:
            raise StoreError(
                f"{part.name} does not say which machine measured it; "
                "measure parts with `run --block`"
            )
        for block in {instance.block for instance in part.instances}:
            if names.setdefault(block, part.name) != part.name:
                raise StoreError(
                    f"block {block} is both in {names[block]} and in {part.name}; give one of them"
                )


class _Start(NamedTuple):
    """The identity of an instance: records with other ids may be of the same one."""

    block: int
    config: str
    host: str | None
    started_at: str | None

    @classmethod
    def of(cls, instance: InstanceRecord) -> "_Start":
        return cls(instance.block, instance.config.name, instance.host, instance.started_at)


def _join(part: StudyRecords, writer: Writer) -> None:
    """Add the records of a part that the study lacks.

    Records of an instance keep their order, so their number tells which ones are new.
    """
    study = writer.folder
    source = Path(part.name)
    old_lock = study.lock()
    lock = part.lock
    if old_lock is not None:
        refuse_other_study(old_lock.plan.study, part.study)
        refuse_other_facts(old_lock, part.lock, study)
        lock = old_lock.merge_run(part.lock)
    _refuse_double(part, study)
    writer.write_study(format_study(part.study))
    writer.write_lock(lock)
    BlockLines(study).take(BlockLines(StudyFolder(source)))
    ids = _join_instances(part, source, writer)
    joined_trials = Counter(trial.instance_id for trial in study.trials())
    for trial in part.trials:
        instance_id = ids[trial.instance_id]
        joined_trials[instance_id] -= 1
        if joined_trials[instance_id] < 0:
            rows = RequestParts.of(part.requests_of(trial, None)) if trial.requests_file else None
            writer.append_trial(trial.model_copy(update={"instance_id": instance_id}), rows)
    for model in {part.plan.variant(config.variant).model_name for config in part.plan.quality}:
        material = StudyFolder(source).material(model)
        if material is not None:
            writer.write_material(model, material)
    joined_scores = Counter(record.instance_id for record in study.read_quality_records())
    for record in part.quality:
        instance_id = ids[record.instance_id]
        joined_scores[instance_id] -= 1
        if joined_scores[instance_id] < 0:
            scores = part.scores_of(record) if record.scores_file else None
            writer.append_quality(record.model_copy(update={"instance_id": instance_id}), scores)


def _refuse_double(part: StudyRecords, study: StudyFolder) -> None:
    """Raise StoreError for a block that the study has from another part."""
    starts = {_Start.of(instance) for instance in part.instances}
    blocks = {instance.block for instance in part.instances}
    for instance in study.instances():
        if instance.block in blocks and _Start.of(instance) not in starts:
            raise StoreError(
                f"{study.path} has block {instance.block} from another part than {part.name}; "
                "join that part alone"
            )


def _join_instances(part: StudyRecords, source: Path, writer: Writer) -> dict[str, str]:
    """Add the instances of a part, and return the id in the study of each of them.

    Logs that have grown since the last join are completed.
    """
    joined = {_Start.of(instance): instance for instance in writer.folder.instances()}
    ids: dict[str, str] = {}
    for instance in part.instances:
        earlier = joined.get(_Start.of(instance))
        instance_id = writer.new_instance()[0] if earlier is None else earlier.id
        ids[instance.id] = instance_id
        log = source / (instance.log_file or "")
        if log.is_file():
            written = (writer.folder.logs / f"{instance_id}.log").stat().st_size
            writer.append_log(instance_id, read_bytes(log)[written:])
        if earlier is None:
            renamed = {"id": instance_id, "log_file": f"logs/{instance_id}.log"}
            writer.append_instance(instance.model_copy(update=renamed))
    return ids
