"""Numbers of the records as quantities of a document, and the one place that turns them into text.

A column has one unit, and a value has as many digits as its interval supports.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from math import floor, isfinite, log10
from statistics import median

from bitbench.analysis.results.estimate import Estimate, Finding, Verdict
from bitbench.analysis.results.summary import MetricDefinition, PointSummary
from bitbench.reports.document.model import Column, Phrase, Quantity, Table, TableCell, Unit
from bitbench.study.metrics import find_metric
from bitbench.util.units import UNKNOWN

# The smallest value from which a unit is used, its factor and its name.
_Units = tuple[tuple[float, float, str], ...]
_TIMES: _Units = ((1.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (1e-6, 1e-6, "µs"), (0, 1e-9, "ns"))
_SIZES: _Units = (
    (10 * 2**30, 2**30, "GiB"),
    (2**20, 2**20, "MiB"),
    (2**10, 2**10, "KiB"),
    (0, 1, "B"),
)
# An interval's half width gets two digits if the first is small, else one: the rule of the
# Particle Data Group. Its ends are then right to a seventh of the half width. A value has at most
# four digits: no decision needs a fifth.
ONE_DIGIT_FROM = 3.55
MOST_DIGITS = 4
MOST_DECIMALS = 9


@dataclass(frozen=True)
class Scale:
    """The unit of a whole column."""

    unit: str
    factor: float = 1.0


def choose_scale(unit: str, values: Iterable[float | None]) -> Scale:
    """Return the unit to write values in. The smallest decides, so that none gets leading zeros."""
    sizes = (abs(value) for value in values if value and isfinite(value))
    smallest = min(sizes, default=1.0)
    match unit:
        case Unit.SECONDS:
            return _find_scale(_TIMES, smallest)
        case Unit.BYTES:
            return _find_scale(_SIZES, smallest)
        case Unit.SHARE:
            return Scale("%", 0.01)
        case Unit.RATIO | Unit.COUNT:
            return Scale("")
        case _:
            return Scale(unit)


def _find_scale(units: _Units, smallest: float) -> Scale:
    return next(Scale(name, factor) for least, factor, name in units if smallest >= least)


@dataclass(frozen=True)
class Written:
    """The parts of a quantity as text. A part without content is empty."""

    value: str
    limits: str = ""
    unit: str = ""
    note: str = ""

    @property
    def text(self) -> str:
        return " ".join(filter(None, (self.value, self.limits, self.unit, self.note)))


def _write_quantity(
    quantity: Quantity, scale: Scale | None = None, *, interval: bool = True
) -> Written:
    """Return a quantity as text. A `scale` is that of a column, whose title names the unit."""
    if quantity.value is None:
        return Written(UNKNOWN, note=quantity.note)
    unit = ""
    if scale is None:
        scale = choose_scale(quantity.unit, [_find_size(quantity.value, quantity)])
        unit = scale.unit
    value = _format_number(quantity.value, quantity, scale)
    if quantity.unit == Unit.RATIO:
        value = f"{value}×"
    if quantity.sd is not None:
        spread = _format_number(quantity.sd, quantity, scale) if quantity.sd else "0"
        value = f"{value} ± {spread}"
    limits = _format_interval(quantity, scale) if interval else ""
    return Written(value, limits, unit, quantity.note)


def _find_size(value: float, quantity: Quantity) -> float:
    """Return the number that decides the unit: the value, unless its interval is far wider."""
    limits = [abs(limit) for limit in (quantity.low, quantity.high) if limit is not None]
    widest = max(limits, default=0.0)
    return widest if abs(value) < widest / 1000 else value


def format_quantity(quantity: Quantity) -> str:
    """Return a quantity with its unit: `29.6 ± 3.1 [24.8, 34.1] tok/s`."""
    return _write_quantity(quantity).text


def choose_column_scales(table: Table) -> list[Scale]:
    """Return one unit per column, so that its values can be compared at a glance."""
    scales = []
    for index, column in enumerate(table.columns):
        cells = [row.cells[index] for row in table.rows]
        values = [cell.value for cell in cells if isinstance(cell, Quantity)]
        scales.append(choose_scale(column.unit, values))
    return scales


def write_quantity_in_column(
    column: Column, scale: Scale, quantity: Quantity, *, interval: bool = True
) -> Written:
    """Return a quantity as the text of a cell. It names its unit only if the column has another."""
    column_scale = scale if quantity.unit == column.unit else None
    return _write_quantity(quantity, column_scale, interval=interval)


def format_cells_with_units(
    table: Table,
    format_phrase: Callable[[Phrase], str],
    format_number: Callable[[str], str] = str,
) -> tuple[list[str], list[list[str]]]:
    """Return the titles with the units of the columns, and the rows, as text.

    `format_phrase` and `format_number` escape the text for the renderer that calls.
    """
    scales = choose_column_scales(table)
    titles = []
    for column, scale in zip(table.columns, scales, strict=True):
        title = column.title
        if scale.unit:
            title = (*title, f" ({scale.unit})")
        titles.append(format_phrase(title))

    def format_cell(content: TableCell, column: Column, scale: Scale) -> str:
        if content is None:
            return format_number(UNKNOWN)
        if isinstance(content, Quantity):
            return format_number(write_quantity_in_column(column, scale, content).text)
        return format_phrase(content)

    rows = []
    for row in table.rows:
        cells = zip(row.cells, table.columns, scales, strict=True)
        rows.append(list(starmap(format_cell, cells)))
    return titles, rows


def _format_interval(quantity: Quantity, scale: Scale) -> str:
    """Return `[24.8, 34.1]`, `[24.8, ∞)` if open, or `(11.9 – 12.8)` for extremes.

    The result is empty if the interval is unknown.
    """
    if quantity.low is None:
        return ""
    low = _format_number(quantity.low, quantity, scale)
    if quantity.high is None:
        return f"[{low}, ∞)"
    high = _format_number(quantity.high, quantity, scale)
    if quantity.range == "interval":
        return f"[{low}, {high}]"
    return "" if low == high else f"({low} – {high})"


def _format_number(value: float, quantity: Quantity, scale: Scale) -> str:
    """Return a value of the quantity as text: its mean, its deviation or an end of its interval."""
    scaled = value / scale.factor
    if not isfinite(scaled):
        return "∞" if scaled > 0 else UNKNOWN
    sign = "+" if quantity.is_signed and value > 0 else ""
    return f"{sign}{scaled:z,.{_count_decimals(quantity, scale)}f}"  # z: never -0


def _count_decimals(quantity: Quantity, scale: Scale) -> int:
    """Return how many decimals the value and its interval have."""
    assert quantity.value is not None
    if quantity.decimals is not None:
        return quantity.decimals
    if quantity.unit == Unit.COUNT:
        return 0
    value = quantity.value / scale.factor
    half = _compute_half_width(quantity, scale)
    if quantity.digits is not None:
        if not value:  # zero has no significant digits
            return 0
    elif quantity.unit == Unit.RATIO:
        return 3 if half is not None and half < 0.005 else 2
    elif quantity.unit == Unit.SHARE and half is None:
        return 1
    if half is not None and abs(value) + half < 0.5 * 10**-MOST_DECIMALS:
        return 0  # every digit would be a zero
    magnitude = floor(log10(abs(value))) if value else 0
    decimals = (quantity.digits or MOST_DIGITS) - 1 - magnitude
    if half and quantity.digits is None:
        exponent = floor(log10(half))
        has_two_digits = half / 10**exponent < ONE_DIGIT_FROM
        decimals = min(int(has_two_digits) - exponent, decimals)
    return min(max(decimals, 0), MOST_DECIMALS)


def _compute_half_width(quantity: Quantity, scale: Scale) -> float | None:
    """Return the standard deviation of trials, or half the width of the confidence interval.

    The result is None if both are unknown.
    """
    if quantity.sd:
        return quantity.sd / scale.factor
    if quantity.low is None or quantity.high is None or quantity.range != "interval":
        return None
    return (quantity.high - quantity.low) / 2 / scale.factor


def format_percent(fraction: float) -> str:
    """Return `95 %` or `99.9 %`: for settings, which are round numbers."""
    return f"{100 * fraction:.4g} %"


ROUGH = 3  # significant digits of a value without an interval
_WITH_RULES_OF_THEIR_OWN = (Unit.SHARE, Unit.RATIO, Unit.COUNT)  # about digits


def find_unit(definition: MetricDefinition) -> str:
    """Return the base unit of a metric's quantities."""
    return Unit.SHARE if definition.unit == "%" else definition.unit


