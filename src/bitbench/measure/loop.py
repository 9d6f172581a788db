"""The loop of a study on this machine: what its records leave to do, run group by group, each result on disk before
the next one begins.

There is no other state, so a study that was killed at any moment is resumed by the same call.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path

from bitbench.analysis.ranking import baselines_of
from bitbench.measure.budget import StudyPace
from bitbench.measure.group import Draft, run_group
from bitbench.measure.progress import Progress, Recorded, progress_excuses
from bitbench.measure.quality import QualityDraft
from bitbench.measure.trial import RunContext, TrialDraft
from bitbench.ports import Observer
from bitbench.records.folder import StudyFolder, Writer
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, Outcome, TrialRecord
from bitbench.reports.document.words import plural
from bitbench.study.plan import Group, Plan
from bitbench.util.errors import BusyMachineError, StoreError

THIS_HOST = "local"  # what records call the machine of a study that runs on one


class Schedule:
    """What is recorded, and what that leaves to do."""

    def __init__(
        self,
        plan: Plan,
        make_pace: Callable[[], StudyPace],
        folder: StudyFolder,
        *,
        host: str = THIS_HOST,
        first_block: int = 0,
    ) -> None:
        """`host`: the name of this machine in records. `first_block`: other runs measure the blocks before it."""
        self._plan, self._make_pace, self._folder = plan, make_pace, folder
        self._first_block = first_block
        self.host = host
        recorded = self._recorded()
        self.excused = progress_excuses(recorded)  # what an earlier call gave up, this one measures
        self._begin_with(recorded)

    def reload(self) -> None:
        """From the folder alone: also after a machine was lost, since that takes back what its block had."""
        self._begin_with(self._recorded())

    def _begin_with(self, recorded: Sequence[Recorded]) -> None:
        self.trials: list[TrialRecord] = []
        self.hosts: dict[int, str] = {}  # on which each block was begun
        self.pace = self._make_pace()
        baselines = baselines_of(self._plan)
        self.progress = Progress(self._plan, self.pace, baselines, self._first_block, self.excused)
        for record in recorded:
            self.add(record)

    def _recorded(self) -> list[Recorded]:
        return [*self._folder.trials(), *self._folder.quality_records(), *self._folder.instances()]

    def add(self, record: Recorded) -> None:
        self.progress.add([record])
        self.pace.add(record)
        if isinstance(record, QualityRecord):
            return
        if isinstance(record, TrialRecord):
            self.trials.append(record)
        elif record.outcome is Outcome.LOST:
            self.hosts.pop(record.block, None)
        else:
            self.hosts.setdefault(record.block, record.host or self.host)

    @property
    def measured(self) -> int:
        return sum(trial.kind == "measured" for trial in self.trials)


LEAST_REJECTED = 6  # trials at the beginning of a block: as often as one of them is tried


class _Rejections:
    """The rejected trials at the beginning of a block."""

    def __init__(self, block: int, schedule: Schedule, folder: Path) -> None:
        self._folder = folder
        self._rejected: list[TrialRecord] = []
        of_block = [trial for trial in schedule.trials if trial.block == block and trial.kind == "measured"]
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
    run: RunContext, schedule: Schedule, writer: Writer, after_group: Callable[[], None] = lambda: None
) -> None:
    """Run what is left; `after_group` is called between groups. Raises StoreError where a block was begun on another
    machine or a group leaves no result, and BusyMachineError where all of a block is rejected."""
    for block, groups in groupby(iter(schedule.progress.next_group, None), key=lambda group: group.block):
        rejections = _Rejections(block, schedule, writer.folder.path)
        for group in groups:
            if group.rounds and (host := schedule.hosts.get(block, schedule.host)) != schedule.host:
                raise StoreError(f"block {block} was begun on {host}; resume it there, or resume with --on")
            run.observer.group_started(group, schedule.pace.remaining_s())
            results = 0  # a start is none
            with closing(run_group(group, run, schedule.progress, writer.new_instance)) as drafts:
                for draft in drafts:
                    record_loop_result(draft, schedule, writer, run.observer)
                    rejections.add(draft, group)
                    results += not isinstance(draft, InstanceRecord)
            if results == 0 and schedule.progress.next_group() == group:
                raise StoreError(f"{group.name} left no trial; see the logs in {writer.folder.logs}")
            after_group()
        rejections.end()


def record_loop_result(draft: Draft, schedule: Schedule, writer: Writer, observer: Observer) -> None:
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
