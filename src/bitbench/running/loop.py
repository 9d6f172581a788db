"""The main loop of a study on this machine.

It decides on each block, writes the decision down, and measures the block group by group. Each
result is on disk before the next trial begins. The same call resumes a study that was killed at any
moment: `trials.jsonl` and the other records say what was measured, and `blocks.jsonl` says what was
decided.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Protocol

from bitbench.ports import Observer
from bitbench.records.block_lines import BlockLine, BlockLines
from bitbench.records.folder import StudyFolder, Writer
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.reports.document.words import format_count
from bitbench.running.group import Draft, run_group
from bitbench.running.progress import BlockTask, Progress, Recorded, list_repeatable_rejections
from bitbench.running.quality import QualityDraft
from bitbench.running.residence import Residence
from bitbench.running.trial import RunContext, TrialDraft
from bitbench.study.plan import Group, Plan, Point
from bitbench.util.errors import BusyMachineError, StoreError

THIS_HOST = "local"  # name in records of the machine of a study that runs on a single one


class Planner(Protocol):
    """A planner decides what each block measures."""

    def add(self, record: Recorded) -> None: ...

    def begin(self, task: BlockTask) -> None: ...

    def decide(self, block: int) -> BlockTask | None: ...

    def rounds_by_the_clock(self, task: BlockTask, point: Point, progress: Progress) -> int: ...

    def remaining_s(self) -> float: ...


class Schedule:
    """The records and decisions of a study, and the work that they leave."""

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
        """Other runs measure the blocks before `first_block`. `host` is the name in records."""
        self._plan = plan
        self._make_planner = make_planner
        self._folder = folder
        self._first_block = first_block
        self.residence = residence
        self.host = host
        self.lines = BlockLines(folder)
        recorded = self._read_records()
        # An earlier call gave these trials up because of the machine. This call tries them again.
        self.repeatable = list_repeatable_rejections(recorded)
        self._begin_with(recorded)

    def reload(self) -> None:
        """Rebuild the schedule from the folder, after a lost machine has voided the records of a
        block.
        """
        self._begin_with(self._read_records())

    def _begin_with(self, recorded: Sequence[Recorded]) -> None:
        self.trials: list[TrialRecord] = []
        self.results = 0  # trials and quality scores, without launches
        self.planner = self._make_planner(self.lines)
        self.progress = Progress(self._plan, self.repeatable)
        for line in self.lines.newest.values():
            if line.event != "void":
                self.begin(self.make_task(line))
        for record in recorded:
            self.add(record)

    def _read_records(self) -> list[Recorded]:
        return [
            *self._folder.trials(),
            *self._folder.read_quality_records(),
            *self._folder.instances(),
        ]

    def make_task(self, line: BlockLine) -> BlockTask:
        """Return the task that a line of `blocks.jsonl` describes."""
        return BlockTask(line.block, line.rounds, frozenset(self._plan.points) - set(line.decided))

    def begin(self, task: BlockTask) -> None:
        """Tell the planner and the progress what a block measures, or its new number of rounds."""
        self.planner.begin(task)
        self.progress.begin(task)

    def begin_new(self, task: BlockTask, host: str) -> BlockLine:
        """Begin a block and write the decision about it to `blocks.jsonl`."""
        self.begin(task)
        decided = [point for point in self._plan.points if point not in task.points]
        return self.lines.begin(task.block, host, task.rounds, tuple(decided))

    def add(self, record: Recorded) -> None:
        """Count a record that is on disk."""
        self.progress.add([record])
        self.planner.add(record)
        self.results += not isinstance(record, InstanceRecord)
        if isinstance(record, TrialRecord):
            self.residence.add(record)
            self.trials.append(record)

    def blocks(self) -> Iterator[int]:
        """Yield each block to measure.

        First come the blocks that were begun, then new ones until the planner stops. Raise
        StoreError for a block that was begun on another machine and lacks trials.
        """
        for block in count(self._first_block):
            line = self.lines.newest.get(block)
            if line is None or line.event == "void":
                task = self.planner.decide(block)
                if task is None:
                    return
                self.begin_new(task, self.host)
                yield block
            elif line.event != "ended":
                self._check_same_host(line)
                yield block

    def _check_same_host(self, line: BlockLine) -> None:
        """Raise StoreError if another machine has begun this block and not finished it."""
        is_elsewhere = line.event == "begun" and line.host != self.host
        if is_elsewhere and self.progress.list_incomplete_configs(line.block):
            raise StoreError(
                f"block {line.block} was begun on {line.host}; resume it there, or resume with --on"
            )

    def next_group(self, block: int) -> Group | None:
        """Return the next configs to measure together, or None if the block is complete."""
        return self.progress.next_group(block, self.residence)

    def watch_the_clock(self, trial: TrialRecord) -> None:
        """Change the number of rounds of the current block if the budget requires it."""
        task = self.progress.task(trial.block)
        rounds = self.planner.rounds_by_the_clock(task, trial.point, self.progress)
        if rounds != task.rounds:
            self.lines.change_rounds(trial.block, rounds)
            self.begin(replace(task, rounds=rounds))

    @property
    def measured(self) -> int:
        """The number of recorded trials, without warm-ups."""
        return sum(trial.kind == "measured" for trial in self.trials)


LEAST_REJECTED = 6  # trials, as many as the attempts at a single point (1 + CLIENT_BOUND_REPEATS)


class _Rejections:
    """The rejected trials at the beginning of a block."""

    def __init__(self, block: int, schedule: Schedule, folder: Path) -> None:
        self._folder = folder
        self._rejected: list[TrialRecord] = []
        self._has_others = False  # trials of the block that were not rejected
        for trial in schedule.trials:
            if trial.block == block and trial.kind == "measured" and not trial.is_rejected:
                self._has_others = True

    def add(self, trial: TrialRecord, group: Group) -> None:
        """Count a trial. Raise BusyMachineError if two turns of each config were all rejected."""
        if self._has_others:
            return
        self._has_others = not trial.is_rejected
        self._rejected.append(trial)
        if len(self._rejected) >= max(LEAST_REJECTED, 2 * len(group.members)):
            self.end()

    def end(self) -> None:
        """Raise BusyMachineError if all trials of the block so far were rejected."""
        if self._rejected and not self._has_others:
            raise BusyMachineError(
                f"stopped: {format_count(len(self._rejected), 'trial')} of {len(self._rejected)} "
                f"were rejected ({self._rejected[-1].cause}); "
                f"free the machine, then resume with --into {self._folder}"
            )


def run_study(
    run: RunContext,
    schedule: Schedule,
    writer: Writer,
    after_group: Callable[[], None] = lambda: None,
) -> None:
    """Measure everything that the records of a study still lack.

    First come the blocks, then the remaining quality. Call `after_group` after each group. Raise
    StoreError if a block was begun on another machine or a group leaves no result. Raise
    BusyMachineError if all trials of a block are rejected.
    """
    for block in schedule.blocks():
        rejections = _Rejections(block, schedule, writer.folder.path)
        while (group := schedule.next_group(block)) is not None:
            _measure_group(group, run, schedule, writer, rejections)
            after_group()
        rejections.end()
    while (group := schedule.progress.find_next_quality()) is not None:
        _measure_group(group, run, schedule, writer)
        after_group()


def _measure_group(
    group: Group,
    run: RunContext,
    schedule: Schedule,
    writer: Writer,
    rejections: _Rejections | None = None,
) -> None:
    """Measure one group, and write each result to disk before the next trial begins.

    Raise StoreError if the group leaves no result, and BusyMachineError if `rejections` has nothing
    else.
    """
    run.observer.group_started(group, schedule.planner.remaining_s())
    results_before = schedule.results
    with closing(run_group(group, run, schedule.progress, writer.new_instance)) as drafts:
        for draft in drafts:
            record_loop_result(draft, schedule, writer, run.observer)
            if isinstance(draft, TrialDraft) and draft.record.kind == "measured":
                schedule.watch_the_clock(draft.record)
                if rejections is not None:
                    rejections.add(draft.record, group)
    if schedule.results == results_before:
        raise StoreError(f"{group.name} left no result; see the logs in {writer.folder.logs}")


def record_loop_result(
    draft: Draft, schedule: Schedule, writer: Writer, observer: Observer
) -> None:
    """Write a result to disk, add it to the schedule and tell the observer."""
    match draft:
        case TrialDraft(record, rows):
            trial = writer.append_trial(record, rows)
            schedule.add(trial)
            observer.trial_finished(trial)
        case QualityDraft(record, scores):
            quality = writer.append_quality(record, scores)
            schedule.add(quality)
            observer.quality_finished(quality)
        case InstanceRecord():
            started = draft.model_copy(update={"host": draft.host or schedule.host})
            writer.append_instance(started)
            schedule.add(started)
            observer.instance_ready(started)
