"""When a config without a rival has been started often enough: its figure is known to the precision asked for; and why
a point has no more trials than it has, read from the records themselves."""

from collections.abc import Sequence
from math import sqrt

from bitbench.analysis.distributions import chi_square_quantile
from bitbench.analysis.interim_looks import continuing
from bitbench.analysis.intervals import Groups, mean_of_means, uncertainty
from bitbench.analysis.model_groups import ModelGroup
from bitbench.analysis.results.summary import StopReason
from bitbench.analysis.sequential import SequentialAnalysis
from bitbench.records.trial import TrialRecord
from bitbench.study.plan import Point
from bitbench.study.study import Count, Measure

# Stopping as soon as the interval looks narrow picks the moments at which it is too narrow by luck: with 3 to 6
# instances and 2 % noise 7 % of equal pairs were then told apart instead of 5 %. So the half width of the *final*
# interval must be within the target even at the upper limit (of this confidence) of its own uncertainty: 3.7 % at
# 1 % noise, 4.8 % at 2 %, over 600 simulated studies each; at 0.9 it was 5.5 %.
SURENESS = 0.97


def enough_instances(groups: Groups, measure: Measure) -> bool:
    """Are these instances (one non-empty group of primary metric values each) enough?"""
    if (settled := _settled(len(groups), measure.starts)) is not None:
        return settled
    known = uncertainty(groups)
    if known is None:
        return False
    half_width = known.half_width(measure.confidence) * _upper_limit_factor(known.degrees_of_freedom)
    return half_width <= measure.target_precision * abs(mean_of_means(groups))


def _settled(count: int, wanted: Count) -> bool | None:
    """What the bare count decides; None where it depends on the interval."""
    if count < wanted.min:
        return False
    return True if count >= wanted.max else None


def _upper_limit_factor(degrees_of_freedom: float) -> float:
    """Upper confidence limit of a standard deviation / its estimate (chi-square)."""
    return sqrt(degrees_of_freedom / chi_square_quantile(degrees_of_freedom, SURENESS))


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
