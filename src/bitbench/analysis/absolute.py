"""Absolute metrics: a mean, the spread over trials, and an interval on the log scale.

Student's t for two starts, which have one degree of freedom, is 12.7. The configs of a workload
vary about equally, relative to their speed. Each therefore uses the variance S² that they share, as
ratios do (`pairs`):

    se² = max((d0·S² + (I − 1)·s²) / (d0 + I − 1) / I,  s² / I,  f),   df = d0 + I − 1

s² is the variance of the log means of I starts, and f the squared error by trials alone. The
configs of a block also share the state of the machine, so C configs with ν degrees of freedom
together say less about S² than ν. If ρ correlates the starts of a block, they are worth ν / (1 + (C
− 1)·ρ²). Few blocks cannot show that ρ is small, so it is taken to be at least one half.
docs/statistics.md has the coverage in simulated studies.

Memory varies by what the engine allocates and hardly by chance. It has the range of its starts
instead of an interval.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import exp

import numpy as np

from bitbench.analysis.intervals import Sample, Uncertainty, summarize_starts
from bitbench.analysis.pairs import LENDING_LIMIT, Pool, pool_other_workloads, pool_variances
from bitbench.analysis.results.estimate import Basis, Estimate
from bitbench.analysis.trial import DEFINITIONS
from bitbench.records.trial import TrialRecord
from bitbench.study.plan import Point

Samples = Mapping[Point, Mapping[str, Sample]]

LEAST_FREEDOM = 2.0  # as many as three starts have alone: Student's t is 4.3; with one it is 12.7
LEAST_CORRELATION = 0.5
NOTHING_LENT = Pool(0.0, 0.0)


def summarize_trials(values: Iterable[tuple[TrialRecord, float]]) -> Sample | None:
    """Summarize one metric over the trials of a point. Return None if no trial has it."""
    starts: dict[tuple[int, str], list[float]] = {}
    for trial, value in values:
        starts.setdefault((trial.block, trial.instance_id), []).append(value)
    return summarize_starts(starts) if starts else None


def estimate_all_metrics(samples: Samples, confidence: float) -> dict[Point, dict[str, Estimate]]:
    """Estimate every metric of every point."""
    by_point: dict[Point, dict[str, Estimate]] = {point: {} for point in samples}
    for metric in DEFINITIONS:
        for point, estimate in estimate_metric(samples, metric, confidence).items():
            by_point[point][metric] = estimate
    return by_point


def estimate_metric(samples: Samples, metric: str, confidence: float) -> dict[Point, Estimate]:
    """Estimate one metric of every point that has it.

    The configs of a workload share their variance.
    """
    estimates = {}
    by_point = {
        point: of_point[metric] for point, of_point in samples.items() if metric in of_point
    }
    if DEFINITIONS[metric].unit == "bytes":
        for point, sample in by_point.items():
            estimates[point] = _estimate_start_range(sample)
        return estimates
    by_workload: dict[str, list[Sample]] = {}
    for point, sample in by_point.items():
        by_workload.setdefault(point.workload, []).append(sample)
    pools = {workload: pool_start_variances(group) for workload, group in by_workload.items()}
    for point, sample in by_point.items():
        others = pool_other_workloads(point.workload, pools)
        estimates[point] = estimate_mean(sample, confidence, pools[point.workload], others)
    return estimates


def pool_start_variances(samples: Sequence[Sample]) -> Pool:
    """Pool the variance between starts over the configs of a workload."""
    pools = []
    for sample in samples:
        if sample.uncertainty:
            pools.append(Pool(sample.variance, sample.uncertainty.degrees_of_freedom))
    pool = pool_variances(pools)
    correlation = max(LEAST_CORRELATION, _estimate_block_correlation(samples, pool.variance))
    shared = 1 + max(len(pools) - 1, 0) * correlation**2
    return Pool(pool.variance, pool.degrees_of_freedom / shared)


def _estimate_block_correlation(samples: Sequence[Sample], variance: float) -> float:
    """Return the correlation of the starts of a block.

    It follows from how much less the differences within blocks vary than twice `variance`.
    """
    squares = 0.0
    spare = 0
    for first, second in combinations(samples, 2):
        common = first.by_block.keys() & second.by_block.keys()
        if len(common) > 1:
            differences = [first.by_block[block] - second.by_block[block] for block in common]
            squares += float(np.var(differences)) * len(differences)
            spare += len(differences) - 1
    if not spare or not variance:
        return 0.0
    return 1 - squares / spare / 2 / variance


def estimate_mean(
    sample: Sample, confidence: float, workload: Pool = NOTHING_LENT, others: Pool = NOTHING_LENT
) -> Estimate:
    """Estimate a mean. It has no interval if all configs together have too few starts.

    The pool `workload` includes the variance of this sample, and `others` does not.
    """
    estimate = Estimate(value=sample.mean, basis=_make_basis(sample))
    if sample.uncertainty is None:
        return estimate
    moderated = _estimate_uncertainty(sample, sample.uncertainty, workload, others)
    if moderated.degrees_of_freedom < LEAST_FREEDOM:
        return estimate
    reach = exp(moderated.half_width(confidence))
    return estimate.model_copy(
        update={"low": sample.mean / reach, "high": sample.mean * reach, "confidence": confidence}
    )


def _estimate_uncertainty(
    sample: Sample, uncertainty: Uncertainty, workload: Pool, others: Pool
) -> Uncertainty:
    """Return the uncertainty of a sample whose variance is pooled with that of other configs.

    `uncertainty` is from the sample alone. The standard error of the result is never smaller.
    """
    freedom = uncertainty.degrees_of_freedom
    from_workload = min(LENDING_LIMIT, max(0.0, workload.degrees_of_freedom - freedom))
    from_others = min(LENDING_LIMIT - from_workload, others.degrees_of_freedom)
    shared = pool_variances(
        [
            Pool(workload.variance, from_workload),
            Pool(others.variance, from_others),
            Pool(sample.variance, freedom),
        ]
    )
    squared = shared.variance / (freedom + 1)
    return Uncertainty(max(squared**0.5, uncertainty.standard_error), shared.degrees_of_freedom)


def _estimate_start_range(sample: Sample) -> Estimate:
    """Estimate a size by its mean, and by the lowest and the highest of several starts."""
    ends = {}
    if sample.n_instances > 1:
        ends = {"low": sample.lowest, "high": sample.highest}
    return Estimate(value=sample.mean, kind="extremes", basis=_make_basis(sample), **ends)


def _make_basis(sample: Sample) -> Basis:
    return Basis(starts=sample.n_instances, trials=sample.n_trials, trial_sd=sample.trial_sd)
