"""One block of a study for whoever gives blocks out, such as a task of a job array, and a join of such parts.

Seeds, orders and prompts follow from the study's seed, the block, the config and the index. So a block is the same
wherever it runs, and only log names and record ids have to change when parts are joined.
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
from bitbench.planning.plan import estimator_of
from bitbench.records.block_lines import BlockLine, BlockLines
from bitbench.records.folder import StudyFolder, StudyRecords, Writer
from bitbench.records.quality import QualityRecord
from bitbench.records.request_rows import RequestParts
from bitbench.records.trial import InstanceRecord, Outcome
from bitbench.running.loop import THIS_HOST, Schedule, run_study
from bitbench.running.progress import BlockTask, Progress, Recorded
from bitbench.running.runner import (
    StudyRun,
    refuse_other_facts,
    refuse_other_study,
    study_residence,
)
from bitbench.running.trial import now
from bitbench.study.plan import Plan, Point
from bitbench.study.study_file import study_file_text
from bitbench.util.errors import StoreError, UsageError
from bitbench.util.files import read_bytes

MACHINE_VARIABLE = (
    "BITBENCH_MACHINE"  # this machine's name in records, where its host name is not its own
)


class OneBlockPlanner:
    """A `running.loop.Planner` for one block whose size was decided elsewhere."""

    def __init__(self, task: BlockTask, estimator: Estimator) -> None:
        self._task, self._estimator = task, estimator

    def add(self, record: Recorded) -> None:
        if not isinstance(record, QualityRecord):
            self._estimator.add(record)

    def begin(self, task: BlockTask) -> None:
        """Do nothing: the task is known."""

    def decide(self, block: int) -> BlockTask | None:
        return self._task if block == self._task.block else None

    def rounds_by_the_clock(self, task: BlockTask, point: Point, progress: Progress) -> int:  # noqa: ARG002
        return task.rounds

    def remaining_s(self) -> float:
        return self._estimator.remaining_s()


def measure_block(block: int, study: StudyRun) -> None:
    """Measure one block of a study into its folder; the same call again resumes it.

    Quality is measured with block 0. A block that was begun on another machine is repeated as a whole: half of it
    would be of that machine. Raises UsageError for a study that one block alone cannot be decided for.
    """
    _refuse_block(block, study.plan)
    plan = study.plan if block == 0 else study.plan.model_copy(update={"quality": ()})
    part, machine = replace(study, plan=plan), _machine_name()
    task = BlockTask(block, plan.study.measure.trials.min, frozenset(plan.points))
    with study.folder.writing() as writer, LoadWorkers() as load:
        _refuse_other_blocks(block, study.folder)
        study.begin(writer, name=machine)
        run = replace(part.context(load), quality=part.quality_kits(writer))
        schedule = Schedule(
            plan,
            lambda _: OneBlockPlanner(task, estimator_of(plan, study.at)),
            study_residence(plan, study.at),
            study.folder,
            host=machine,
            first_block=block,
        )
        line = schedule.lines.newest.get(block)
        if line is not None and line.event == "begun" and line.host != machine:
            void_block(
                line,
                f"{line.host} was lost in this block, which {machine} repeats.",
                schedule,
                writer,
            )
        study.observer.study_started(plan, schedule.measured)
        run_study(run, schedule, writer, study.copy_records)


def void_block(line: BlockLine, cause: str, schedule: Schedule, writer: Writer) -> None:
    """Take back what a block has so far, where something is missing from it: its machine was lost."""
    left = schedule.progress.configs_left(line.block)
    if not left:
        return
    schedule.lines.void(line, cause)
    instance_id, log_file = writer.new_instance()
    writer.append_instance(
        InstanceRecord(
            id=instance_id,
            config=left[0],
            block=line.block,
            host=line.host,
            started_at=now(),
            outcome=Outcome.LOST,
            cause=cause,
            log_file=f"logs/{log_file.name}",
        )
    )
    schedule.reload()


def _machine_name() -> str:
    return os.environ.get(MACHINE_VARIABLE) or platform.node() or THIS_HOST


def _refuse_block(block: int, plan: Plan) -> None:
    """Raises UsageError."""
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
    """Raises UsageError for a section of the study that needs all blocks on one machine."""
    for section in plan.study.sections.values():
        if section.on_one_machine is not None:
            raise UsageError(section.on_one_machine)


def _refuse_other_blocks(block: int, folder: StudyFolder) -> None:
    """Raises StoreError."""
    others = {instance.block for instance in folder.instances()} - {block}
    if others:
        raise StoreError(
            f"{folder.path} contains block {min(others)}; give block {block} a folder of its own with --into"
        )


def join_parts(parts: Sequence[Path], into: Path) -> StudyFolder:
    """Copy the records of the parts into one study, under new ids; the same call again adds only what is new.

    Raises StoreError for parts of another study, or a block that two parts measured, and NotComparableError for a part
    from another class of machine.
    """
    folder = StudyFolder(into)
    records = [StudyFolder.existing(path).read() for path in parts]
    records.sort(key=lambda part: min((instance.block for instance in part.instances), default=0))
    _refuse_parts(records)
    with folder.writing() as writer:
        for part in records:
            _join(part, writer)
    return folder


def _refuse_parts(parts: Sequence[StudyRecords]) -> None:
    """Raise an error for parts that do not belong together, before anything is written."""
    names: dict[int, str] = {}
    for part in parts:
        refuse_other_study(parts[0].study, part.study)
        refuse_other_facts(parts[0].lock, part.lock, StudyFolder(Path(part.name)))
        if THIS_HOST in part.lock.hosts:
            raise StoreError(
                f"{part.name} does not say which machine measured it; measure parts with `run --block`"
            )
        for block in {instance.block for instance in part.instances}:
            if names.setdefault(block, part.name) != part.name:
                raise StoreError(
                    f"block {block} is both in {names[block]} and in {part.name}; give one of them"
                )


class _Start(NamedTuple):
    """What makes two instance records the same start, whatever their ids."""

    block: int
    config: str
    host: str | None
    started_at: str | None

    @classmethod
    def of(cls, instance: InstanceRecord) -> "_Start":
        return cls(instance.block, instance.config.name, instance.host, instance.started_at)


def _join(part: StudyRecords, writer: Writer) -> None:
    """Add what the study lacks of a part. Records of an instance keep their order, so their number says what is new."""
    study, source = writer.folder, Path(part.name)
    lock = study.lock()
    if lock is not None:
        refuse_other_study(lock.plan.study, part.study)
        refuse_other_facts(lock, part.lock, study)
    _refuse_double(part, study)
    writer.write_study(study_file_text(part.study))
    writer.write_lock(part.lock if lock is None else lock.resumed(part.lock))
    BlockLines(study).take(BlockLines(StudyFolder(source)))
    ids = _join_instances(part, source, writer)
    have = Counter(trial.instance_id for trial in study.trials())
    for trial in part.trials:
        instance_id = ids[trial.instance_id]
        have[instance_id] -= 1
        if have[instance_id] < 0:
            rows = RequestParts.of(part.requests_of(trial, None)) if trial.requests_file else None
            writer.append_trial(trial.model_copy(update={"instance_id": instance_id}), rows)
    for model in {part.plan.variant(config.variant).model_name for config in part.plan.quality}:
        material = StudyFolder(source).material(model)
        if material is not None:
            writer.write_material(model, material)
    scored = Counter(record.instance_id for record in study.quality_records())
    for record in part.quality:
        instance_id = ids[record.instance_id]
        scored[instance_id] -= 1
        if scored[instance_id] < 0:
            scores = part.scores_of(record) if record.scores_file else None
            writer.append_quality(record.model_copy(update={"instance_id": instance_id}), scores)


def _refuse_double(part: StudyRecords, study: StudyFolder) -> None:
    """Raises StoreError for a block that the study has from somewhere else."""
    own = {_Start.of(instance) for instance in part.instances}
    blocks = {instance.block for instance in part.instances}
    for instance in study.instances():
        if instance.block in blocks and _Start.of(instance) not in own:
            raise StoreError(
                f"{study.path} has block {instance.block} from another part than {part.name}; join that part alone"
            )


def _join_instances(part: StudyRecords, source: Path, writer: Writer) -> dict[str, str]:
    """Return the id in the study of each instance of the part. Complete logs that have grown since the last join."""
    joined = {_Start.of(instance): instance for instance in writer.folder.instances()}
    ids: dict[str, str] = {}
    for instance in part.instances:
        known = joined.get(_Start.of(instance))
        instance_id = writer.new_instance()[0] if known is None else known.id
        ids[instance.id] = instance_id
        log = source / (instance.log_file or "")
        if log.is_file():
            written = (writer.folder.logs / f"{instance_id}.log").stat().st_size
            writer.append_log(instance_id, read_bytes(log)[written:])
        if known is None:
            renamed = {"id": instance_id, "log_file": f"logs/{instance_id}.log"}
            writer.append_instance(instance.model_copy(update=renamed))
    return ids
