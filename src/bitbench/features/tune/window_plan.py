"""How many windows of fresh text decide whether a loss of quality stays within its limit.

The number is fixed before the first of them is scored, so that no look bends the figures. It follows from windows that
were scored before: where their losses (nats per token) have the mean m and the standard deviation s, and the limit is
at ln(1 + limit), n windows decide with the probability POWER if

    (z(97.5 %) + z(POWER)) · s / √n  ≤  | ln(1 + limit) − m |
"""

from collections.abc import Sequence
from math import ceil, inf, log1p

import numpy as np

from bitbench.analysis.distributions import normal_quantile

POWER = 0.9
# Of the windows that were scored before. Few of them know their own distance from the limit badly, so that a plan by
# it alone is often too short: tests/features/tune/test_tune_run.py simulates how often a limit is decided.
LEAST_TIMES, MOST_TIMES = 4, 32


def windows_to_decide(losses: Sequence[float], limit: float, confidence: float, most: int) -> int:
    """A multiple of the windows that `losses` are of, so that those halfway between them are others; no more than
    `most`, and 0 where that is less than there were."""
    distance, scored = abs(log1p(limit) - float(np.mean(losses))), len(losses)
    per_root = (normal_quantile((1 + confidence) / 2) + normal_quantile(POWER)) * float(np.std(losses, ddof=1))
    needed = (per_root / distance) ** 2 if distance else inf
    times = min(max(needed / scored, LEAST_TIMES), MOST_TIMES)
    return scored * min(ceil(times), most // scored)
