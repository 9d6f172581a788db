"""Runs a study on this machine: whatever its records lack, group by group.

Each result is on disk before the next one begins. There is no other state, so a study that was killed at any moment is
resumed by the same call.
"""

from contextlib import closing, nullcontext
from itertools import groupby

from bitbench.measure.group import Draft, GroupRunner
from bitbench.measure.quality import QualityDraft
from bitbench.measure.run_context import Bench
from bitbench.measure.schedule import THIS_HOST, Schedule
from bitbench.measure.trial import TrialDraft
from bitbench.ports import Observer
from bitbench.records.folder import Writer
from bitbench.records.trial import InstanceRecord
from bitbench.study.plan import Plan
from bitbench.util.errors import StoreError


def run_study(plan: Plan, bench: Bench, schedule: Schedule, writer: Writer, observer: Observer) -> None:
    """Run what is left. Raises StoreError where a block was begun on another machine, or a group leaves no result."""
    for block, groups in groupby(iter(schedule.progress.next_group, None), key=lambda group: group.block):
        with bench.starts.block() if bench.starts else nullcontext():
            for group in groups:
                if group.rounds and (host := schedule.hosts.get(block, THIS_HOST)) != THIS_HOST:
                    raise StoreError(f"block {block} was begun on {host}; resume the study with --on")
                observer.group_started(group, schedule.pace.remaining_s())
                runner = GroupRunner(group, plan, bench, schedule.progress, observer, writer.new_instance)
                results = _record_all(runner, schedule, writer, observer)
                if results == 0 and schedule.progress.next_group() == group:
                    raise StoreError(f"{group.name} left no trial; see the logs in {writer.folder.logs}")


def _record_all(runner: GroupRunner, schedule: Schedule, writer: Writer, observer: Observer) -> int:
    """Return how many results the group gave; a start is none."""
    results = 0
    with closing(runner.run()) as drafts:
        for draft in drafts:
            record_draft(draft, schedule, writer, observer)
            results += not isinstance(draft, InstanceRecord)
    return results


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
