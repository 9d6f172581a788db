"""What the machines of a study did, and how fast each is.

A block runs on one machine, so its ratios do not know the machine. For each trial, the logarithm of the primary metric
is taken relative to the mean of its point. The mean of that over the trials of a machine is how fast it was.
"""

from collections import defaultdict
from math import exp, log
from statistics import fmean

from bitbench.analysis.sequential import primary_metric_of
from bitbench.records.folder import StudyRecords
from bitbench.records.trial import TrialRecord
from bitbench.study.base import Record
from bitbench.study.plan import Point


class MachinePart(Record):
    """What one machine of several did, and how fast it is beside the others."""

    name: str
    blocks: int
    trials: int  # that count
    speed: float  # over all points, beside the mean of all machines: 1.1 is ten percent faster


class MachineFactor(Record):
    """The machines of a study whose blocks ran on several."""

    machines: tuple[MachinePart, ...]


def summarize_fleet_speeds(records: StudyRecords) -> MachineFactor | None:
    """Return None where one machine ran everything, or machines were not recorded."""
    hosts = {instance.id: instance.host for instance in records.instances}
    trials_of: dict[str, list[TrialRecord]] = defaultdict(list)
    for trial in records.trials:
        if trial.counts and (host := hosts.get(trial.instance_id)) is not None:
            trials_of[host].append(trial)
    if len(trials_of) < 2:
        return None
    logarithms = _relative_logarithms(records)
    machines: list[MachinePart] = []
    for name, trials in sorted(trials_of.items()):
        speed = exp(
            fmean([logarithms[trial.id] for trial in trials if trial.id in logarithms] or [0.0])
        )
        blocks = {trial.block for trial in trials}
        machines.append(MachinePart(name=name, blocks=len(blocks), trials=len(trials), speed=speed))
    return MachineFactor(machines=tuple(machines))


def _relative_logarithms(records: StudyRecords) -> dict[str, float]:
    """Return by trial how much faster it was than the mean of its point."""
    primary_metric = primary_metric_of(records.plan)
    sign = 1.0 if primary_metric.higher_is_better else -1.0
    points: dict[Point, dict[str, float]] = defaultdict(dict)
    for trial in records.trials:
        if trial.counts and (value := getattr(trial.metrics, primary_metric.metric)):
            points[trial.point][trial.id] = sign * log(value)
    return {
        trial: value - fmean(values.values())
        for values in points.values()
        for trial, value in values.items()
    }
