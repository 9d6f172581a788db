"""Intervals of means of trials that nest in starts, and the distributions that they and tests use.

scipy takes longer to import than all of bitbench. It is imported only here, by the first metric
that needs it, so a command that computes no interval starts without it.

Two trials of one start share its memory layout, its thread placement and its compiled code. They
are not independent, so the number of starts counts. The estimate is the mean of start means, and

    se² = max(variance of start means / I,  variance within starts / trials),   df = I − 1.

The second term is a floor: start means that happen to lie close together must not seem more exact
than the trials they are made of. Positive metrics are used as logarithms, so that no interval
begins at 0. One start says nothing about the next, so it has no interval. A server that was already
running has no starts to compare, and its trials take the place of starts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import comb, sqrt

import numpy as np
import numpy.typing as npt

from bitbench.analysis.results.estimate import Estimate

Floats = npt.NDArray[np.float64]


def compute_t_quantile(degrees_of_freedom: float, share: float) -> float:
    """Return the value that this share of Student's t lies below."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, share))


def compute_t_reach(degrees_of_freedom: float, confidence: float) -> float:
    """Return how far an interval extends to each side, in standard errors."""
    return compute_t_quantile(degrees_of_freedom, (1 + confidence) / 2)


def compute_t_p_value(degrees_of_freedom: float, distance: float) -> float:
    """Return the two-sided p-value of a mean this many standard errors from the assumed one."""
    from scipy.special import stdtr

    return 2 * float(stdtr(degrees_of_freedom, -abs(distance)))


def compute_chi_square_quantile(degrees_of_freedom: float, share_above: float) -> float:
    """Return the value that this share of the chi-square distribution lies above."""
    from scipy.special import chdtri

    return float(chdtri(degrees_of_freedom, share_above))


def compute_normal_quantile(share: float) -> float:
    """Return the value that this share of the normal distribution lies below."""
    from scipy.special import ndtri

    return float(ndtri(share))


def compute_normal_share_below(values: Floats) -> Floats:
    """Return the share of the normal distribution that lies below each value."""
    from scipy.special import ndtr

    below: Floats = ndtr(values)
    return below


def compute_fair_coin_p_value(heads: int, tosses: int) -> float:
    """Return the two-sided p-value of so few heads or fewer, if heads are the rarer side."""
    ways: int = 2**tosses
    return min(1.0, 2 * sum(comb(tosses, count) for count in range(heads + 1)) / ways)


@cache
def compute_fair_coin_quantile(tosses: int, share: float) -> int:
    """Return the least number of heads that this share of all series of tosses does not exceed."""
    series = accumulate(comb(tosses, heads) for heads in range(tosses + 1))
    return next(heads for heads, count in enumerate(series) if count / 2**tosses >= share)


Groups = Sequence[Sequence[float]]  # one group per start, one value per trial


@dataclass(frozen=True)
class Uncertainty:
    """The standard error of a mean of start means, with its degrees of freedom."""

    standard_error: float
    degrees_of_freedom: float

    def half_width(self, confidence: float) -> float:
        """Return the half width of the interval."""
        return compute_t_reach(self.degrees_of_freedom, confidence) * self.standard_error


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One metric of one point: its mean, its spread, and its starts on the log scale."""

    mean: float
    lowest: float  # of the means of starts
    highest: float
    n_instances: int
    n_trials: int
    trial_sd: float | None  # None: a single trial
    variance: float  # of the log means of starts; 0 for fewer than two
    # For the log mean. None: a single start, or a value that has no logarithm.
    uncertainty: Uncertainty | None
    by_block: Mapping[int, float]  # the log mean of a start


def compute_mean_of_means(groups: Groups) -> float:
    """Return the mean of the means of starts."""
    return float(np.mean([np.mean(group) for group in groups]))


def estimate_mean_uncertainty(groups: Groups) -> Uncertainty | None:
    """Return the uncertainty of the mean of start means: see the module's docstring.

    With a single group, its trials are the unit. Return None for a single trial.
    """
    count = len(groups)
    sizes = np.array([len(group) for group in groups])
    spare = int((sizes - 1).sum())
    within = 0.0
    if spare:
        within = sum(float(np.var(group)) * len(group) for group in groups) / spare
    if count == 1:
        return Uncertainty(sqrt(within / sizes[0]), spare) if spare else None
    between = float(np.var([np.mean(group) for group in groups], ddof=1)) / count
    # For groups of one size, Σ(1/J)/I² is 1/(number of trials).
    floor = within * float((1 / sizes).sum()) / count**2
    return Uncertainty(sqrt(max(between, floor)), count - 1)


Starts = Mapping[tuple[int, str], Sequence[float]]  # by block and instance, one value per trial


def summarize_starts(starts: Starts, *, was_running: bool = False) -> Sample:
    """Summarize the trials of a point. There is at least one start, and no start is empty.

    If `was_running`, bitbench did not start the server, so each trial is a repetition.
    """
    values = np.concatenate([np.asarray(start, dtype=np.float64) for start in starts.values()])
    groups = [[value] for value in values.tolist()] if was_running else list(starts.values())
    means = [float(np.mean(group)) for group in groups]
    logs = []
    if values.min() > 0:
        logs = [np.log(group).tolist() for group in groups]
    log_means = [float(np.mean(group)) for group in logs]
    variance = 0.0
    uncertainty = None
    if len(log_means) > 1:
        variance = float(np.var(log_means, ddof=1))
        uncertainty = estimate_mean_uncertainty(logs)
    trial_sd = float(values.std(ddof=1)) if values.size > 1 else None
    by_block = {}
    if not was_running:
        blocks = [block for block, _ in starts]
        by_block = dict(zip(blocks, log_means, strict=False))
    return Sample(
        mean=float(np.mean(means)),
        lowest=min(means),
        highest=max(means),
        n_instances=len(starts),
        n_trials=values.size,
        trial_sd=trial_sd,
        variance=variance,
        uncertainty=uncertainty,
        by_block=by_block,
    )


def estimate_t_mean(
    values: Sequence[float], confidence: float, scale: Callable[[float], float] = float
) -> Estimate:
    """Return the mean of one group of values of any sign, with Student's t.

    `scale` converts the mean and the ends of its interval to the scale of the report.
    """
    mean = float(np.mean(values))
    uncertainty = estimate_mean_uncertainty([values])
    if uncertainty is None:
        return Estimate(value=scale(mean))
    half = uncertainty.half_width(confidence)
    return Estimate(
        value=scale(mean), low=scale(mean - half), high=scale(mean + half), confidence=confidence
    )
