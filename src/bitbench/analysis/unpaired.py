"""Two studies against each other: the same points on other days, so nothing is paired.

Of each point and side there are the mean log speeds of I starts and their variance s². As within a study (`pairs`), few
starts say little about their variance, and other points of both studies lend what they know of it:

    v   = s₁²/I₁ + s₂²/I₂,   ν degrees of freedom (Welch–Satterthwaite)
    se² = max((d0·S²·(1/I₁ + 1/I₂) + ν·v) / (d0 + ν),  v,  f),   df = d0 + ν

S² is the pooled variance of other points of both studies that lend d0 degrees of freedom: those of the same workload
in full, those of others as `lending` has it.

No formula knows how the machine itself differs from one study to the next: a ratio across studies includes that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from bitbench.analysis.log_ratio import LogRatio
from bitbench.analysis.log_speeds import Floats
from bitbench.analysis.variance_shrinkage import LENDING_LIMIT, Pool, from_other_workloads, pooled
from bitbench.study.plan import Point

Starts = Sequence[Sequence[float]]  # logarithms of a speed or a time: one group per start, one value per trial


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


def compare_speeds(before: Mapping[Point, Starts], after: Mapping[Point, Starts]) -> dict[Point, LogRatio]:
    """after / before of each point that has two starts or more on both sides; points of one side lend all the same."""
    earlier, later = _sides(before), _sides(after)
    pools = _by_workload([*earlier.items(), *later.items()])
    found = {}
    for point in earlier:
        if point in later:
            own = pools[point.workload]
            others = from_other_workloads(own, (pool for name, pool in pools.items() if name != point.workload))
            found[point] = _ratio(earlier[point], later[point], own, others)
    return found


def _by_workload(sides: Iterable[tuple[Point, _Side]]) -> dict[str, Pool]:
    found: dict[str, list[Pool]] = {}
    for point, side in sides:
        found.setdefault(point.workload, []).append(Pool(side.variance, side.degrees_of_freedom))
    return {workload: pooled(pools) for workload, pools in found.items()}


def _sides(study: Mapping[Point, Starts]) -> dict[Point, _Side]:
    known = {point: [np.asarray(start) for start in starts if len(start)] for point, starts in study.items()}
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
    freedom = _welch(before, after)
    from_own = min(LENDING_LIMIT, workload.degrees_of_freedom - before.degrees_of_freedom - after.degrees_of_freedom)
    from_others = min(LENDING_LIMIT - from_own, others.degrees_of_freedom)
    lent = from_own * workload.variance + from_others * others.variance
    total = from_own + from_others + freedom
    moderated = (lent * (1 / before.starts + 1 / after.starts) + freedom * own) / total
    return LogRatio(
        log_mean=after.mean - before.mean,
        standard_error=sqrt(max(moderated, own, before.from_trials + after.from_trials)),
        degrees_of_freedom=total,
    )


def _welch(before: _Side, after: _Side) -> float:
    """Degrees of freedom of the sum of both variances (Satterthwaite)."""
    total = before.of_mean + after.of_mean
    if total == 0:
        return before.degrees_of_freedom + after.degrees_of_freedom
    return total**2 / sum(side.of_mean**2 / side.degrees_of_freedom for side in (before, after))
