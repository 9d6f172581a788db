"""A limit such as `output_throughput < -3%`, and whether a change exceeds it, meets it, or is inconclusive.

Several cells may be asked at once, so each interval is made at the confidence 1 − (1 − c) / number (Bonferroni): the
chance that any of equal cells is called broken stays below 1 − c. An interval that rests on one start knows nothing of
the next one, and decides nothing.
"""

import re
from dataclasses import dataclass
from math import log, sqrt

from scipy.special import stdtrit

from bitbench.core.found.comparison import GateOutcome
from bitbench.core.found.metrics import find
from bitbench.core.found.summary import Ratio
from bitbench.ground.errors import CannotCompareError
from bitbench.ground.units import parse_fraction
from bitbench.statistics.changes import Change
from bitbench.statistics.quality import PERPLEXITY
from bitbench.statistics.trial import RECORDED

MOST_STARTS = 1000  # beyond it nobody starts an engine again; the change equals the limit itself
FEWEST_STARTS = 3  # two give an interval so wide that it decides nothing

_CONDITION = re.compile(r"\s*(\w+)\s*([<>])\s*([+-]?)\s*([0-9.]+\s*%?)\s*")


@dataclass(frozen=True)
class Condition:
    """Broken when the change of `metric`, relative to the baseline, is below (`<`) or above (`>`) `change`."""

    text: str
    metric: str
    is_below: bool
    change: float

    @property
    def limit(self) -> float:
        """As a ratio."""
        return 1 + self.change


def parse_metric(name: str) -> str:
    """The column of a figure that every trial records, or perplexity; in any spelling of `core.found.metrics`."""
    metric = find(name)
    if metric is None or metric.column not in (*RECORDED, PERPLEXITY):
        known = ", ".join([*(one.name for one in RECORDED.values()), PERPLEXITY])
        raise CannotCompareError(f"unknown figure {name}; known are {known}")
    return metric.column


def parse_condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise CannotCompareError(
            f'--fail-if {text!r} cannot be parsed; write it as "output_throughput < -3%" or "ttft > 5%"'
        )
    name, sign, minus, amount = match.groups()
    metric = parse_metric(name)
    try:
        change = parse_fraction(amount) * (-1 if minus == "-" else 1)
    except ValueError as error:
        raise CannotCompareError(f"--fail-if {text!r}: {error}") from error
    if change <= -1:
        raise CannotCompareError(f"--fail-if {text!r}: no figure can fall by 100 % or more")
    return Condition(" ".join(text.split()), metric, sign == "<", change)


@dataclass(frozen=True)
class Judgement:
    outcome: GateOutcome
    ratio: Ratio | None
    reason: str = ""
    needed_starts: int | None = None


def judge(condition: Condition, change: Change, confidence: float, asked: int) -> Judgement:
    """`asked`: how many cells and conditions are judged at once."""
    single = 1 - (1 - confidence) / asked
    ratio = change.ratio(single)
    if ratio is None:
        return Judgement(GateOutcome.UNSURE, None, "a ratio of these means is not defined")
    if change.fewest_starts < 2:
        reason = "one side has a single start, which does not cover a restart"
        return Judgement(GateOutcome.UNSURE, ratio, reason, FEWEST_STARTS)
    if ratio.interval is None:
        return Judgement(GateOutcome.UNSURE, ratio, "too few trials for an interval", FEWEST_STARTS)
    low, high, limit = ratio.interval.low, ratio.interval.high, condition.limit
    if (high < limit) if condition.is_below else (low > limit):
        return Judgement(GateOutcome.FAILED, ratio)
    if (low >= limit) if condition.is_below else (high <= limit):
        return Judgement(GateOutcome.PASSED, ratio)
    needed = starts_needed(change, log(ratio.value) - log(limit), single)
    reason = "the interval contains the limit" if needed else "the change equals the limit"
    return Judgement(GateOutcome.UNSURE, ratio, reason, needed)


def starts_needed(change: Change, distance: float, confidence: float) -> int | None:
    """Starts of each side until the interval would leave the limit, if means and spread stay as they are.

    `distance` of the log ratio to the limit. None: more than MOST_STARTS. The standard error of a mean falls with the
    root of the number of starts.
    """
    variance = change.variance_of_one_start
    if variance is None:
        return None
    for starts in range(change.fewest_starts + 1, MOST_STARTS + 1):
        quantile = float(stdtrit(change.degrees_of_freedom(starts), (1 + confidence) / 2))
        if quantile * sqrt(variance / starts) < abs(distance):
            return starts
    return None
