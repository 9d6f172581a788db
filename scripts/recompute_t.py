"""Student's t for `recompute`. Imports nothing of bitbench."""

import math
from functools import cache

CONFIDENCE = 0.95


@cache
def t_quantile(freedom: float, share: float) -> float:
    """Return what this share of Student's t lies below; the share is above one half."""
    low, high = 0.0, 1.0
    while 1 - two_sided_p(freedom, high) / 2 < share:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if 1 - two_sided_p(freedom, middle) / 2 < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def two_sided_p(freedom: float, distance: float) -> float:
    """Return how likely a value of Student's t is at least this far from 0."""
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + distance**2))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    logarithm = (
        a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    )
    numerator = 1.0
    denominator = 1 / (1 - (a + b) * x / (a + 1))
    fraction = denominator
    for step in range(1, 1000):
        even = step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1))
        for term in (even, odd):
            denominator = 1 / (1 + term * denominator)
            numerator = 1 + term / numerator
            change = numerator * denominator
            fraction *= change
        if abs(change - 1) < 1e-15:
            break
    return math.exp(logarithm) / a * fraction
