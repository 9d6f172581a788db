"""How well a mean is known when trials nest in instances and both vary, and the quantiles and tails that such
intervals and tests rest on.

scipy takes longer to import than all of bitbench: it is imported here alone, by the first figure that needs it, so
that a command that computes none starts without it.

Two trials of one instance share its memory layout, its thread placement and its compiled code, so they are not
independent, and the number that counts is the number of instances. The estimate is the mean of instance means.

**Why not a plain bootstrap.** Resampling I groups draws from an empirical variance that is (I − 1)/I of the true
one and ignores that it is itself uncertain: with three instances a nominal 95 % percentile interval covers 75–84 %,
with two about 60 %. So the two-level bootstrap (instances, then trials within them) gives only the *shape*: how the
width is shared between the two sides when the values are skewed. The *width* is that of Student's t:
2 · t(df) · se, with

    se² = max(variance of instance means / I, variance within instances / trials),   df = I − 1.

The second term is a floor: instance means that happen to lie close together must not look more exact than the trials
they are made of. With one instance only trials can be resampled (df = J − 1); such an interval says nothing about the
next start, and the estimate is marked so. With one trial there is no interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import comb, sqrt

import numpy as np
import numpy.typing as npt

from bitbench.analysis.results.estimate import Basis, Estimate

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


Groups = Sequence[Sequence[float]]  # one group per instance, one value per trial

DRAWS = 2000  # the 2.5 % quantile then rests on 50 draws: within 5 % of the half width, which only shifts the sides


@dataclass(frozen=True)
class Uncertainty:
    """Standard error of the mean of instance means, and the degrees of freedom it rests on."""

    standard_error: float
    degrees_of_freedom: float

    def half_width(self, confidence: float) -> float:
        return t_reach(self.degrees_of_freedom, confidence) * self.standard_error


@dataclass(frozen=True)
class Sample:
    """One metric of one point: the estimate, its uncertainty and bootstrap draws of the mean."""

    mean: float
    uncertainty: Uncertainty | None
    draws: Floats
    n_instances: int
    n_trials: int
    trial_sd: float | None


def mean_of_means(groups: Groups) -> float:
    return float(np.mean([np.mean(group) for group in groups]))


def mean_uncertainty(groups: Groups) -> Uncertainty | None:
    """See the module's docstring. None for a single trial."""
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


class Resampler:
    """Draws studies: instances with replacement, then trials within each.

    Each layout of trials is drawn once, so that all metrics of a point see the same resampled studies.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._weights: dict[tuple[int, ...], Floats] = {}

    def means(self, groups: Groups) -> Floats:
        """The mean of instance means in each resampled study."""
        sizes = tuple(len(group) for group in groups)
        if sizes not in self._weights:
            self._weights[sizes] = self._draw(np.array(sizes))
        values = np.concatenate([np.asarray(group, dtype=np.float64) for group in groups])
        return np.asarray(self._weights[sizes] @ values)

    def _draw(self, sizes: npt.NDArray[np.int_]) -> Floats:
        """The weight of each trial in each resampled study; a row sums to 1."""
        count, total = len(sizes), int(sizes.sum())
        instances = self._rng.integers(count, size=(DRAWS, count))
        drawn = sizes[instances][:, :, np.newaxis]  # how many trials each drawn instance has
        trials = (self._rng.random((DRAWS, count, int(sizes.max()))) * drawn).astype(np.intp)
        used = np.arange(trials.shape[2]) < drawn
        first = (np.cumsum(sizes) - sizes)[instances][:, :, np.newaxis]
        study = np.arange(DRAWS)[:, np.newaxis, np.newaxis]
        places = study * total + first + trials
        weights = np.broadcast_to(1 / (count * drawn), places.shape)
        summed: Floats = np.asarray(np.bincount(places[used], weights[used], DRAWS * total), dtype=np.float64)
        return summed.reshape(DRAWS, total)


def resample_groups(groups: Groups, resampler: Resampler) -> Sample:
    """At least one group; no group may be empty."""
    values = np.concatenate([np.asarray(group, dtype=np.float64) for group in groups])
    return Sample(
        mean=mean_of_means(groups),
        uncertainty=mean_uncertainty(groups),
        draws=resampler.means(groups),
        n_instances=len(groups),
        n_trials=values.size,
        trial_sd=float(values.std(ddof=1)) if values.size > 1 else None,
    )


def interval_skew(deviations: Floats, confidence: float) -> tuple[float, float]:
    """How bootstrap deviations share a width of 2 between below and above: (1, 1) when symmetric."""
    below, above = np.quantile(deviations, [(1 - confidence) / 2, (1 + confidence) / 2])
    if not (below < 0 < above):
        return 1.0, 1.0
    return float(-2 * below / (above - below)), float(2 * above / (above - below))


def _interval_ends(of: Sample, confidence: float) -> tuple[float, float] | None:
    """The ends of the interval: the width of Student's t, shared as the draws are; None for a single trial."""
    if of.uncertainty is None:
        return None
    half = of.uncertainty.half_width(confidence)
    below, above = interval_skew(of.draws - of.mean, confidence)
    return of.mean - below * half, of.mean + above * half


def mean_interval(of: Sample, confidence: float) -> Estimate:
    """The mean and its interval; for figures that are not negative, however little is known of them."""
    ends, known = _interval_ends(of, confidence), of.uncertainty
    return Estimate(
        value=of.mean,
        low=max(0.0, ends[0]) if ends else None,
        high=ends[1] if ends else None,
        confidence=confidence if ends else None,
        basis=Basis(
            starts=of.n_instances,
            trials=of.n_trials,
            trial_sd=of.trial_sd,
            standard_error=known.standard_error if known else None,
            degrees_of_freedom=known.degrees_of_freedom if known else None,
            relative_half_width=known.half_width(confidence) / abs(of.mean) if known and of.mean else None,
        ),
    )


def scaled_mean_interval(of: Sample, confidence: float, scale: Callable[[float], float] = float) -> Estimate:
    """The mean of one group, of figures of any sign, on the scale that people read."""
    ends = _interval_ends(of, confidence)
    return Estimate(
        value=scale(of.mean),
        low=scale(ends[0]) if ends else None,
        high=scale(ends[1]) if ends else None,
        confidence=confidence if ends else None,
    )
