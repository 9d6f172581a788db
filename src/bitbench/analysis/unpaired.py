"""Ratios of what did not alternate, on the log scale: of two studies, or of two configs that shared no two blocks.

**Two studies** (`compare_speeds`): the same points on other days. Of each point and side there are the mean log speeds
of I starts and their variance s². As within a study (`pairs`), few starts say little about their variance, and other
points of both studies lend what they know of it:

    v   = s₁²/I₁ + s₂²/I₂,   ν degrees of freedom (Welch–Satterthwaite)
    se² = max((d0·S²·(1/I₁ + 1/I₂) + ν·v) / (d0 + ν),  v,  f),   df = d0 + ν

S² is the pooled variance of the other points of both studies that lend d0 degrees of freedom: those of the same
workload in full, those of others as `variance_shrinkage` has it.

No formula knows how the machine itself differs from one study to the next: a ratio across studies includes that.

**Two samples** (`unpaired_ratio`), of which no more is known than their means and errors: Welch's standard error from
the errors of both log means.
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
    lent_by_other_workloads,
    pool_variances,
)
from bitbench.analysis.results.estimate import Estimate
from bitbench.study.plan import Point

Starts = Sequence[
    Sequence[float]
]  # logarithms of a speed or a time: one group per start, one value per trial


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
    def of_mean(self) -> float:
        return self.variance / self.starts


def unpaired_ratios(
    before: Mapping[Point, Starts], after: Mapping[Point, Starts]
) -> dict[Point, LogRatio]:
    """after / before of each point that has two starts or more on both sides; points of one side lend all the same."""
    earlier, later = _sides(before), _sides(after)
    pools = _by_workload([*earlier.items(), *later.items()])
    found = {}
    for point in earlier:
        if point in later:
            own = pools[point.workload]
            others = lent_by_other_workloads(
                own, (pool for name, pool in pools.items() if name != point.workload)
            )
            found[point] = _ratio(earlier[point], later[point], own, others)
    return found


def _by_workload(sides: Iterable[tuple[Point, _Side]]) -> dict[str, Pool]:
    found: dict[str, list[Pool]] = {}
    for point, side in sides:
        found.setdefault(point.workload, []).append(Pool(side.variance, side.degrees_of_freedom))
    return {workload: pool_variances(pools) for workload, pools in found.items()}


def _sides(study: Mapping[Point, Starts]) -> dict[Point, _Side]:
    known = {
        point: [np.asarray(start) for start in starts if len(start)]
        for point, starts in study.items()
    }
    return {point: _side(starts) for point, starts in known.items() if len(starts) > 1}


def _side(starts: Sequence[Floats]) -> _Side:
    means = [float(start.mean()) for start in starts]
    spare = sum(start.size - 1 for start in starts)
    within = sum(float(start.var()) * start.size for start in starts) / spare if spare else 0.0
    return _Side(
        mean=float(np.mean(means)),
        starts=len(starts),
        variance=float(np.var(means, ddof=1)),
        from_trials=within * sum(1 / start.size for start in starts) / len(starts) ** 2,
    )


def _ratio(before: _Side, after: _Side, workload: Pool, others: Pool) -> LogRatio:
    own = before.of_mean + after.of_mean
    freedom = _satterthwaite([(side.of_mean, side.degrees_of_freedom) for side in (before, after)])
    from_own = min(
        LENDING_LIMIT,
        workload.degrees_of_freedom - before.degrees_of_freedom - after.degrees_of_freedom,
    )
    from_others = min(LENDING_LIMIT - from_own, others.degrees_of_freedom)
    lent = from_own * workload.variance + from_others * others.variance
    total = from_own + from_others + freedom
    moderated = (lent * (1 / before.starts + 1 / after.starts) + freedom * own) / total
    return LogRatio(
        log_mean=after.mean - before.mean,
        standard_error=sqrt(max(moderated, own, before.from_trials + after.from_trials)),
        degrees_of_freedom=total,
    )


def _satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of variances, each with its own (Welch–Satterthwaite)."""
    total = sum(variance for variance, _ in parts)
    if total == 0:
        return sum(freedom for _, freedom in parts)
    return total**2 / sum(variance**2 / freedom for variance, freedom in parts)


def unpaired_ratio(first: Sample, second: Sample, confidence: float) -> Estimate | None:
    """`first` / `second`; None where a ratio is not defined (a mean that is not positive)."""
    if first.mean <= 0 or second.mean <= 0:
        return None
    log_mean = log(first.mean / second.mean)
    if first.uncertainty is None or second.uncertainty is None:
        return Estimate(value=exp(log_mean))
    parts = [
        (own.standard_error**2, own.degrees_of_freedom)
        for own in (first.uncertainty, second.uncertainty)
    ]
    return LogRatio(
        log_mean=log_mean,
        standard_error=sqrt(sum(variance for variance, _ in parts)),
        degrees_of_freedom=_satterthwaite(parts),
    ).ratio(confidence)


def unpaired_speed_ratio(
    own: Sample | None, other: Sample | None, confidence: float, *, higher_is_better: bool
) -> Estimate | None:
    """More than 1 where `own` is better, whichever way that is; None where one is missing."""
    if own is None or other is None:
        return None
    return (
        unpaired_ratio(own, other, confidence)
        if higher_is_better
        else unpaired_ratio(other, own, confidence)
    )
