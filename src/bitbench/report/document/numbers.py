"""Numbers as a reader needs them: in one unit per column, with as many digits as the interval supports."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, log10

from bitbench.core.found.summary import Estimate, Interval, MetricDefinition, Ratio, Spread
from bitbench.ground.units import UNKNOWN, show_percent, significant

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_SIZES = ((10 * 2**30, 2**30, "GiB"), (0, 2**20, "MiB"))
DIGITS_OF_UNCERTAINTY = 2
DIGITS_WITHOUT_INTERVAL = 4


@dataclass(frozen=True)
class Scale:
    """One unit for a whole column."""

    unit: str
    factor: float = 1.0


def scale_for(definition: MetricDefinition, values: Iterable[float]) -> Scale:
    """The smallest value decides, so that none is written with leading zeros."""
    smallest = min((value for value in values if value > 0), default=1.0)
    if definition.unit == "s":
        factor, unit = next((one for one in _TIMES if smallest >= one[0]), _TIMES[-1])
        return Scale(unit, factor)
    return size_scale([smallest]) if definition.unit == "bytes" else Scale(definition.unit)


def size_scale(values: Iterable[float]) -> Scale:
    smallest = min((value for value in values if value > 0), default=1.0)
    return next(Scale(unit, factor) for least, factor, unit in _SIZES if smallest >= least)


def number(value: float, half_width: float | None = None) -> str:
    """With so many decimals that the half width keeps two digits; without one, four digits in all."""
    return f"{value:,.{_decimals(value, half_width)}f}"


def _decimals(value: float, half_width: float | None) -> int:
    magnitude = floor(log10(abs(value))) if value else 0
    wanted = DIGITS_WITHOUT_INTERVAL - 1 - magnitude
    if half_width:
        wanted = min(DIGITS_OF_UNCERTAINTY - 1 - floor(log10(half_width)), wanted + 2)
    return min(max(wanted, 0), 9)


def lone(value: float | None, scale: Scale) -> str:
    return UNKNOWN if value is None else number(value / scale.factor)


def mean_alone(estimate: Estimate | None, scale: Scale) -> str:
    """Four digits: for sizes, whose interval can be far narrower than anybody cares for."""
    return lone(None if estimate is None else estimate.mean, scale)


def mean(estimate: Estimate | None, scale: Scale) -> str:
    return _with_interval(estimate, scale, bracket=False)


def mean_and_interval(estimate: Estimate | None, scale: Scale) -> str:
    """`193.8 [186.9, 200.7]`"""
    return _with_interval(estimate, scale, bracket=True)


def _with_interval(estimate: Estimate | None, scale: Scale, *, bracket: bool) -> str:
    if estimate is None:
        return UNKNOWN
    value = estimate.mean / scale.factor
    if estimate.interval is None:
        return number(value)
    low, high = estimate.interval.low / scale.factor, estimate.interval.high / scale.factor
    decimals = _decimals(value, (high - low) / 2)
    text = f"{value:,.{decimals}f}"
    return f"{text} [{low:,.{decimals}f}, {high:,.{decimals}f}]" if bracket else text


def percent(fraction: float) -> str:
    """`95 %`, `99.9 %`: for settings, which are round."""
    return f"{100 * fraction:.4g} %"


def plus_minus(estimate: Estimate | None) -> str:
    """`± 1.2 %`"""
    width = estimate.relative_half_width if estimate else None
    return UNKNOWN if width is None else f"± {show_percent(width)}"


def times(ratio: Ratio | None) -> str:
    """`1.42× [1.39, 1.45]`"""
    if ratio is None:
        return UNKNOWN
    if ratio.interval is None:
        return f"{ratio.value:.2f}×"
    decimals = 3 if _half(ratio.interval) < 0.005 else 2
    return f"{ratio.value:.{decimals}f}× [{ratio.interval.low:.{decimals}f}, {ratio.interval.high:.{decimals}f}]"


def _half(interval: Interval) -> float:
    return (interval.high - interval.low) / 2


def spread(figure: Spread | None, scale: Scale) -> str:
    """`12.3 (11.9 – 12.8)`, one number where all are equal."""
    if figure is None:
        return UNKNOWN
    value, low, high = (significant(one / scale.factor) for one in (figure.mean, figure.low, figure.high))
    return value if low == high else f"{value} ({low} – {high})"
