"""What the machines of a study did, and how fast each is.

A block runs on one machine, so its ratios do not know the machine. For each point, the logarithm of the primary metric
is taken relative to the point's mean. The mean of that over the points of a block is how fast the block was.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import exp, log
from statistics import fmean

from bitbench.analysis.sequential import PrimaryMetric, primary_metric_of
from bitbench.records.folder import StudyRecords
from bitbench.records.trial import TrialRecord
from bitbench.study.base import Record
from bitbench.study.plan import Point


class MachinePart(Record):
    """What one machine of several did, and how fast it is beside the others."""

    name: str
    blocks: int
    trials: int  # that count
    speed: float  # over all points, relative to the mean of the blocks: 1.1 is ten percent faster


class MachineFactor(Record):
    """The machines of a study whose blocks ran on several."""

    machines: tuple[MachinePart, ...]


def summarize_fleet_speeds(records: StudyRecords) -> MachineFactor | None:
    """Return None where one machine ran everything, or machines were not recorded."""
    hosts = {instance.id: instance.host for instance in records.instances}
    counted = [trial for trial in records.trials if trial.counts and hosts.get(trial.instance_id) is not None]
    host_of = {trial.block: str(hosts[trial.instance_id]) for trial in counted}
    names = sorted(set(host_of.values()))
    if len(names) < 2:
        return None
    speeds = _block_speeds(counted, primary_metric_of(records.plan))
    machines: list[MachinePart] = []
    for name in names:
        own = [speed for block, speed in speeds.items() if host_of[block] == name]
        trials = sum(host_of[trial.block] == name for trial in counted)
        machines.append(MachinePart(name=name, blocks=len(own), trials=trials, speed=exp(fmean(own or [0.0]))))
    return MachineFactor(machines=tuple(machines))


def _block_speeds(trials: Sequence[TrialRecord], primary_metric: PrimaryMetric) -> dict[int, float]:
    """Return logarithms around zero by block, above it where a block was faster."""
    sign = 1.0 if primary_metric.higher_is_better else -1.0
    values: dict[Point, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        if value := getattr(trial.metrics, primary_metric.metric):
            values[trial.point][trial.block].append(sign * log(value))
    residuals: dict[int, list[float]] = defaultdict(list)
    for blocks in values.values():
        means = {block: fmean(logarithms) for block, logarithms in blocks.items()}
        whole = fmean(means.values())
        for block, mean in means.items():
            residuals[block].append(mean - whole)
    return {block: fmean(differences) for block, differences in residuals.items()}
