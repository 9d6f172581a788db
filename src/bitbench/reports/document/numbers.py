"""The one place where numbers become text: in one unit per column, with as many digits as the interval supports."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import floor, isfinite, log10

from bitbench.reports.document.model import Column, Phrase, Quantity, Range, Table, TableCell, Unit
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


def scale_for(unit: str, values: Iterable[float | None]) -> Scale:
    """The smallest value decides, so that none is written with leading zeros."""
    smallest = min((abs(value) for value in values if value and isfinite(value)), default=1.0)
    match unit:
        case Unit.SECONDS:
            return next((Scale(name, factor) for factor, name in _TIMES if smallest >= factor), Scale("ns", 1e-9))
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


def written(quantity: Quantity, scale: Scale | None = None, *, interval: bool = True) -> Written:
    """In its own unit; where a `scale` is given, in that one, which the column names in its title."""
    if quantity.value is None:
        return Written(UNKNOWN, note=quantity.note)
    own = scale or scale_for(quantity.unit, [quantity.value])
    value = _number(quantity.value, quantity, own)
    return Written(
        f"{value}×" if quantity.unit == Unit.RATIO else value,
        _limits(quantity, own) if interval else "",
        "" if scale else own.unit,
        quantity.note,
    )


def shown(quantity: Quantity) -> str:
    """`29.6 [24.8, 34.1] tok/s`"""
    return written(quantity).text


def scales_of(table: Table) -> list[Scale]:
    """One per column, from all of its values: the figures of a column can be compared at a glance."""
    return [
        scale_for(
            column.unit,
            (cell.value for row in table.rows if isinstance(cell := row.cells[place], Quantity)),
        )
        for place, column in enumerate(table.columns)
    ]


def written_in(column: Column, scale: Scale, quantity: Quantity, *, interval: bool = True) -> Written:
    """As a cell. One of another unit than its column's says so itself."""
    return written(quantity, scale if quantity.unit == column.unit else None, interval=interval)


def text_cells(
    table: Table, words: Callable[[Phrase], str], number: Callable[[str], str] = str
) -> tuple[list[str], list[list[str]]]:
    """Titles, with the unit of a column, and rows, for renderers that write text: `words` and `number` escape."""
    scales = scales_of(table)
    titles = [
        words((*column.title, f" ({scale.unit})") if scale.unit else column.title)
        for column, scale in zip(table.columns, scales, strict=True)
    ]

    def cell(content: TableCell, column: Column, scale: Scale) -> str:
        if isinstance(content, Quantity):
            return number(written_in(column, scale, content).text)
        return number(UNKNOWN) if content is None else words(content)

    rows = [[cell(*each) for each in zip(row.cells, table.columns, scales, strict=True)] for row in table.rows]
    return titles, rows


def _limits(quantity: Quantity, scale: Scale) -> str:
    """`[24.8, 34.1]`, `(11.9 – 12.8)` for extremes, `[24.8, ∞)` where it is open; empty where it is unknown."""
    if quantity.low is None:
        return ""
    low = _number(quantity.low, quantity, scale)
    if quantity.high is None:
        return f"[{low}, ∞)"
    high = _number(quantity.high, quantity, scale)
    if quantity.range is Range.EXTREMES:
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
    half = None
    if of.low is not None and of.high is not None and of.range is Range.INTERVAL:
        half = (of.high - of.low) / 2 / scale.factor
    if of.decimals is not None:
        return of.decimals
    if of.unit == Unit.COUNT or (of.digits is not None and not value):  # zero has no significant digits
        return 0
    if of.unit == Unit.RATIO and of.digits is None:
        return 3 if half is not None and half < 0.005 else 2
    if of.unit == Unit.SHARE and of.digits is None and half is None:
        return 1
    if half is not None and abs(value) + half < 0.5 * 10**-MOST_DECIMALS:  # every digit would be a zero
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
