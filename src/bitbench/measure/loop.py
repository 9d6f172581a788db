"""Runs a study on this machine: whatever its records lack, group by group.

Each result is on disk before the next one begins. There is no other state, so a study that was killed at any moment is
resumed by the same call.
"""

from contextlib import closing, nullcontext
from itertools import groupby

from bitbench.measure.group import Draft, run_group
from bitbench.measure.quality import QualityDraft
from bitbench.measure.run_context import RunContext
from bitbench.measure.schedule import THIS_HOST, Schedule
from bitbench.measure.trial import TrialDraft
from bitbench.ports import Observer
from bitbench.records.folder import Writer
from bitbench.records.trial import InstanceRecord
from bitbench.util.errors import StoreError


def run_study(run: RunContext, schedule: Schedule, writer: Writer) -> None:
    """Run what is left. Raises StoreError where a block was begun on another machine, or a group leaves no result."""
    for block, groups in groupby(iter(schedule.progress.next_group, None), key=lambda group: group.block):
        with run.starts.block() if run.starts else nullcontext():
            for group in groups:
                if group.rounds and (host := schedule.hosts.get(block, THIS_HOST)) != THIS_HOST:
                    raise StoreError(f"block {block} was begun on {host}; resume the study with --on")
                run.observer.group_started(group, schedule.pace.remaining_s())
                results = 0  # a start is none
                with closing(run_group(group, run, schedule.progress, writer.new_instance)) as drafts:
                    for draft in drafts:
                        record_draft(draft, schedule, writer, run.observer)
                        results += not isinstance(draft, InstanceRecord)
                if results == 0 and schedule.progress.next_group() == group:
                    raise StoreError(f"{group.name} left no trial; see the logs in {writer.folder.logs}")


def record_draft(draft: Draft, schedule: Schedule, writer: Writer, observer: Observer) -> None:
    """Write it down, and tell who waits for it."""
    match draft:
        case TrialDraft(record, requests):
            schedule.add(trial := writer.append_trial(record, requests))
            observer.trial_finished(trial)
        case QualityDraft(record, scores):
            schedule.add(quality := writer.append_quality(record, scores))
            observer.quality_finished(quality)
        case InstanceRecord():
            started = draft.model_copy(update={"host": draft.host or THIS_HOST})
            writer.append_instance(started)
            schedule.add(started)
            observer.instance_ready(started)
