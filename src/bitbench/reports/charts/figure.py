"""What every figure has: rows, layers of Vega-Lite as plain data, axes, and the sentence about configs that it does not
show. Specifications name roles (the limit, the baseline); only `document.palette` knows colours.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, log10
from typing import Any, Literal

from bitbench.analysis.results.summary import MetricDefinition, StudySummary
from bitbench.reports.document.model import Figure, FigureRow, Quantity, plain_text
from bitbench.reports.document.numbers import Scale
from bitbench.reports.document.words import listing, plain_words
from bitbench.reports.labels import Labels, grouped
from bitbench.reports.sections.ranked import has_ranked_result, ranked_point_outcomes
from bitbench.study.base import Json
from bitbench.study.plan import Config

Spec = dict[str, Json]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.4.1.json"
TYPES = {"N": "nominal", "O": "ordinal", "Q": "quantitative"}


@dataclass(frozen=True)
class Layer:
    """Rows of a figure and how they are drawn. Each method gives another layer, so that layers share a beginning."""

    transform: tuple[Spec, ...] = ()
    look: Spec = field(default_factory=dict)
    encoding: Spec = field(default_factory=dict)

    def where(self, condition: str | Spec) -> "Layer":
        """Those rows for which it holds: an expression, or a field and what it equals."""
        return replace(self, transform=(*self.transform, {"filter": condition}))

    def first(self) -> "Layer":
        """The first row alone."""
        numbered = {"window": [{"op": "row_number", "as": "place"}]}
        return replace(self, transform=(*self.transform, numbered)).where("datum.place == 1")

    def mark(self, type: str, **look: Json) -> "Layer":
        return replace(self, look={"type": type, **look})

    def encode(self, **channels: str | Spec | Sequence[Spec]) -> "Layer":
        """A text is a field with its type (`x:Q`); that of `x2` and `y2` has none, since they share that of x and y."""
        read = {
            name: figure_channel(what) if isinstance(what, str) else what
            for name, what in channels.items()
        }
        return replace(self, encoding=self.encoding | read)

    @property
    def spec(self) -> Spec:
        made: Spec = {"mark": self.look, "encoding": self.encoding}
        return made | ({"transform": list(self.transform)} if self.transform else {})


def figure_channel(shown: str, **options: Json) -> Spec:
    """`x:Q` is the field x, a quantity; N names, O has an order."""
    name, _, kind = shown.partition(":")
    return {"field": name, **({"type": TYPES[kind]} if kind else {}), **options}


def legend(title: str | None = None) -> Spec:
    """Above the figure, a line per entry."""
    return {"title": title, "orient": "top", "direction": "vertical", "columns": 1}


def figure_constant(constant: Json) -> Spec:
    """A channel that is the same for every row: pixels, or `width`."""
    return {"value": constant}


ROWS = "rows"  # the name of a figure's data in its specification
LOG_FROM = 6.0  # largest / smallest value from which an axis is logarithmic
MOST_LABELS = 12  # of marks in one figure; more would cover each other
FEWEST_TICKS = 3  # of a logarithmic axis
MOST_BEYOND = 0.5  # of the range of the means: how far an axis follows intervals beyond them

Row = FigureRow


def layered_figure(
    name: str,
    title: str,
    caption: Iterable[str],
    layers: Sequence[Layer],
    rows: list[Row],
    *,
    height: int | Spec,
) -> Figure:
    """As wide as what it stands in; its rows are named, not held. A caption has the sentences that there are."""
    spec: Spec = {
        "layer": [layer.spec for layer in layers],
        "data": {"name": ROWS},
        "description": plain_words(title),
        "height": height,
        "width": "container",
        "$schema": SCHEMA,
    }
    return Figure(name, title, " ".join(sentence for sentence in caption if sentence), spec, rows)


def place_on_axis(field: str, quantity: Quantity | None, scale: Scale) -> Row:
    """A mark along an axis, in its unit: value, and interval if it has two ends."""
    known = quantity or Quantity(None)
    low = None if known.high is None else known.low
    placed = {field: known.value, f"{field}_low": low, f"{field}_high": known.high}
    return {key: None if value is None else value / scale.factor for key, value in placed.items()}


EVERY_ROW = Layer()


def figure_layer_where(condition: str) -> Layer:
    """Those rows of a figure for which it holds."""
    return EVERY_ROW.where(condition)


def tooltips(**titles: str) -> list[Spec]:
    """What a pointer shows of a mark: words of these fields."""
    return [figure_channel(f"{field}:N", title=title) for field, title in titles.items()]


def figure_field_values(rows: Iterable[Row], *fields: str) -> list[float]:
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

    def x(self, field: str = "x") -> Spec:
        words, kind, ticks = self.title, "linear", list[float]()
        if self.logarithmic:
            words, kind, ticks = f"{words} (log)", "log", _log_ticks(self.low, self.high)
        # What lies beyond ends at the edge.
        scale = {"type": kind, "domain": [self.low, self.high], "nice": False, "clamp": True}
        axis = {"values": ticks, "format": ",~g"} if ticks else {}
        return figure_channel(f"{field}:Q", title=words, scale=scale, axis=axis)

    def y(self, field: str = "y") -> Spec:
        return self.x(field)

    def at(self, place: float) -> Spec:
        """Put a mark at one place, whatever its row says."""
        return {name: what for name, what in self.x().items() if name != "field"} | {"datum": place}

    def share(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high one."""
        if self.logarithmic:
            return log10(value / self.low) / log10(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, share: float) -> float:
        if self.logarithmic:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + share * (self.high - self.low)


