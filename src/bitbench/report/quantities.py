"""What the records found, as quantities of a document."""

from bitbench.core.found.summary import Estimate, MetricDefinition, QualityEstimate, Ratio, Spread
from bitbench.core.recorded.kernel import KernelMachine
from bitbench.report.document.model import Phrase, Quantity, Range, Unit

ROUGH = 3  # significant digits of a figure without an interval that nobody reads more of


def unit_of(definition: MetricDefinition) -> str:
    return Unit.SHARE if definition.unit == "%" else definition.unit


def estimated(estimate: Estimate | None, definition: MetricDefinition) -> Quantity | None:
    """The mean and its interval."""
    if estimate is None:
        return None
    interval = estimate.interval
    ends = (interval.low, interval.high) if interval else (None, None)
    return Quantity(estimate.mean, unit_of(definition), *ends)


def mean_of(estimate: Estimate | None, definition: MetricDefinition) -> Quantity | None:
    """Without its interval, which of a size can be far narrower than anybody cares for."""
    return None if estimate is None else Quantity(estimate.mean, unit_of(definition))


def half_width(estimate: Estimate | None) -> Quantity | None:
    """Relative: `± 1.2 %` without the sign."""
    width = estimate.relative_half_width if estimate else None
    return None if width is None else Quantity(width, Unit.SHARE)


def times(ratio: Ratio | None) -> Quantity | None:
    """`1.42× [1.39, 1.45]`"""
    if ratio is None:
        return None
    ends = (ratio.interval.low, ratio.interval.high) if ratio.interval else (None, None)
    return Quantity(ratio.value, Unit.RATIO, *ends)


def quality_of(estimate: QualityEstimate | None, definition: MetricDefinition) -> Quantity | None:
    if estimate is None:
        return None
    ends = (estimate.interval.low, estimate.interval.high) if estimate.interval else (None, None)
    return Quantity(estimate.value, unit_of(definition), *ends)


def over_instances(spread: Spread | None, unit: str) -> Quantity | None:
    """`12.3 (11.9 – 12.8)`: the mean, the lowest and the highest."""
    if spread is None:
        return None
    return Quantity(spread.mean, unit, spread.low, spread.high, Range.EXTREMES, digits=ROUGH)


def plus_minus(value: Quantity, error: Quantity | None) -> Phrase:
    """`0.75 ± 0.09`: a value and the deviation or standard error that stands behind it."""
    return (value,) if error is None else (value, " ± ", error)


def seconds(value: float | None, digits: int = ROUGH) -> Quantity | None:
    return None if value is None else Quantity(value, Unit.SECONDS, digits=digits)


def size(value: float | None, digits: int = ROUGH) -> Quantity | None:
    return None if value is None else Quantity(value, Unit.BYTES, digits=digits)


def share(value: float | None) -> Quantity | None:
    return None if value is None else Quantity(value, Unit.SHARE)


def count(value: int | None) -> Quantity | None:
    return None if value is None else Quantity(value, Unit.COUNT)


def number(value: float | None, unit: str = Unit.NONE, digits: int = ROUGH) -> Quantity | None:
    return None if value is None else Quantity(value, unit, digits=digits)


def setting(value: float, unit: str = Unit.NONE) -> Quantity:
    """What a person asked for, with the digits that it has: `10 req/s`, `0.5 req/s`."""
    digits = f"{value:.4g}".partition("e")[0].replace(".", "").lstrip("0")
    return Quantity(value, unit, digits=len(digits) or 1)


def roof_quantities(machine: KernelMachine) -> tuple[Quantity, Quantity]:
    """What memory and arithmetic can do at most."""
    read = Quantity(machine.read_bytes_per_s / 1e9, "GB/s", decimals=1)
    return read, Quantity(machine.flops_per_s / 1e9, "Gflop/s", decimals=0)
