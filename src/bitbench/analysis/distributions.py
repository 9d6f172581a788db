"""Quantiles and tails of the distributions that intervals and tests rest on.

scipy takes longer to import than all of bitbench: it is imported here alone, by the first figure that needs it, so that
a command that computes none starts without it.
"""

from functools import cache
from itertools import accumulate
from math import comb

import numpy as np
import numpy.typing as npt

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


def f_tail(numerator_freedom: float, denominator_freedom: float, value: float) -> float:
    """The share of F that lies above."""
    from scipy.special import fdtrc

    return float(fdtrc(numerator_freedom, denominator_freedom, value))


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
