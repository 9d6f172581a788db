"""Is one config faster than another, and by how much?

Compared is the logarithm of the ratio, so that A against B and B against A give the same answer. Its standard error
comes from the relative errors of both means (Welch: they need not be equal), its degrees of freedom from
Welch–Satterthwaite; the bootstrap gives the shape, as in `intervals`. The p-value uses the side of the interval that
faces "equal", so a ratio is significant exactly when its interval excludes 1.
"""

from math import exp, log

import numpy as np

from bitbench.analysis.distributions import t_p_value
from bitbench.analysis.intervals import Sample, Uncertainty, sides
from bitbench.analysis.results.summary import Interval, Ratio

# Of two studies that were each stopped when they looked precise: each look gave chance another opportunity. At this
# share of the allowed error, about 3 % of equal pairs are told apart over all designs that were simulated; at all of
# it, 5 to 6 % were.
SHARE_OF_ERROR = 0.6


def compare(first: Sample, second: Sample, confidence: float) -> Ratio | None:
    """`first` / `second`; None where a ratio is not defined (a mean that is not positive)."""
    if first.mean <= 0 or second.mean <= 0:
        return None
    ratio = first.mean / second.mean
    joint = _relative(first, second)
    if joint is None:
        return Ratio(value=ratio, interval=None, p_value=None)
    below, above = _sides(first, second, confidence)
    half = joint.half_width(confidence)
    return Ratio(
        value=ratio,
        interval=Interval(low=ratio * exp(-below * half), high=ratio * exp(above * half), confidence=confidence),
        p_value=_p_value(log(ratio), joint, below if ratio > 1 else above),
    )


def compare_speed(
    own: Sample | None, other: Sample | None, confidence: float, *, higher_is_better: bool
) -> Ratio | None:
    """More than 1 where `own` is better, whichever way that is; None where one is missing."""
    if own is None or other is None:
        return None
    return compare(own, other, confidence) if higher_is_better else compare(other, own, confidence)


def _relative(first: Sample, second: Sample) -> Uncertainty | None:
    """Uncertainty of the log ratio; None where one of the two has none."""
    if first.uncertainty is None or second.uncertainty is None:
        return None
    variances = [(one.standard_error / mean) ** 2 for one, mean in _pairs(first, second)]
    weights = [
        variance**2 / one.degrees_of_freedom
        for variance, (one, _) in zip(variances, _pairs(first, second), strict=True)
    ]
    total = sum(variances)
    if total == 0:
        return Uncertainty(0.0, first.uncertainty.degrees_of_freedom + second.uncertainty.degrees_of_freedom)
    return Uncertainty(total**0.5, total**2 / sum(weights))


def _pairs(*samples: Sample) -> list[tuple[Uncertainty, float]]:
    return [(sample.uncertainty, sample.mean) for sample in samples if sample.uncertainty is not None]


def _sides(first: Sample, second: Sample, confidence: float) -> tuple[float, float]:
    if min(first.draws.min(), second.draws.min()) <= 0:
        return 1.0, 1.0
    return sides(np.log(first.draws / second.draws) - log(first.mean / second.mean), confidence)


def _p_value(distance: float, joint: Uncertainty, side: float) -> float:
    if joint.standard_error == 0:
        return 1.0 if distance == 0 else 0.0
    return min(1.0, t_p_value(joint.degrees_of_freedom, distance / (joint.standard_error * side)))
