"""Numbers of the records as quantities of a document, and the one place where they become text: one unit per column,
as many digits as the interval supports."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import floor, isfinite, log10
from statistics import median

from bitbench.analysis.results.estimate import Estimate, Finding, Verdict
from bitbench.analysis.results.summary import MetricDefinition, PointSummary
from bitbench.reports.document.model import Column, Phrase, Quantity, Table, TableCell, Unit
from bitbench.study.metrics import find_metric
from bitbench.util.units import UNKNOWN

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZES = ((10 * 2**30, 2**30, "GiB"), (2**20, 2**20, "MiB"), (2**10, 2**10, "KiB"), (0, 1, "B"))
# Of the half width of an interval two digits where the first is small, else one, as the Particle Data Group rounds: the
# ends are right to a seventh of the half width. Never more than four digits of the value: a decision needs no fifth.
ONE_DIGIT_FROM = 3.55
MOST_DIGITS = 4
MOST_DECIMALS = 9


@dataclass(frozen=True)
class Scale:
    """One unit for a whole column."""

    unit: str
    factor: float = 1.0


def quantity_scale(unit: str, values: Iterable[float | None]) -> Scale:
    """The smallest value decides, so that none is written with leading zeros."""
    smallest = min((abs(value) for value in values if value and isfinite(value)), default=1.0)
    match unit:
        case Unit.SECONDS:
            return next(
                (Scale(name, factor) for factor, name in _TIMES if smallest >= factor),
                Scale("ns", 1e-9),
            )
        case Unit.BYTES:
            return next(Scale(name, factor) for least, factor, name in _SIZES if smallest >= least)
        case Unit.SHARE:
            return Scale("%", 0.01)
        case Unit.RATIO | Unit.COUNT:
            return Scale("")
        case _:
            return Scale(unit)


@dataclass(frozen=True)
class Written:
    """A quantity in words, part by part; what there is nothing to say about is empty."""

    value: str
    limits: str = ""
    unit: str = ""
    note: str = ""

    @property
    def text(self) -> str:
        return " ".join(part for part in (self.value, self.limits, self.unit, self.note) if part)


def _written_quantity(
    quantity: Quantity, scale: Scale | None = None, *, interval: bool = True
) -> Written:
    """In its own unit; where a `scale` is given, in that one, which the column names in its title."""
    if quantity.value is None:
        return Written(UNKNOWN, note=quantity.note)
    own = scale or quantity_scale(quantity.unit, [quantity.value])
    value = _number(quantity.value, quantity, own)
    if quantity.unit == Unit.RATIO:
        value = f"{value}×"
    if quantity.sd is not None:
        value = f"{value} ± {_number(quantity.sd, quantity, own) if quantity.sd else 0}"
    return Written(
        value,
        _limits(quantity, own) if interval else "",
        "" if scale else own.unit,
        quantity.note,
    )


def shown(quantity: Quantity) -> str:
    """`29.6 ± 3.1 [24.8, 34.1] tok/s`"""
    return _written_quantity(quantity).text


def column_quantity_scales(table: Table) -> list[Scale]:
    """One per column, from all of its values: the figures of a column can be compared at a glance."""
    return [
        quantity_scale(
            column.unit,
            (cell.value for row in table.rows if isinstance(cell := row.cells[place], Quantity)),
        )
        for place, column in enumerate(table.columns)
    ]


def written_quantity_in_column(
    column: Column, scale: Scale, quantity: Quantity, *, interval: bool = True
) -> Written:
    """As a cell. One of another unit than its column's says so itself."""
    return _written_quantity(
        quantity, scale if quantity.unit == column.unit else None, interval=interval
    )


def cells_with_units(
    table: Table, words: Callable[[Phrase], str], number: Callable[[str], str] = str
) -> tuple[list[str], list[list[str]]]:
    """Titles, with the unit of a column, and rows, for renderers that write text: `words` and `number` escape."""
    scales = column_quantity_scales(table)
    titles = [
        words((*column.title, f" ({scale.unit})") if scale.unit else column.title)
        for column, scale in zip(table.columns, scales, strict=True)
    ]

    def cell(content: TableCell, column: Column, scale: Scale) -> str:
        if isinstance(content, Quantity):
            return number(written_quantity_in_column(column, scale, content).text)
        return number(UNKNOWN) if content is None else words(content)

    rows = [
        [cell(*each) for each in zip(row.cells, table.columns, scales, strict=True)]
        for row in table.rows
    ]
    return titles, rows


def _limits(quantity: Quantity, scale: Scale) -> str:
    """`[24.8, 34.1]`, `(11.9 – 12.8)` for extremes, `[24.8, ∞)` where it is open; empty where it is unknown."""
    if quantity.low is None:
        return ""
    low = _number(quantity.low, quantity, scale)
    if quantity.high is None:
        return f"[{low}, ∞)"
    high = _number(quantity.high, quantity, scale)
    if quantity.range == "extremes":
        return "" if low == high else f"({low} – {high})"
    return f"[{low}, {high}]"


