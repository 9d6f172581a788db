"""Why a point has no more trials than it has, read from the records themselves."""

from collections.abc import Sequence

from bitbench.analysis.interim_looks import continuing
from bitbench.analysis.model_groups import ModelGroup
from bitbench.analysis.results.summary import StopReason
from bitbench.analysis.sequential import SequentialAnalysis
from bitbench.analysis.stopping import enough_instances
from bitbench.records.trial import TrialRecord
from bitbench.study.plan import Point
from bitbench.study.study import Measure


def stop_reason(
    field: ModelGroup, point: Point, counted: Sequence[TrialRecord], found: SequentialAnalysis, *, failed: bool
) -> StopReason:
    """`counted`: its trials that count; `failed`: a trial or a start of this point failed."""
    measure = field.plan.study.measure
    if field.plan.imported_from is not None:
        return StopReason.IMPORTED
    if not counted or not _has_the_least(counted, measure):
        return StopReason.FAILED if failed else StopReason.UNFINISHED
    if (claims := found.claims.get(point.workload)) is not None:
        if point.config not in continuing(claims, field.baseline):
            return StopReason.DECIDED
        return _limit(counted, measure) if found.end is not None else StopReason.UNFINISHED
    return _of_one_alone(counted, found, measure)


def _has_the_least(counted: Sequence[TrialRecord], measure: Measure) -> bool:
    """Of starts; with a budget, the looks say when there are enough."""
    return len({trial.block for trial in counted}) >= measure.starts.min


def _of_one_alone(counted: Sequence[TrialRecord], found: SequentialAnalysis, measure: Measure) -> StopReason:
    """With no other to compare with, its own precision decides."""
    groups: dict[int, list[float]] = {}
    for trial in counted:
        groups.setdefault(trial.block, []).append(getattr(trial.metrics, found.primary_metric.metric) or 0.0)
    if len(groups) > 1 and enough_instances(list(groups.values()), measure):
        return StopReason.DECIDED if len(groups) < measure.starts.max else StopReason.LIMIT
    return _limit(counted, measure)


def _limit(counted: Sequence[TrialRecord], measure: Measure) -> StopReason:
    has_most = len({trial.block for trial in counted}) >= measure.starts.max
    return StopReason.LIMIT if measure.budget is None or has_most else StopReason.BUDGET
