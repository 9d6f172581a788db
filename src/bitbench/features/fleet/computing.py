"""What the machines of a study did.

**The machine as a factor**: how fast the machines of a study are beside each other, and what share of the variation
between blocks is theirs.

A block runs on one machine, so its ratios do not know the machine. A config's own figure does. For each point, the
logarithm of the primary metric is taken relative to the point's mean; the mean of that over the points of a block is
how fast the block was. A one-way analysis of variance of the blocks by machine gives

    σ_m² = max(0, (MS_between − MS_within) / n0),   share = σ_m² / (σ_m² + MS_within)

with n0 = (N − Σ n² / N) / (k − 1) for N blocks on k machines, n of them on each.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
    """Of a study whose blocks ran on several machines."""

    machines: tuple[MachinePart, ...]
    # Of the variation of a block's speed, how much is the machine's; None where no machine ran two blocks.
    share: float | None = None


def summarize_fleet_speeds(of: StudyRecords) -> MachineFactor | None:
    """None where one machine ran everything, or machines were not recorded."""
    hosts = {instance.id: instance.host for instance in of.instances}
    counted = [trial for trial in of.trials if trial.counts and hosts.get(trial.instance_id) is not None]
    on: dict[int, str] = {trial.block: str(hosts[trial.instance_id]) for trial in counted}
    if len(set(on.values())) < 2:
        return None
    speeds = _block_speeds(counted, primary_metric_of(of.plan))
    by_machine: dict[str, list[float]] = defaultdict(list)
    for block in sorted(speeds):
        by_machine[on[block]].append(speeds[block])
    return MachineFactor(
        machines=tuple(
            MachinePart(
                name=name,
                blocks=len(own),
                trials=sum(on[trial.block] == name for trial in counted),
                speed=exp(fmean(own)),
            )
            for name, own in sorted(by_machine.items())
        ),
        share=_share(list(by_machine.values())),
    )


def _block_speeds(trials: Sequence[TrialRecord], primary_metric: PrimaryMetric) -> dict[int, float]:
    """Logarithms, around zero; above it where a block was faster."""
    sign = 1.0 if primary_metric.higher_is_better else -1.0
    by_point: dict[Point, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        if value := getattr(trial.metrics, primary_metric.metric):
            by_point[trial.point][trial.block].append(sign * log(value))
    residuals: dict[int, list[float]] = defaultdict(list)
    for blocks in by_point.values():
        means: Mapping[int, float] = {block: fmean(values) for block, values in blocks.items()}
        whole = fmean(means.values())
        for block, mean in means.items():
            residuals[block].append(mean - whole)
    return {block: fmean(values) for block, values in residuals.items()}


def _share(groups: Sequence[Sequence[float]]) -> float | None:
    count, machines = sum(map(len, groups)), len(groups)
    if machines < 2 or count <= machines:
        return None
    whole = fmean(value for group in groups for value in group)
    between = sum(len(group) * (fmean(group) - whole) ** 2 for group in groups) / (machines - 1)
    within = sum((value - fmean(group)) ** 2 for group in groups for value in group) / (count - machines)
    typical = (count - sum(len(group) ** 2 for group in groups) / count) / (machines - 1)
    of_machines = max(0.0, (between - within) / typical)
    return of_machines / (of_machines + within) if of_machines + within > 0 else None