def _log_ticks(low: float, high: float) -> list[float]:
    """Round values, each with a label: left alone, a logarithmic axis draws nine lines a decade and names a few."""
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        found = [
            step * 10.0**decade
            for decade in decades
            for step in steps
            if low <= step * 10.0**decade <= high
        ]
        if len(found) >= FEWEST_TICKS:
            return found
    return []


def halo(
    layer: Layer,
    style: str,
    *,
    align: Literal["left", "right", "center"],
    dx: float = 0,
    dy: float = 0,
) -> list[Layer]:
    """Text that can be read over lines: a rim in the colour of the paper, then the text itself. `encode` both."""
    return [
        layer.mark("text", style=styles, align=align, dx=dx, dy=dy)
        for styles in ([style, "rim"], [style])
    ]


def error_bars(
    x: ChartAxis, y: ChartAxis, *, colour: Spec | None = None, **look: Any
) -> list[Layer]:
    """Intervals along both axes, cut off at the edge."""
    colours: dict[str, Any] = {} if colour is None else {"color": colour}
    upright = figure_layer_where("isValid(datum.y_low)").mark("rule", clip=True, **look)
    lying = figure_layer_where("isValid(datum.x_low)").mark("rule", clip=True, **look)
    down, up = (
        layer.encode(x=x.x(), **colours) for layer in cut_marks("y", y, ("down", "up"), **look)
    )
    left, right = (
        layer.encode(y=y.y(), **colours) for layer in cut_marks("x", x, ("left", "right"), **look)
    )
    return [
        upright.encode(x=x.x(), y=y.y("y_low"), y2="y_high", **colours),
        lying.encode(x=x.x("x_low"), x2="x_high", y=y.y(), **colours),
        *(down, up, left, right),
    ]


CUT_SIZE = 55  # of an arrow head, in square pixels
CUT = "Arrow heads: the interval continues beyond the edge."


def cut_marks(
    field: str,
    axis: ChartAxis,
    ways: tuple[str, str] = ("left", "right"),
    *,
    high: float | None = None,
    base: Layer = EVERY_ROW,
    **look: Any,
) -> list[Layer]:
    """Draw an arrow head where an interval is cut off at an edge. `high`: the upper edge, if it is not the axis's."""
    edge = axis.high if high is None else high
    channel = "x" if ways == ("left", "right") else "y"
    ends = ((f"datum.{field}_low < {axis.low}", axis.low), (f"datum.{field}_high > {edge}", edge))
    return [
        base.where(f"isValid(datum.{field}_low) && {beyond}")
        .mark("point", shape=f"triangle-{way}", filled=True, size=CUT_SIZE, **look)
        .encode(**{channel: axis.at(place)})
        for way, (beyond, place) in zip(ways, ends, strict=True)
    ]


def cut_sentence(rows: Iterable[Row], **axes: ChartAxis) -> str:
    """Say what arrow heads mean, if there are any. `axes`: of each field with an interval."""
    for row in rows:
        for name, axis in axes.items():
            low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
            if (
                isinstance(low, float)
                and isinstance(high, float)
                and (low < axis.low or high > axis.high)
            ):
                return CUT
    return ""


def axis_for(
    title: str,
    means: Sequence[float],
    others: Sequence[float] = (),
    *,
    zero: bool = False,
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
        return ChartAxis(
            title, min([low, *inner]) / 1.12, max([high, *inner]) * 1.12, logarithmic=True
        )
    if (more := least_span * abs(high) - (high - low)) > 0:
        low, high = low - more / 2, high + more / 2
    size = (high - low) or abs(high) or 1.0
    reach = MOST_BEYOND * size
    bottom = max(min([low, *others]), low - reach) - 0.06 * size
    top = min(max([high, *others]), high + reach) + 0.06 * size
    return ChartAxis(
        title, 0.0 if zero else max(bottom, 0.0) if low >= 0 else bottom, top, logarithmic=False
    )


def axis_of(
    title: str, rows: Sequence[Row], field: str, *, zero: bool = False, least_span: float = 0.0
) -> ChartAxis:
    """For marks that `place` put along it."""
    ends = figure_field_values(rows, f"{field}_low", f"{field}_high")
    return axis_for(title, figure_field_values(rows, field), ends, zero=zero, least_span=least_span)


MOST_NAMED = 6


def absent_from_figure(
    summary: StudySummary,
    workloads: Collection[str],
    shown: Collection[Config],
    labels: Labels,
    *,
    lacks: str = "",
) -> str:
    """`Not shown: broken (unsupported).` `lacks`: what those have not that have a result, such as "quality unknown".

    Of what is not supported, engines of which nothing is shown; the others are listed once in the report.
    """
    missing: dict[Config, str] = {}
    for point in summary.points:
        config = point.point.config
        if point.point.workload in workloads and config not in shown:
            missing[config] = (
                lacks
                if has_ranked_result(summary, point)
                else ranked_point_outcomes(point) or "not run"
            )
    engines = {config.engine for config in shown}
    for refusal in summary.refusals:
        config = refusal.point.config
        is_seen = config in shown or (config.engine in engines and not refusal.was_tried)
        if refusal.point.workload in workloads and not is_seen:
            missing.setdefault(config, "not made" if refusal.was_tried else "refused")
    alike = grouped((config for config in missing if missing[config]), missing.__getitem__)
    named = {
        why: listing([labels[config] for config in same], most=MOST_NAMED)
        for why, same in alike.items()
    }
    parts = [f"{plain_text(names)} ({why})" for why, names in named.items()]
    return f"Not shown: {'; '.join(parts)}." if parts else ""
