"""Where a config stops being faster than the baseline. Made by `analysis.crossover`; printed by `report`."""

from enum import StrEnum

from bitbench.analysis.results.estimate import Estimate
from bitbench.study.base import Record
from bitbench.study.plan import Config


class CrossoverAxis(StrEnum):
    CONCURRENCY = "concurrency"
    INPUT_TOKENS = "input_tokens"


class CrossoverSide(StrEnum):
    """Against the baseline, at the confidence of the study."""

    FASTER = "faster"
    SLOWER = "slower"
    UNSURE = "inconclusive"


class CrossoverPoint(Record):
    """A workload of the series; `speed` is config / baseline, more than 1 where the config is better."""

    at: int  # on the axis
    workload: str
    speed: Estimate


class Stretch(Record):
    """A part of the axis with one standing. Between two points, what lies between their intervals decides."""

    low: float
    high: float
    standing: CrossoverSide


class Crossing(Record):
    """`at`, between the points `after` and `before`, the two are equal; where that may be lies in `low` to `high`."""

    at: float
    low: float
    high: float
    after: int
    before: int
    becomes: CrossoverSide  # what it is beyond it
    is_sure: bool  # significantly one on this side of low … high, and significantly the other on that side


class Crossover(Record):
    """One config along one axis, everything else equal."""

    axis: CrossoverAxis
    config: Config
    baseline: Config
    metric: str
    points: tuple[CrossoverPoint, ...]  # at least two, ascending
    stretches: tuple[Stretch, ...]  # ascending, without gaps
    crossings: tuple[Crossing, ...]
    confidence: float
    # How sure it is that it nowhere changes sides between the first point and the last; None where it seems to.
    none_confidence: float | None
