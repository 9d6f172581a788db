"""A machine that went away takes its block with it.

A block is run by one machine, so that what is special about the machine cancels in ratios. Where a machine was lost,
the block is repeated as a whole, and what it had before does not count: it would be of another machine. Nothing is
rewritten for that; it follows from the instance with the outcome `lost`, which comes after those that it takes back.
"""

from collections.abc import Iterable, Sequence

from bitbench.records.trial import InstanceRecord, Outcome, TrialRecord

REPEATED = "Its machine was lost later in this block, which was repeated as a whole."


def without_lost(trials: Sequence[TrialRecord], instances: Iterable[InstanceRecord]) -> list[TrialRecord]:
    """The trials, with the outcome `lost` where they were taken back."""
    instances = list(instances)
    last_lost = {instance.block: place for place, instance in enumerate(instances) if instance.outcome is Outcome.LOST}
    if not last_lost:
        return list(trials)
    gone = {instance.id for place, instance in enumerate(instances) if place < last_lost.get(instance.block, -1)}
    return [
        _taken_back(trial) if trial.outcome is Outcome.OK and trial.instance_id in gone else trial for trial in trials
    ]


def _taken_back(trial: TrialRecord) -> TrialRecord:
    return trial.model_copy(update={"outcome": Outcome.LOST, "cause": REPEATED})
