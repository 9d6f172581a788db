"""Ratios of measurements that did not alternate, on the log scale.

**Two studies** (`collect_unpaired_ratios`): the same points on different days. Each point and side
has the mean log speeds of I starts and their variance s². As within a study (`pairs`), few starts
say little about their variance, so variances are pooled with the other points of both studies:

    v   = s₁²/I₁ + s₂²/I₂,   ν degrees of freedom (Welch–Satterthwaite)
    se² = max((d0·S²·(1/I₁ + 1/I₂) + ν·v) / (d0 + ν),  v,  f),   df = d0 + ν

S² is the pooled variance of the other points of both studies, with d0 degrees of freedom. Points of
the same workload count in full, points of other workloads as in `pool_other_workloads`.

No formula contains how the machine itself differs from one study to the next. A ratio across
studies includes that difference.

**Two samples** (`estimate_unpaired_ratio`) of which only means and errors are available: Welch's
standard error from the errors of both log means.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np

from bitbench.analysis.intervals import Sample
from bitbench.analysis.pairs import (
    LENDING_LIMIT,
    Floats,
    LogRatio,
    Pool,
    pool_other_workloads,
    pool_variances,
)
from bitbench.analysis.results.estimate import Estimate
from bitbench.study.plan import Point

# Logarithms of a speed or a time: one group per start, one value per trial.
Starts = Sequence[Sequence[float]]


@dataclass(frozen=True)
class _Side:
    """One point of one study."""

    mean: float
    starts: int
    variance: float  # of the means of its starts
    from_trials: float  # variance of the mean by the trials alone

    @property
    def degrees_of_freedom(self) -> int:
        return self.starts - 1

    @property
    def variance_of_mean(self) -> float:
        """Return the variance of the mean."""
        return self.variance / self.starts


def collect_unpaired_ratios(
    before: Mapping[Point, Starts], after: Mapping[Point, Starts]
) -> dict[Point, LogRatio]:
    """Return after / before of each point that has two starts or more on both sides.

    Points that only one side has still add to the pooled variance.
    """
    earlier = _collect_sides(before)
    later = _collect_sides(after)
    pools = _pool_by_workload([*earlier.items(), *later.items()])
    ratios = {}
    for point in earlier:
        if point in later:
            others = pool_other_workloads(point.workload, pools)
            ratios[point] = _estimate_ratio(
                earlier[point], later[point], pools[point.workload], others
            )
    return ratios


def _pool_by_workload(sides: Iterable[tuple[Point, _Side]]) -> dict[str, Pool]:
    """Return the pooled variance of each workload."""
    by_workload: dict[str, list[Pool]] = {}
    for point, side in sides:
        pool = Pool(side.variance, side.degrees_of_freedom)
        by_workload.setdefault(point.workload, []).append(pool)
    return {workload: pool_variances(pools) for workload, pools in by_workload.items()}


def _collect_sides(study: Mapping[Point, Starts]) -> dict[Point, _Side]:
    """Return the points with two starts or more."""
    sides = {}
    for point, starts in study.items():
        arrays = [np.asarray(start) for start in starts if len(start)]
        if len(arrays) > 1:
            sides[point] = _make_side(arrays)
    return sides


def _make_side(starts: Sequence[Floats]) -> _Side:
    means = [float(start.mean()) for start in starts]
    spare = sum(start.size - 1 for start in starts)
    within = 0.0
    if spare:
        within = sum(float(start.var()) * start.size for start in starts) / spare
    return _Side(
        mean=float(np.mean(means)),
        starts=len(starts),
        variance=float(np.var(means, ddof=1)),
        from_trials=within * sum(1 / start.size for start in starts) / len(starts) ** 2,
    )


def _estimate_ratio(before: _Side, after: _Side, workload: Pool, others: Pool) -> LogRatio:
    variance = before.variance_of_mean + after.variance_of_mean
    freedom = _compute_satterthwaite_freedom(
        [
            (before.variance_of_mean, before.degrees_of_freedom),
            (after.variance_of_mean, after.degrees_of_freedom),
        ]
    )
    from_workload = min(
        LENDING_LIMIT,
        workload.degrees_of_freedom - before.degrees_of_freedom - after.degrees_of_freedom,
    )
    from_others = min(LENDING_LIMIT - from_workload, others.degrees_of_freedom)
    pooled = from_workload * workload.variance + from_others * others.variance
    total = from_workload + from_others + freedom
    moderated = (pooled * (1 / before.starts + 1 / after.starts) + freedom * variance) / total
    return LogRatio(
        log_mean=after.mean - before.mean,
        standard_error=sqrt(max(moderated, variance, before.from_trials + after.from_trials)),
        degrees_of_freedom=total,
    )


def _compute_satterthwaite_freedom(parts: Sequence[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a sum of variances (Welch–Satterthwaite).

    Each part is a variance and its degrees of freedom.
    """
    total = sum(variance for variance, _ in parts)
    if total == 0:
        return sum(freedom for _, freedom in parts)
    return total**2 / sum(variance**2 / freedom for variance, freedom in parts)


def estimate_unpaired_ratio(first: Sample, second: Sample, confidence: float) -> Estimate | None:
    """Return `first` / `second`, or None if a mean is not positive.

    The ratio has no interval if a sample has a single start.
    """
    if first.mean <= 0 or second.mean <= 0:
        return None
    log_mean = log(first.mean / second.mean)
    if first.uncertainty is None or second.uncertainty is None:
        return Estimate(value=exp(log_mean))
    parts = [
        (first.uncertainty.standard_error**2, first.uncertainty.degrees_of_freedom),
        (second.uncertainty.standard_error**2, second.uncertainty.degrees_of_freedom),
    ]
    return LogRatio(
        log_mean=log_mean,
        standard_error=sqrt(sum(variance for variance, _ in parts)),
        degrees_of_freedom=_compute_satterthwaite_freedom(parts),
    ).ratio(confidence)


def estimate_unpaired_speed_ratio(
    first: Sample | None, second: Sample | None, confidence: float, *, higher_is_better: bool
) -> Estimate | None:
    """Return a ratio above 1 if `first` is better. None if one of the two is missing."""
    if first is None or second is None:
        return None
    if higher_is_better:
        return estimate_unpaired_ratio(first, second, confidence)
    return estimate_unpaired_ratio(second, first, confidence)
