"""What the records found, as quantities of a document."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from bitbench.analysis.results.summary import (
    Estimate,
    Interval,
    MetricDefinition,
    PointSummary,
    QualityEstimate,
    Ratio,
    Spread,
)
from bitbench.analysis.results.tails import PercentileEstimate
from bitbench.reports.document.model import Phrase, Quantity, Range, Unit
from bitbench.study.metrics import find

ROUGH = 3  # significant digits of a figure without an interval that nobody reads more of
_WITH_RULES_OF_THEIR_OWN = (Unit.SHARE, Unit.RATIO, Unit.COUNT)  # about digits


def unit_of(definition: MetricDefinition) -> str:
    return Unit.SHARE if definition.unit == "%" else definition.unit


def with_interval(value: float | None, unit: str, interval: Interval | None, note: str = "") -> Quantity:
    low, high = (interval.low, interval.high) if interval else (None, None)
    return Quantity(value, unit, low, high, note=note)


def estimated(estimate: Estimate | None, definition: MetricDefinition) -> Quantity | None:
    """The mean and its interval."""
    return None if estimate is None else with_interval(estimate.mean, unit_of(definition), estimate.interval)


def figure_of(point: PointSummary, metric: str, definition: MetricDefinition) -> Quantity | None:
    """Of the tail what the requests of all trials say; where they were not kept, the mean over trials."""
    known, tail = find(metric), point.tails.get(metric)
    is_tail = known is not None and known.is_tail
    if tail is not None and (is_tail or metric not in point.metrics):
        return pooled(tail)
    shown = estimated(point.metrics.get(metric), definition)
    return replace(shown, note="(per trial)") if is_tail and shown is not None else shown


def pooled(tail: PercentileEstimate) -> Quantity:
    """`412 [380, ∞) ms (slowest of 24)`"""
    note = f"({tail.note})" if tail.note else ""
    return Quantity(tail.shown, Unit.SECONDS, tail.shown_low, tail.high, note=note)


def mean_of(estimate: Estimate | None, definition: MetricDefinition) -> Quantity | None:
    """Without its interval, which of a size can be far narrower than anybody cares for."""
    return None if estimate is None else Quantity(estimate.mean, unit_of(definition))


def half_width(estimate: Estimate | None) -> Quantity | None:
    """Relative: `± 1.2 %` without the sign."""
    return number(estimate.relative_half_width, Unit.SHARE) if estimate else None


def times(ratio: Ratio | None) -> Quantity | None:
    """`1.42× [1.39, 1.45]`"""
    return None if ratio is None else with_interval(ratio.value, Unit.RATIO, ratio.interval)


def quality_of(estimate: QualityEstimate | None, definition: MetricDefinition) -> Quantity | None:
    return None if estimate is None else with_interval(estimate.value, unit_of(definition), estimate.interval)


def over_instances(spread: Spread | None, unit: str) -> Quantity | None:
    """`12.3 (11.9 – 12.8)`: the mean, the lowest and the highest."""
    return (
        None if spread is None else Quantity(spread.mean, unit, spread.low, spread.high, Range.EXTREMES, digits=ROUGH)
    )


def plus_minus(value: Quantity, error: Quantity | None) -> Phrase:
    """`0.75 ± 0.09`: a value and the deviation or standard error that stands behind it."""
    return (value,) if error is None else (value, " ± ", error)


def seconds(value: float | None) -> Quantity | None:
    return number(value, Unit.SECONDS)


def size(value: float | None) -> Quantity | None:
    return number(value, Unit.BYTES)


def share(value: float | None) -> Quantity | None:
    return number(value, Unit.SHARE)


def number(value: float | None, unit: str = Unit.NONE, digits: int = ROUGH) -> Quantity | None:
    if value is None:
        return None
    return Quantity(value, unit, digits=None if unit in _WITH_RULES_OF_THEIR_OWN else digits)


def setting(value: float, unit: str = Unit.NONE) -> Quantity:
    """What a person asked for, with the digits that it has: `10 req/s`, `0.5 req/s`."""
    digits = f"{value:.4g}".partition("e")[0].replace(".", "").lstrip("0")
    return Quantity(value, unit, digits=len(digits) or 1)


def median_and_extremes(values: Sequence[float], unit: str, decimals: int) -> Quantity | None:
    if not values:
        return None
    return Quantity(median(values), unit, min(values), max(values), Range.EXTREMES, decimals=decimals)
