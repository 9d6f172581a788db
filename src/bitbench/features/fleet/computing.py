"""The work of each machine of a study, and its relative speed.

A block runs on one machine, so its ratios do not depend on the machine. The logarithm of each
trial's primary metric is taken relative to the mean of its point. A machine's speed is the mean of
these over its trials.
"""

from collections import defaultdict
from math import exp, log
from statistics import fmean

from bitbench.analysis.sequential import get_primary_metric
from bitbench.records.folder import StudyRecords
from bitbench.records.trial import TrialRecord
from bitbench.study.base import Record
from bitbench.study.plan import Point


class MachinePart(Record):
    """The work of one machine of several, and its speed compared with the others."""

    name: str
    blocks: int
    trials: int  # without those that do not count
    speed: float  # over all points, relative to the mean of all machines: 1.1 is 10 % faster


class MachineFactor(Record):
    """The machines of a study whose blocks ran on several."""

    machines: tuple[MachinePart, ...]


def summarize_fleet_speeds(records: StudyRecords) -> MachineFactor | None:
    """Return the machines with their relative speeds. Return None if one machine ran everything, or
    if machines were not recorded."""
    hosts = {instance.id: instance.host for instance in records.instances}
    by_host: dict[str, list[TrialRecord]] = defaultdict(list)
    for trial in records.trials:
        host = hosts.get(trial.instance_id)
        if trial.counts and host is not None:
            by_host[host].append(trial)
    if len(by_host) < 2:
        return None
    logarithms = _compute_relative_logarithms(records)
    machines: list[MachinePart] = []
    for name, trials in sorted(by_host.items()):
        measured = [logarithms[trial.id] for trial in trials if trial.id in logarithms]
        speed = exp(fmean(measured or [0.0]))
        blocks = {trial.block for trial in trials}
        machines.append(MachinePart(name=name, blocks=len(blocks), trials=len(trials), speed=speed))
    return MachineFactor(machines=tuple(machines))


def _compute_relative_logarithms(records: StudyRecords) -> dict[str, float]:
    """Return how much faster each trial was than the mean of its point, as a logarithm."""
    primary_metric = get_primary_metric(records.plan)
    sign = 1.0 if primary_metric.higher_is_better else -1.0
    points: dict[Point, dict[str, float]] = defaultdict(dict)
    for trial in records.trials:
        if trial.counts and (value := getattr(trial.metrics, primary_metric.metric)):
            points[trial.point][trial.id] = sign * log(value)
    relative: dict[str, float] = {}
    for values in points.values():
        mean = fmean(values.values())
        for trial_id, value in values.items():
            relative[trial_id] = value - mean
    return relative
