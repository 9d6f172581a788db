"""Trials far from the others of their point: flagged and shown, never dropped."""

from collections.abc import Sequence

import numpy as np

MODIFIED_Z_LIMIT = 3.5  # Iglewicz and Hoaglin (1993), for 0.6745 · |x − median| / MAD
_MAD_TO_SD = 0.6745  # third quartile of the normal distribution: MAD / sd

# The MAD of three values is the distance of the nearer neighbour to the median, so two values that nearly coincide
# make any third one look extreme: more than one in four triples of pure noise pass the z limit. A flag must also
# matter. 10 % is five times the 2 % relative sd between trials that calls for no attention; fewer than one point in
# 10,000 of such noise, with three to ten trials, is flagged.
MIN_RELATIVE_DEVIATION = 0.10

MIN_TRIALS = 3  # of two values neither is the odd one


def outliers(values: Sequence[float]) -> list[int]:
    """Positions of the values that are far from the median, by the robust z-score and by at least 10 %."""
    if len(values) < MIN_TRIALS:
        return []
    series = np.asarray(values, dtype=np.float64)
    median = float(np.median(series))
    distance = np.abs(series - median)
    mad = float(np.median(distance))
    far = _MAD_TO_SD * distance > MODIFIED_Z_LIMIT * mad
    matters = distance > MIN_RELATIVE_DEVIATION * abs(median)
    return [int(place) for place in np.flatnonzero(far & matters)]
