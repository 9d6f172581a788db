"""How far a search for the highest rate goes."""

from bitbench.study.base import Spec


class SearchLimits(Spec):
    """Rates in requests per second; `precision` is the half width of the interval, relative."""

    start: float
    lowest: float
    highest: float
    precision: float = 0.03
    trials: int = 12
    confidence: float = 0.95
