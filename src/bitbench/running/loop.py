"""The loop of a study on this machine: each block is decided, written down and measured, group by group, and each
result is on disk before the next one begins.

A study that was killed at any moment is resumed by the same call: its records say what was measured, its
`blocks.jsonl` what was decided.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from bitbench.ports import Observer
from bitbench.records.block_lines import BlockLine, BlockLines
from bitbench.records.folder import StudyFolder, Writer
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.reports.document.words import plural
from bitbench.running.group import Draft, run_group
from bitbench.running.progress import BlockTask, Progress, Recorded, repeatable_rejections
from bitbench.running.quality import QualityDraft
from bitbench.running.residence import Residence
from bitbench.running.trial import RunContext, TrialDraft
from bitbench.study.plan import Group, Plan, Point
from bitbench.util.errors import BusyMachineError, StoreError

THIS_HOST = "local"  # what records call the machine of a study that runs on one


class Planner(Protocol):
    """Decides what each block measures."""

    def add(self, record: Recorded) -> None: ...

    def begin(self, task: BlockTask) -> None: ...

    def decide(self, block: int) -> BlockTask | None: ...

    def rounds_by_the_clock(self, task: BlockTask, point: Point, progress: Progress) -> int: ...

    def remaining_s(self) -> float: ...


class Schedule:
    """What is recorded and decided of a study, and what that leaves to do."""

    def __init__(
        self,
        plan: Plan,
        make_planner: Callable[[BlockLines], Planner],
        residence: Residence,
        folder: StudyFolder,
        *,
        host: str = THIS_HOST,
        first_block: int = 0,
    ) -> None:
        """`host`: the name of this machine in records. `first_block`: other runs measure the blocks before it."""
        self._plan, self._make_planner, self._folder = plan, make_planner, folder
        self._first_block = first_block
        self.residence = residence
        self.host = host
        self.lines = BlockLines(folder)
        recorded = self._recorded()
        self.repeatable = repeatable_rejections(
            recorded
        )  # what an earlier call gave up, this one measures
        self._begin_with(recorded)

    def reload(self) -> None:
        """From the folder alone: after a machine was lost, since that takes back what its block had."""
        self._begin_with(self._recorded())

    def _begin_with(self, recorded: Sequence[Recorded]) -> None:
        self.trials: list[TrialRecord] = []
        self.results = 0  # trials and scores; a start is none
        self.planner = self._make_planner(self.lines)
        self.progress = Progress(self._plan, self.repeatable)
        for line in self.lines.newest.values():
            if line.event != "void":
                self.begin(self.task_of(line))
        for record in recorded:
            self.add(record)

    def _recorded(self) -> list[Recorded]:
        return [*self._folder.trials(), *self._folder.quality_records(), *self._folder.instances()]

    def task_of(self, line: BlockLine) -> BlockTask:
        return BlockTask(line.block, line.rounds, frozenset(self._plan.points) - set(line.decided))

    def begin(self, task: BlockTask) -> None:
        self.planner.begin(task)
        self.progress.begin(task)

    def begin_new(self, task: BlockTask, host: str) -> BlockLine:
        """Write down what was decided about a block before it begins."""
        self.begin(task)
        decided = [point for point in self._plan.points if point not in task.points]
        return self.lines.begin(task.block, host, task.rounds, tuple(decided))

    def add(self, record: Recorded) -> None:
        self.progress.add([record])
        self.planner.add(record)
        self.results += not isinstance(record, InstanceRecord)
        if isinstance(record, TrialRecord):
            self.residence.add(record)
            self.trials.append(record)

    def blocks(self) -> Iterator[int]:
        """Yield each block to measure: those that were begun, then new ones while the planner wants another.

        Raises StoreError for a block that was begun on another machine and lacks trials.
        """
        block = self._first_block
        while True:
            line = self.lines.newest.get(block)
            if line is None or line.event == "void":
                task = self.planner.decide(block)
                if task is None:
                    return
                self.begin_new(task, self.host)
            elif (
                line.event == "begun"
                and line.host != self.host
                and self.progress.configs_left(block)
            ):
                raise StoreError(
                    f"block {block} was begun on {line.host}; resume it there, or resume with --on"
                )
            if line is None or line.event != "ended":
                yield block
            block += 1

    def next_group(self, block: int) -> Group | None:
        return self.progress.next_group(block, self.residence)

    def watch_the_clock(self, trial: TrialRecord) -> None:
        """Give a block under way fewer or more rounds where its budget asks for that after a trial."""
        task = self.progress.task(trial.block)
        rounds = self.planner.rounds_by_the_clock(task, trial.point, self.progress)
        if rounds != task.rounds:
            self.lines.change_rounds(trial.block, rounds)
            self.begin(replace(task, rounds=rounds))

    @property
    def measured(self) -> int:
        return sum(trial.kind == "measured" for trial in self.trials)


LEAST_REJECTED = 6  # trials at the beginning of a block: as often as one of them is tried


class _Rejections:
    """The rejected trials at the beginning of a block."""

    def __init__(self, block: int, schedule: Schedule, folder: Path) -> None:
        self._folder = folder
        self._rejected: list[TrialRecord] = []
        of_block = [
            trial for trial in schedule.trials if trial.block == block and trial.kind == "measured"
        ]
        self._has_others = not all(trial.is_rejected for trial in of_block)

    def add(self, draft: Draft, group: Group) -> None:
        """Raise BusyMachineError where two turns of each config brought nothing else."""
        if self._has_others or not isinstance(draft, TrialDraft) or draft.record.kind != "measured":
            return
        self._has_others = not draft.record.is_rejected
        self._rejected.append(draft.record)
        if len(self._rejected) >= max(LEAST_REJECTED, 2 * len(group.members)):
            self.end()

    def end(self) -> None:
        """Raise BusyMachineError where the block brought nothing else."""
        if self._rejected and not self._has_others:
            raise BusyMachineError(
                f"stopped: {plural(len(self._rejected), 'trial')} of {len(self._rejected)} were rejected "
                f"({self._rejected[-1].cause}); free the machine, then resume with --into {self._folder}"
            )


def run_study(
    run: RunContext,
    schedule: Schedule,
    writer: Writer,
    after_group: Callable[[], None] = lambda: None,
) -> None:
    """Run what is left; `after_group` is called between groups. Raises StoreError where a block was begun on another
    machine or a group leaves no result, and BusyMachineError where all of a block is rejected."""
    for block in schedule.blocks():
        rejections = _Rejections(block, schedule, writer.folder.path)
        while (group := schedule.next_group(block)) is not None:
            with closing(_run_one_group(group, run, schedule, writer)) as drafts:
                for draft in drafts:
                    rejections.add(draft, group)
            after_group()
        rejections.end()
    while (group := schedule.progress.next_quality()) is not None:
        for _ in _run_one_group(group, run, schedule, writer):
            pass
        after_group()


def _run_one_group(
    group: Group, run: RunContext, schedule: Schedule, writer: Writer
) -> Generator[Draft, None, None]:
    """Yield what a group brings, once it is written down. Raises StoreError where it brings no result."""
    run.observer.group_started(group, schedule.planner.remaining_s())
    before = schedule.results
    with closing(run_group(group, run, schedule.progress, writer.new_instance)) as drafts:
        for draft in drafts:
            record_loop_result(draft, schedule, writer, run.observer)
            if isinstance(draft, TrialDraft) and draft.record.kind == "measured":
                schedule.watch_the_clock(draft.record)
            yield draft
    if schedule.results == before:
        raise StoreError(f"{group.name} left no result; see the logs in {writer.folder.logs}")


def record_loop_result(
    draft: Draft, schedule: Schedule, writer: Writer, observer: Observer
) -> None:
    """Write it down, and tell who waits for it."""
    match draft:
        case TrialDraft(record, rows):
            schedule.add(trial := writer.append_trial(record, rows))
            observer.trial_finished(trial)
        case QualityDraft(record, scores):
            schedule.add(quality := writer.append_quality(record, scores))
            observer.quality_finished(quality)
        case InstanceRecord():
            started = draft.model_copy(update={"host": draft.host or schedule.host})
            writer.append_instance(started)
            schedule.add(started)
            observer.instance_ready(started)