def _number(value: float, of: Quantity, scale: Scale) -> str:
    scaled = value / scale.factor
    if not isfinite(scaled):
        return "∞" if scaled > 0 else UNKNOWN
    sign = "+" if of.is_signed and value > 0 else ""
    return f"{sign}{scaled:z,.{_decimals(of, scale)}f}"  # never -0


def _decimals(of: Quantity, scale: Scale) -> int:
    """The same for a value and its interval."""
    assert of.value is not None
    value = of.value / scale.factor
    half = of.sd / scale.factor if of.sd else None
    if half is None and of.low is not None and of.high is not None and of.range == "interval":
        half = (of.high - of.low) / 2 / scale.factor
    if of.decimals is not None:
        return of.decimals
    if of.unit == Unit.COUNT or (
        of.digits is not None and not value
    ):  # zero has no significant digits
        return 0
    if of.unit == Unit.RATIO and of.digits is None:
        return 3 if half is not None and half < 0.005 else 2
    if of.unit == Unit.SHARE and of.digits is None and half is None:
        return 1
    if (
        half is not None and abs(value) + half < 0.5 * 10**-MOST_DECIMALS
    ):  # every digit would be a zero
        return 0
    magnitude = floor(log10(abs(value))) if value else 0
    wanted = (of.digits or MOST_DIGITS) - 1 - magnitude
    if half and of.digits is None:
        exponent = floor(log10(half))
        wanted = min((0 if half / 10**exponent >= ONE_DIGIT_FROM else 1) - exponent, wanted)
    return min(max(wanted, 0), MOST_DECIMALS)


def percent(fraction: float) -> str:
    """`95 %`, `99.9 %`: for settings, which are round."""
    return f"{100 * fraction:.4g} %"


ROUGH = 3  # significant digits of a figure without an interval that nobody reads more of
_WITH_RULES_OF_THEIR_OWN = (Unit.SHARE, Unit.RATIO, Unit.COUNT)  # about digits


def quantity_unit(definition: MetricDefinition) -> str:
    return Unit.SHARE if definition.unit == "%" else definition.unit


def quantity(estimate: Estimate | None, unit: str, *, digits: int | None = None) -> Quantity | None:
    """`29.6 ± 3.1 [24.8, 34.1]`, `412 [380, ∞) ms (slowest of 24)`, `12.3 (11.9 – 12.8)`; None where it is unknown."""
    if estimate is None:
        return None
    note = f"({estimate.note})" if estimate.note else ""
    known = Quantity(
        estimate.value, unit, estimate.low, estimate.high, estimate.kind, digits=digits, note=note
    )
    basis = estimate.basis
    return replace(known, sd=basis.trial_sd) if basis and known.range == "interval" else known


MARKS = {Verdict.MET: "✓", Verdict.MISSED: "✗", Verdict.INCONCLUSIVE: "?"}


def finding_quantity(finding: Finding, note: str = "") -> Quantity:
    """What is held against a limit, with a mark or a word behind it."""
    known = quantity(finding.estimate, finding.unit) or Quantity(None, finding.unit)
    return replace(known, note=" ".join(part for part in (known.note, note) if part))


def estimated(estimate: Estimate | None, definition: MetricDefinition) -> Quantity | None:
    """In the unit of its metric."""
    return quantity(estimate, quantity_unit(definition))


def point_quantity(
    point: PointSummary, metric: str, definition: MetricDefinition
) -> Quantity | None:
    """Of the tail what the requests of all trials say; where they were not kept, the mean over trials."""
    known, tail = find_metric(metric), point.tails.get(metric)
    is_tail = known is not None and known.is_tail
    if tail is not None and (is_tail or metric not in point.metrics):
        return quantity(tail, Unit.SECONDS)
    shown = estimated(point.metrics.get(metric), definition)
    return replace(shown, note="(per trial)") if is_tail and shown is not None else shown


def mean_quantity(estimate: Estimate | None, definition: MetricDefinition) -> Quantity | None:
    """Without its interval, which of a size can be far narrower than anybody cares for."""
    return None if estimate is None else Quantity(estimate.value, quantity_unit(definition))


def starts_and_trials(estimate: Estimate) -> str:
    """`3 / 15`"""
    return f"{estimate.basis.starts} / {estimate.basis.trials}" if estimate.basis else UNKNOWN


def times(ratio: Estimate | None) -> Quantity | None:
    """`1.42× [1.39, 1.45]`"""
    return quantity(ratio, Unit.RATIO)


def spread_quantity(spread: Estimate | None, unit: str) -> Quantity | None:
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


def setting_quantity(value: float, unit: str = Unit.NONE) -> Quantity:
    """What a person asked for, with the digits that it has: `10 req/s`, `0.5 req/s`."""
    digits = f"{value:.4g}".partition("e")[0].replace(".", "").lstrip("0")
    return Quantity(value, unit, digits=len(digits) or 1)


def median_quantity(values: Sequence[float], unit: str, decimals: int) -> Quantity | None:
    if not values:
        return None
    return Quantity(median(values), unit, min(values), max(values), "extremes", decimals=decimals)
