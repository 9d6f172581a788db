"""Degrees of freedom from elsewhere: what other variances of a study say about one that only two or three starts know.

Configs of a workload vary about alike, so they lend to each other in full (as in limma; Smyth 2004). Workloads may
not: trials of one request vary more than trials of 64. Each lends in proportion to how well its variance agrees with
that of the workload itself, (smaller / larger)², and then half, because the workloads of one start share its luck.
Without that proportion a workload with twice the spread of its neighbours made false claims in up to 12 % of simulated
studies; with it in at most 5 %, and the calm ones keep their narrow intervals.
"""

from collections.abc import Iterable
from dataclasses import dataclass

# Nothing varies quite alike: more than this many degrees of freedom narrow an interval by little (Student's t falls
# from 2.31 at 8 to 1.96) and would drown what a pair itself says of its variance.
LENDING_LIMIT = 8.0
SHARE_OF_OTHER_WORKLOADS = 0.5


@dataclass(frozen=True)
class Pool:
    """A variance, and the degrees of freedom that it rests on."""

    variance: float
    degrees_of_freedom: float


def from_other_workloads(own: Pool, others: Iterable[Pool]) -> Pool:
    """What they lend together to the workload whose variance is `own`."""
    loans = [
        Pool(other.variance, SHARE_OF_OTHER_WORKLOADS * other.degrees_of_freedom * _agreement(own, other))
        for other in others
    ]
    return pooled(loans)


def pooled(pools: Iterable[Pool]) -> Pool:
    known = [pool for pool in pools if pool.degrees_of_freedom > 0]
    total = sum(pool.degrees_of_freedom for pool in known)
    if total == 0:
        return Pool(0.0, 0.0)
    return Pool(sum(pool.variance * pool.degrees_of_freedom for pool in known) / total, total)


def _agreement(own: Pool, other: Pool) -> float:
    smaller, larger = sorted((own.variance, other.variance))
    return (smaller / larger) ** 2 if larger > 0 else 1.0
