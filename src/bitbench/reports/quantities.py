"""What the records found, as quantities of a document."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from bitbench.analysis.results.estimate import Estimate, Finding, Verdict
from bitbench.analysis.results.summary import MetricDefinition, PointSummary
from bitbench.reports.document.model import Phrase, Quantity, Range, Unit
from bitbench.study.metrics import find
from bitbench.util.units import UNKNOWN

ROUGH = 3  # significant digits of a figure without an interval that nobody reads more of
_WITH_RULES_OF_THEIR_OWN = (Unit.SHARE, Unit.RATIO, Unit.COUNT)  # about digits


def unit_of(definition: MetricDefinition) -> str:
    return Unit.SHARE if definition.unit == "%" else definition.unit


def quantity(estimate: Estimate | None, unit: str, *, digits: int | None = None) -> Quantity | None:
    """`412 [380, ∞) ms (slowest of 24)`, `12.3 (11.9 – 12.8)`; None where it is unknown."""
    if estimate is None:
        return None
    note = f"({estimate.note})" if estimate.note else ""
    range_ = Range(estimate.kind)
    return Quantity(estimate.value, unit, estimate.low, estimate.high, range_, digits=digits, note=note)


MARKS = {Verdict.MET: "✓", Verdict.MISSED: "✗", Verdict.INCONCLUSIVE: "?"}


def finding_quantity(finding: Finding, note: str = "") -> Quantity:
    """What is held against a limit, with a mark or a word behind it."""
    known = quantity(finding.estimate, finding.unit) or Quantity(None, finding.unit)
    return replace(known, note=" ".join(part for part in (known.note, note) if part))


def estimated(estimate: Estimate | None, definition: MetricDefinition) -> Quantity | None:
    """In the unit of its metric."""
    return quantity(estimate, unit_of(definition))


def figure_of(point: PointSummary, metric: str, definition: MetricDefinition) -> Quantity | None:
    """Of the tail what the requests of all trials say; where they were not kept, the mean over trials."""
    known, tail = find(metric), point.tails.get(metric)
    is_tail = known is not None and known.is_tail
    if tail is not None and (is_tail or metric not in point.metrics):
        return quantity(tail, Unit.SECONDS)
    shown = estimated(point.metrics.get(metric), definition)
    return replace(shown, note="(per trial)") if is_tail and shown is not None else shown


def mean_of(estimate: Estimate | None, definition: MetricDefinition) -> Quantity | None:
    """Without its interval, which of a size can be far narrower than anybody cares for."""
    return None if estimate is None else Quantity(estimate.value, unit_of(definition))


def half_width(estimate: Estimate | None) -> Quantity | None:
    """Relative: `± 1.2 %` without the sign."""
    return share(estimate.basis.relative_half_width) if estimate and estimate.basis else None


def starts_and_trials(estimate: Estimate) -> str:
    """`3 / 15`"""
    return f"{estimate.basis.starts} / {estimate.basis.trials}" if estimate.basis else UNKNOWN


def times(ratio: Estimate | None) -> Quantity | None:
    """`1.42× [1.39, 1.45]`"""
    return quantity(ratio, Unit.RATIO)


def over_instances(spread: Estimate | None, unit: str) -> Quantity | None:
    """`12.3 (11.9 – 12.8)`: the mean, the lowest and the highest."""
    return quantity(spread, unit, digits=ROUGH)


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
