"""What every figure has: a specification without colours, and its rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any, Literal

from bitbench.analysis.results.summary import MetricDefinition
from bitbench.reports.charts.layer import Layer, Spec, channel, layered
from bitbench.reports.document.model import Quantity
from bitbench.reports.document.numbers import Scale
from bitbench.reports.document.text import plain
from bitbench.study.base import Json

ROWS = "rows"  # the name of a figure's data in its specification
LOG_FROM = 6.0  # largest / smallest value from which an axis is logarithmic
MOST_LABELS = 12  # of marks in one figure; more would cover each other
LABEL_GAP = 0.05  # of an axis: labels that are nearer to each other overlap at 300 pixels
FEWEST_TICKS = 3  # of a logarithmic axis
MOST_BEYOND = 0.5  # of the range of the means: how far an axis follows intervals beyond them

Row = dict[str, str | float | int | bool | None]


@dataclass(frozen=True)
class Figure:
    """A picture and the rows it is drawn from. `narrow` is the form for a phone, where it differs."""

    name: str  # of its file, and its place in a page
    title: str
    caption: str
    spec: dict[str, Json]
    rows: list[Row]
    narrow: dict[str, Json] | None = None


def drawn(
    name: str,
    title: str,
    caption: Iterable[str],
    layers: Sequence[Layer],
    rows: list[Row],
    *,
    height: int | Spec,
) -> Figure:
    """Of the sentences of a caption, those that there are."""
    spec = layered(layers, ROWS, height=height, description=plain(title))
    return Figure(name, title, " ".join(sentence for sentence in caption if sentence), spec, rows)


def place(field: str, quantity: Quantity | None, scale: Scale) -> Row:
    """A mark along an axis: its value and the ends of its interval, in the axis's unit; one that is open has none."""
    ends = (quantity.value, quantity.low, quantity.high) if quantity else (None, None, None)
    if quantity is not None and quantity.high is None:
        ends = (quantity.value, None, None)
    named = zip((field, f"{field}_low", f"{field}_high"), ends, strict=True)
    return {key: None if end is None else end / scale.factor for key, end in named}


EVERY_ROW = Layer()


def where(condition: str) -> Layer:
    """Those rows of a figure for which it holds."""
    return EVERY_ROW.where(condition)


def tooltips(**titles: str) -> list[Spec]:
    """What a pointer shows of a mark: words of these fields."""
    return [channel(f"{field}:N", title=title) for field, title in titles.items()]


def numbers(rows: Iterable[Row], *fields: str) -> list[float]:
    """Every value of these fields that is known."""
    known = (row.get(field) for row in rows for field in fields)
    return [float(value) for value in known if isinstance(value, (int, float))]


def axis_title(definition: MetricDefinition, scale: Scale) -> str:
    """`output throughput (tok/s), more is better`"""
    better = "more" if definition.higher_is_better else "less"
    unit = f" ({scale.unit})" if scale.unit else ""
    return f"{definition.name}{unit}, {better} is better"


@dataclass(frozen=True)
class ChartAxis:
    """One direction of a figure: every layer shares its title and its ends."""

    title: str
    low: float
    high: float
    logarithmic: bool
    ticks: Sequence[float] = ()  # those that are labelled; empty: chosen when it is drawn

    def x(self, field: str = "x") -> Spec:
        return channel(f"{field}:Q", title=self._words, scale=self._scale(), axis=self._marks())

    def y(self, field: str = "y") -> Spec:
        return channel(f"{field}:Q", title=self._words, scale=self._scale(), axis=self._marks())

    @property
    def _words(self) -> str:
        return f"{self.title} (log)" if self.logarithmic else self.title

    def _marks(self) -> Spec:
        ticks = list(self.ticks) or (_log_ticks(self.low, self.high) if self.logarithmic else [])
        return {"values": ticks, "format": ",~g"} if ticks else {}

    def _scale(self) -> Spec:
        ends = [self.low, self.high]
        kind: Literal["log", "linear"] = "log" if self.logarithmic else "linear"
        return {"type": kind, "domain": ends, "nice": False, "clamp": True}  # what lies beyond ends at the edge

    def share(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high one."""
        if self.logarithmic:
            return log10(value / self.low) / log10(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, share: float) -> float:
        if self.logarithmic:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + share * (self.high - self.low)

    def apart(self, values: Sequence[float]) -> list[float]:
        """Places for labels beside `values`, moved so far along the axis that they do not cover each other."""
        places = sorted(((self.share(value), number) for number, value in enumerate(values)), reverse=True)
        moved = [0.0] * len(values)
        limit = 1.0
        for place, number in places:
            limit = min(place, limit)
            moved[number] = limit
            limit -= LABEL_GAP
        lift = max(0.0, -min(moved))
        return [self.value(place + lift) for place in moved]


def _log_ticks(low: float, high: float) -> list[float]:
    """Round values, each with a label: left alone, a logarithmic axis draws nine lines a decade and names a few."""
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        found = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
        if len(found) >= FEWEST_TICKS:
            return found
    return []


def halo(
    layer: Layer, style: str, *, align: Literal["left", "right", "center"], dx: float = 0, dy: float = 0
) -> list[Layer]:
    """Text that can be read over lines: a rim in the colour of the paper, then the text itself. `encode` both."""
    return [layer.mark("text", style=styles, align=align, dx=dx, dy=dy) for styles in ([style, "rim"], [style])]


def error_bars(x: ChartAxis, y: ChartAxis, *, colour: Spec | None = None, **look: Any) -> list[Layer]:
    """Intervals along both axes, cut off at the edge."""
    colours: dict[str, Any] = {} if colour is None else {"color": colour}
    upright = where("isValid(datum.y_low)").mark("rule", clip=True, **look)
    lying = where("isValid(datum.x_low)").mark("rule", clip=True, **look)
    return [
        upright.encode(x=x.x(), y=y.y("y_low"), y2="y_high", **colours),
        lying.encode(x=x.x("x_low"), x2="x_high", y=y.y(), **colours),
    ]


def axis_for(
    title: str,
    means: Sequence[float],
    others: Sequence[float] = (),
    *,
    zero: bool = False,
    ticks: Sequence[float] = (),
    least_span: float = 0.0,
) -> ChartAxis:
    """Wide enough for all means; for `others`, the ends of intervals, as far as the means stay apart.

    An interval of few trials can be many times as wide as all that was measured: it is cut off at the edge then.
    `least_span`, as a share of the largest mean: what differs by less must not look as if it mattered.
    """
    low, high = min(means), max(means)
    if low > 0 and high / low >= LOG_FROM:
        reach = (high / low) ** MOST_BEYOND
        inner = [value for value in others if low / reach <= value <= high * reach]
        return ChartAxis(title, min([low, *inner]) / 1.12, max([high, *inner]) * 1.12, logarithmic=True, ticks=ticks)
    if (more := least_span * abs(high) - (high - low)) > 0:
        low, high = low - more / 2, high + more / 2
    size = (high - low) or abs(high) or 1.0
    reach = MOST_BEYOND * size
    bottom = max(min([low, *others]), low - reach) - 0.06 * size
    top = min(max([high, *others]), high + reach) + 0.06 * size
    return ChartAxis(
        title, 0.0 if zero else max(bottom, 0.0) if low >= 0 else bottom, top, logarithmic=False, ticks=ticks
    )