def make_quantity(
    estimate: Estimate | None, unit: str, *, digits: int | None = None
) -> Quantity | None:
    """Return an estimate as a quantity, or None if it is unknown.

    It is written as `29.6 ± 3.1 [24.8, 34.1]`, `412 [380, ∞) ms (slowest of 24)` or
    `12.3 (11.9 – 12.8)`.
    """
    if estimate is None:
        return None
    note = f"({estimate.note})" if estimate.note else ""
    result = Quantity(
        estimate.value, unit, estimate.low, estimate.high, estimate.kind, digits=digits, note=note
    )
    if estimate.basis is None or result.range == "extremes":
        return result
    return replace(result, sd=estimate.basis.trial_sd)


MARKS = {Verdict.MET: "✓", Verdict.MISSED: "✗", Verdict.INCONCLUSIVE: "?"}


def format_verdict_counts(verdicts: Sequence[Verdict | None]) -> list[str]:
    """Return how often each verdict occurs: `2 met`, `1 missed`."""
    counts = []
    for verdict in Verdict:
        if verdict in verdicts:
            counts.append(f"{verdicts.count(verdict)} {verdict.value}")
    return counts


def make_finding_quantity(finding: Finding, note: str = "") -> Quantity:
    """Return the quantity that is compared with a limit, followed by a mark or a word."""
    result = make_quantity(finding.estimate, finding.unit) or Quantity(None, finding.unit)
    return replace(result, note=" ".join(filter(None, (result.note, note))))


