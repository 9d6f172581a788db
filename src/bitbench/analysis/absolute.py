"""Absolute figures: mean, spread over trials, and an interval on the scale of logarithms.

Student's t of one degree of freedom, of two starts, is 12.7. The configs of a workload vary about alike, relative to
their speed, so each borrows from the variance S² that they share, as ratios do (`pairs`):

    se² = max((d0·S² + (I − 1)·s²) / (d0 + I − 1) / I,  s² / I,  f),   df = d0 + I − 1

s² is the variance of the log means of I starts, f the squared error by trials alone. The configs of a block also share
the state of the machine, so C configs with ν degrees of freedom between them tell less of S² than ν. If ρ correlates
the starts of a block, they are worth ν / (1 + (C − 1)·ρ²); few blocks cannot show that ρ is small, so it is taken to be
one half at least. docs/statistics.md has the coverage in simulated studies.

Memory varies by what the engine allocates and hardly at all by chance: it has the range of its starts instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import exp

import numpy as np

from bitbench.analysis.intervals import Sample, Uncertainty, sample_of_starts
from bitbench.analysis.pairs import LENDING_LIMIT, Pool, lent_by_other_workloads, pool_variances
from bitbench.analysis.results.estimate import Basis, Estimate
from bitbench.analysis.trial import DEFINITIONS
from bitbench.records.trial import TrialRecord
from bitbench.study.plan import Point

Samples = Mapping[Point, Mapping[str, Sample]]

LEAST_FREEDOM = 2.0  # as many as three starts have alone: Student's t is 4.3; with one it is 12.7
LEAST_CORRELATION = 0.5
NOTHING_LENT = Pool(0.0, 0.0)


def sample_of_trials(values: Iterable[tuple[TrialRecord, float]]) -> Sample | None:
    """Summarize one figure of the trials of a point; None where no trial has it."""
    starts: dict[tuple[int, str], list[float]] = {}
    for trial, value in values:
        starts.setdefault((trial.block, trial.instance_id), []).append(value)
    return sample_of_starts(starts) if starts else None


def absolute_estimates(samples: Samples, confidence: float) -> dict[Point, dict[str, Estimate]]:
    """Estimate every figure of every point."""
    found: dict[Point, dict[str, Estimate]] = {point: {} for point in samples}
    for metric in DEFINITIONS:
        for point, estimate in metric_estimates(samples, metric, confidence).items():
            found[point][metric] = estimate
    return found


def metric_estimates(samples: Samples, metric: str, confidence: float) -> dict[Point, Estimate]:
    """Estimate one figure of every point that has it; the configs of a workload share its variance."""
    known = {point: own[metric] for point, own in samples.items() if metric in own}
    if DEFINITIONS[metric].unit == "bytes":
        return {point: _range_of_starts(sample) for point, sample in known.items()}
    by_workload: dict[str, list[Sample]] = {}
    for point, sample in known.items():
        by_workload.setdefault(point.workload, []).append(sample)
    pools = {workload: pooled_variance(own) for workload, own in by_workload.items()}
    found = {}
    for point, sample in known.items():
        own = pools[point.workload]
        others = lent_by_other_workloads(
            own, (pool for name, pool in pools.items() if name != point.workload)
        )
        found[point] = mean_interval(sample, confidence, own, others)
    return found


def pooled_variance(samples: Sequence[Sample]) -> Pool:
    """Pool the variance between starts over the configs of a workload."""
    pools = [
        Pool(own.variance, own.uncertainty.degrees_of_freedom) for own in samples if own.uncertainty
    ]
    pool = pool_variances(pools)
    correlation = max(LEAST_CORRELATION, _correlation_in_blocks(samples, pool.variance))
    return Pool(
        pool.variance, pool.degrees_of_freedom / (1 + max(len(pools) - 1, 0) * correlation**2)
    )


def _correlation_in_blocks(samples: Sequence[Sample], variance: float) -> float:
    """Tell the correlation from how much less the differences within blocks vary than twice `variance`."""
    squares, spare = 0.0, 0
    for first, second in combinations(samples, 2):
        common = first.by_block.keys() & second.by_block.keys()
        if len(common) > 1:
            differences = [first.by_block[block] - second.by_block[block] for block in common]
            squares += float(np.var(differences)) * len(differences)
            spare += len(differences) - 1
    if not spare or not variance:
        return 0.0
    return 1 - squares / spare / 2 / variance


def mean_interval(
    of: Sample, confidence: float, workload: Pool = NOTHING_LENT, others: Pool = NOTHING_LENT
) -> Estimate:
    """Estimate a mean; without an interval where a single start, or too few of all configs, say nothing of it.

    `workload` has the variance of this sample in it, `others` does not.
    """
    known = _moderated(of, of.uncertainty, workload, others) if of.uncertainty else None
    estimate = Estimate(value=of.mean, basis=_basis(of))
    if known is None or known.degrees_of_freedom < LEAST_FREEDOM:
        return estimate
    reach = exp(known.half_width(confidence))
    return estimate.model_copy(
        update={"low": of.mean / reach, "high": of.mean * reach, "confidence": confidence}
    )


def _moderated(of: Sample, own: Uncertainty, workload: Pool, others: Pool) -> Uncertainty:
    from_workload = min(
        LENDING_LIMIT, max(0.0, workload.degrees_of_freedom - own.degrees_of_freedom)
    )
    from_others = min(LENDING_LIMIT - from_workload, others.degrees_of_freedom)
    shared = pool_variances(
        [
            Pool(workload.variance, from_workload),
            Pool(others.variance, from_others),
            Pool(of.variance, own.degrees_of_freedom),
        ]
    )
    squared = shared.variance / (own.degrees_of_freedom + 1)
    return Uncertainty(max(squared**0.5, own.standard_error), shared.degrees_of_freedom)


def _range_of_starts(of: Sample) -> Estimate:
    """Estimate a size: its mean, and the lowest and highest of several starts."""
    ends = {"low": of.lowest, "high": of.highest} if of.n_instances > 1 else {}
    return Estimate(value=of.mean, kind="extremes", basis=_basis(of), **ends)


def _basis(of: Sample) -> Basis:
    return Basis(starts=of.n_instances, trials=of.n_trials, trial_sd=of.trial_sd)
