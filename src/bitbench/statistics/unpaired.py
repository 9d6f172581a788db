"""Two studies against each other: the same cells on other days, so nothing is paired.

Of each cell and side there are the mean log speeds of I starts and their variance s². As within a study (`pairs`), few
starts say little about their variance, and all cells of both studies vary about alike:

    v   = s₁²/I₁ + s₂²/I₂,   ν degrees of freedom (Welch–Satterthwaite)
    se² = max((d0·S²·(1/I₁ + 1/I₂) + ν·v) / (d0 + ν),  v,  f),   df = d0 + ν

S² is the pooled variance of all cells of both; d0, at most LENDING_LIMIT, is what the other cells add: those of the
same workload whole, those of others half, because the workloads of one start share its luck.

No formula knows how the machine itself differs from one study to the next: a ratio across studies includes that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from bitbench.core.cell import Cell
from bitbench.statistics.log_ratio import LogRatio
from bitbench.statistics.log_speeds import Floats
from bitbench.statistics.pairs import LENDING_LIMIT, SHARE_OF_OTHER_WORKLOADS

Starts = Sequence[Sequence[float]]  # log speeds: one group per start, one value per trial


@dataclass(frozen=True)
class _Side:
    """One cell of one study."""

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


def compare_speeds(before: Mapping[Cell, Starts], after: Mapping[Cell, Starts]) -> dict[Cell, LogRatio]:
    """after / before of each cell that has two starts or more on both sides; cells of one side lend all the same."""
    earlier, later = _sides(before), _sides(after)
    sides = [*earlier.items(), *later.items()]
    spare = sum(side.degrees_of_freedom for _, side in sides)
    pooled = sum(side.variance * side.degrees_of_freedom for _, side in sides) / spare if spare else 0.0
    return {cell: _ratio(earlier[cell], later[cell], pooled, _lent(cell, sides)) for cell in earlier if cell in later}


def _sides(study: Mapping[Cell, Starts]) -> dict[Cell, _Side]:
    known = {cell: [np.asarray(start) for start in starts if len(start)] for cell, starts in study.items()}
    return {cell: _side(starts) for cell, starts in known.items() if len(starts) > 1}


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


def _lent(cell: Cell, sides: Sequence[tuple[Cell, _Side]]) -> float:
    own = sum(side.degrees_of_freedom for one, side in sides if one != cell and one.workload == cell.workload)
    others = sum(side.degrees_of_freedom for one, side in sides if one.workload != cell.workload)
    return min(LENDING_LIMIT, own + SHARE_OF_OTHER_WORKLOADS * others)


def _ratio(before: _Side, after: _Side, pooled: float, lent: float) -> LogRatio:
    own = before.of_mean + after.of_mean
    freedom = _welch(before, after)
    moderated = (lent * pooled * (1 / before.starts + 1 / after.starts) + freedom * own) / (lent + freedom)
    return LogRatio(
        log_mean=after.mean - before.mean,
        standard_error=sqrt(max(moderated, own, before.from_trials + after.from_trials)),
        degrees_of_freedom=lent + freedom,
    )


def _welch(before: _Side, after: _Side) -> float:
    """Degrees of freedom of the sum of both variances (Satterthwaite)."""
    total = before.of_mean + after.of_mean
    if total == 0:
        return before.degrees_of_freedom + after.degrees_of_freedom
    return total**2 / sum(side.of_mean**2 / side.degrees_of_freedom for side in (before, after))