def to_quantity(estimate: Estimate | None, definition: MetricDefinition) -> Quantity | None:
    """Return an estimate in the unit of its metric, or None if it is unknown."""
    return make_quantity(estimate, find_unit(definition))


def find_point_quantity(
    point: PointSummary, metric: str, definition: MetricDefinition
) -> Quantity | None:
    """Return a metric of a point, or None if it is unknown.

    A tail is computed from the requests of all trials. If they were not kept, it is the mean over
    trials.
    """
    defined = find_metric(metric)
    is_tail = defined is not None and defined.is_tail
    tail = point.tails.get(metric)
    if tail is not None and (is_tail or metric not in point.metrics):
        return make_quantity(tail, Unit.SECONDS)
    mean = to_quantity(point.metrics.get(metric), definition)
    if mean is None or not is_tail:
        return mean
    return replace(mean, note="(per trial)")


def make_mean_quantity(estimate: Estimate | None, definition: MetricDefinition) -> Quantity | None:
    """Return the mean alone: the interval of a size can be far narrower than any use of it."""
    if estimate is None:
        return None
    return Quantity(estimate.value, find_unit(definition))


def format_starts_and_trials(estimate: Estimate) -> str:
    """Return the counts of starts and trials: `3 / 15`."""
    if estimate.basis is None:
        return UNKNOWN
    return f"{estimate.basis.starts} / {estimate.basis.trials}"


def make_ratio(ratio: Estimate | None) -> Quantity | None:
    """Return a ratio, written as `1.42× [1.39, 1.45]`, or None if it is unknown."""
    return make_quantity(ratio, Unit.RATIO)


def make_spread(spread: Estimate | None, unit: str) -> Quantity | None:
    """Return a mean with the lowest and the highest value, written as `12.3 (11.9 – 12.8)`."""
    return make_quantity(spread, unit, digits=ROUGH)


def format_plus_minus(value: Quantity, error: Quantity | None) -> Phrase:
    """Return `0.75 ± 0.09`: a value and its standard deviation or standard error."""
    return (value,) if error is None else (value, " ± ", error)


def make_seconds(value: float | None) -> Quantity | None:
    return make_number(value, Unit.SECONDS)


def make_size(value: float | None) -> Quantity | None:
    return make_number(value, Unit.BYTES)


def make_share(value: float | None) -> Quantity | None:
    return make_number(value, Unit.SHARE)


def make_number(value: float | None, unit: str = Unit.NONE, digits: int = ROUGH) -> Quantity | None:
    """Return a number without an interval as a quantity, or None if it is unknown."""
    if value is None:
        return None
    if unit in _WITH_RULES_OF_THEIR_OWN:
        return Quantity(value, unit)
    return Quantity(value, unit, digits=digits)


def make_setting(value: float, unit: str = Unit.NONE) -> Quantity:
    """Return a setting with the digits that the user gave it: `10 req/s`, `0.5 req/s`."""
    digits = f"{value:.4g}".partition("e")[0].replace(".", "").lstrip("0")
    return Quantity(value, unit, digits=len(digits) or 1)


def compute_median(values: Sequence[float], unit: str, decimals: int) -> Quantity | None:
    """Return the median with the lowest and the highest value, or None without values."""
    if not values:
        return None
    return Quantity(median(values), unit, min(values), max(values), "extremes", decimals=decimals)
