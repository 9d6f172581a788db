"""How well a mean is known when trials nest in starts and both vary, and the quantiles and tails that such intervals
and tests rest on.

scipy takes longer to import than all of bitbench: it is imported here alone, by the first figure that needs it, so
that a command that computes none starts without it.

Two trials of one start share its memory layout, its thread placement and its compiled code, so they are not
independent, and the number that counts is the number of starts. The estimate is the mean of start means, and

    se² = max(variance of start means / I,  variance within starts / trials),   df = I − 1.

The second term is a floor: start means that happen to lie close together must not look more exact than the trials
they are made of. Figures that are positive are taken as logarithms, so that no interval begins at 0. One start says
nothing about the next, so it has no interval. For a server that was already running no start is in question, and its
trials take the place of starts.
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


def t_quantile(degrees_of_freedom: float, share: float) -> float:
    """Of Student's t: what this share of it lies below."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, share))


def t_reach(degrees_of_freedom: float, confidence: float) -> float:
    """How far an interval with this confidence extends to each side, in standard errors."""
    return t_quantile(degrees_of_freedom, (1 + confidence) / 2)


def t_p_value(degrees_of_freedom: float, distance: float) -> float:
    """Two-sided, of a mean that lies this many standard errors from what is assumed."""
    from scipy.special import stdtr

    return 2 * float(stdtr(degrees_of_freedom, -abs(distance)))


def chi_square_quantile(degrees_of_freedom: float, share_above: float) -> float:
    from scipy.special import chdtri

    return float(chdtri(degrees_of_freedom, share_above))


def normal_quantile(share: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(share))


def normal_below(values: Floats) -> Floats:
    """The share of the normal distribution that lies below each."""
    from scipy.special import ndtr

    below: Floats = ndtr(values)
    return below


def fair_coin_p_value(heads: int, tosses: int) -> float:
    """Two-sided: how likely so few heads are, or fewer, where heads are the rarer side."""
    ways: int = 2**tosses
    return min(1.0, 2 * sum(comb(tosses, count) for count in range(heads + 1)) / ways)


@cache
def fair_coin_quantile(tosses: int, share: float) -> int:
    """The least number of heads that this share of all series of tosses does not exceed."""
    series = accumulate(comb(tosses, heads) for heads in range(tosses + 1))
    return next(heads for heads, count in enumerate(series) if count / 2**tosses >= share)


Groups = Sequence[Sequence[float]]  # one group per start, one value per trial


@dataclass(frozen=True)
class Uncertainty:
    """The standard error of a mean of start means, and the degrees of freedom it rests on."""

    standard_error: float
    degrees_of_freedom: float

    def half_width(self, confidence: float) -> float:
        return t_reach(self.degrees_of_freedom, confidence) * self.standard_error


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One metric of one point: its mean, its spread, and what its starts say on the scale of logarithms."""

    mean: float
    lowest: float  # of the means of starts
    highest: float
    n_instances: int
    n_trials: int
    trial_sd: float | None  # None: a single trial
    variance: float  # of the log means of starts; 0 where fewer than two are known
    uncertainty: (
        Uncertainty | None
    )  # of the log mean; None: a single start, or a value that has no logarithm
    by_block: Mapping[int, float]  # the log mean of a start


def mean_of_means(groups: Groups) -> float:
    return float(np.mean([np.mean(group) for group in groups]))


def mean_uncertainty(groups: Groups) -> Uncertainty | None:
    """See the module's docstring; None for a single trial. With a single group its trials are the unit."""
    count = len(groups)
    sizes = np.array([len(group) for group in groups])
    spare = int((sizes - 1).sum())
    within = sum(float(np.var(group)) * len(group) for group in groups) / spare if spare else None
    if count == 1:
        return None if within is None else Uncertainty(sqrt(within / sizes[0]), spare)
    between = float(np.var([np.mean(group) for group in groups], ddof=1)) / count
    # For groups of one size, Σ(1/J)/I² is 1/(number of trials).
    floor = 0.0 if within is None else within * float((1 / sizes).sum()) / count**2
    return Uncertainty(sqrt(max(between, floor)), count - 1)


Starts = Mapping[tuple[int, str], Sequence[float]]  # by block and instance, one value per trial


def sample_of_starts(starts: Starts, *, was_running: bool = False) -> Sample:
    """Summarize the trials of a point; at least one start, and none empty.

    `was_running`: bitbench did not start the server, so each trial is a repetition.
    """
    values = np.concatenate([np.asarray(start, dtype=np.float64) for start in starts.values()])
    groups = [[value] for value in values.tolist()] if was_running else list(starts.values())
    means = [float(np.mean(group)) for group in groups]
    logs = [np.log(group).tolist() for group in groups] if values.min() > 0 else []
    log_means = [float(np.mean(group)) for group in logs]
    is_repeated = len(log_means) > 1
    return Sample(
        mean=float(np.mean(means)),
        lowest=min(means),
        highest=max(means),
        n_instances=len(starts),
        n_trials=values.size,
        trial_sd=float(values.std(ddof=1)) if values.size > 1 else None,
        variance=float(np.var(log_means, ddof=1)) if is_repeated else 0.0,
        uncertainty=mean_uncertainty(logs) if is_repeated else None,
        by_block={}
        if was_running
        else {block: mean for (block, _), mean in zip(starts, log_means, strict=False)},
    )


def mean_t_interval(
    values: Sequence[float], confidence: float, scale: Callable[[float], float] = float
) -> Estimate:
    """Return the mean of one group, of values of any sign, with Student's t, on the scale that people read."""
    mean, known = float(np.mean(values)), mean_uncertainty([values])
    if known is None:
        return Estimate(value=scale(mean))
    half = known.half_width(confidence)
    return Estimate(
        value=scale(mean), low=scale(mean - half), high=scale(mean + half), confidence=confidence
    )
