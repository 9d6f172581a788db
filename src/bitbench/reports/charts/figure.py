"""The parts of every chart: rows, layers of Vega-Lite as plain data, axes, and captions.

Specifications name roles (the limit, the baseline). Only `document.palette` knows colors.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, log10
from typing import Any, Literal

from bitbench.analysis.results.summary import MetricDefinition, StudySummary
from bitbench.reports.document.model import Figure, FigureRow, Quantity, format_plain_text
from bitbench.reports.document.numbers import Scale
from bitbench.reports.document.words import format_list, format_plain_words
from bitbench.reports.labels import Labels, group_by
from bitbench.reports.sections.ranked import format_outcomes, has_ranked_result
from bitbench.study.base import Json
from bitbench.study.plan import Config

Spec = dict[str, Json]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.4.1.json"
TYPES = {"N": "nominal", "O": "ordinal", "Q": "quantitative"}


@dataclass(frozen=True)
class Layer:
    """A layer of a chart: which rows are drawn, and how.

    Each method returns another layer, so that layers can share a beginning.
    """

    transform: tuple[Spec, ...] = ()
    look: Spec = field(default_factory=dict)
    encoding: Spec = field(default_factory=dict)

    def where(self, condition: str | Spec) -> "Layer":
        """Keep the rows that meet a condition: an expression, or a field and its value."""
        return replace(self, transform=(*self.transform, {"filter": condition}))

    def first(self) -> "Layer":
        """Keep only the first row."""
        numbered = {"window": [{"op": "row_number", "as": "place"}]}
        return replace(self, transform=(*self.transform, numbered)).where("datum.place == 1")

    def mark(self, type: str, **look: Json) -> "Layer":
        return replace(self, look={"type": type, **look})

    def encode(self, **channels: str | Spec | Sequence[Spec]) -> "Layer":
        """Map channels to fields of the rows. A text is a field with its type, such as `x:Q`.

        The fields of `x2` and `y2` have no type, since they share the type of x and y.
        """
        encoding = dict(self.encoding)
        for name, channel in channels.items():
            encoding[name] = make_channel(channel) if isinstance(channel, str) else channel
        return replace(self, encoding=encoding)

    @property
    def spec(self) -> Spec:
        spec: Spec = {"mark": self.look, "encoding": self.encoding}
        if self.transform:
            spec["transform"] = list(self.transform)
        return spec


def make_channel(field: str, **options: Json) -> Spec:
    """Return a channel for a field and its type, as in `x:Q`. Q means a quantity, N a name and O an
    ordered value."""
    name, _, kind = field.partition(":")
    channel: Spec = {"field": name}
    if kind:
        channel["type"] = TYPES[kind]
    return channel | options


def make_legend(title: str | None = None) -> Spec:
    """Return a legend above the chart, with a line per entry."""
    return {"title": title, "orient": "top", "direction": "vertical", "columns": 1}


def make_constant_channel(constant: Json) -> Spec:
    """Return a channel that is the same for every row: pixels, or `width`."""
    return {"value": constant}


ROWS = "rows"  # the name of a chart's data in its specification
LOG_FROM = 6.0  # largest / smallest value from which an axis is logarithmic
MOST_LABELS = 12  # in one chart; more would cover each other
FEWEST_TICKS = 3  # of a logarithmic axis
MOST_BEYOND = 0.5  # of the range of the means: how far an axis follows intervals beyond them

Row = FigureRow


def build_chart(
    name: str,
    title: str,
    caption: Iterable[str],
    layers: Sequence[Layer],
    rows: list[Row],
    *,
    height: int | Spec,
) -> Figure:
    """Return a chart as wide as its container.

    Its specification only names the rows. Empty sentences of the caption are dropped.
    """
    spec: Spec = {
        "layer": [layer.spec for layer in layers],
        "data": {"name": ROWS},
        "description": format_plain_words(title),
        "height": height,
        "width": "container",
        "$schema": SCHEMA,
    }
    return Figure(name, title, " ".join(filter(None, caption)), spec, rows)


def place_on_axis(field: str, quantity: Quantity | None, scale: Scale) -> Row:
    """Return the value and the ends of its interval, in the unit of an axis.

    An interval without an upper end is left out.
    """
    values = Quantity(None) if quantity is None else quantity
    low = None if values.high is None else values.low
    row: Row = {}
    for key, value in (
        (field, values.value),
        (f"{field}_low", low),
        (f"{field}_high", values.high),
    ):
        row[key] = None if value is None else value / scale.factor
    return row


EVERY_ROW = Layer()


def filter_rows(condition: str) -> Layer:
    """Return a layer of the rows that meet a condition."""
    return EVERY_ROW.where(condition)


def make_tooltips(**titles: str) -> list[Spec]:
    """Return the fields in the tooltip of a mark, with their titles."""
    return [make_channel(f"{field}:N", title=title) for field, title in titles.items()]


def list_field_values(rows: Iterable[Row], *fields: str) -> list[float]:
    """Return every number in these fields."""
    values = []
    for row in rows:
        for name in fields:
            value = row.get(name)
            if isinstance(value, int | float):
                values.append(float(value))
    return values


def format_axis_title(definition: MetricDefinition, scale: Scale) -> str:
    """Return the title of an axis: `output throughput (tok/s), more is better`."""
    better = "more" if definition.higher_is_better else "less"
    unit = f" ({scale.unit})" if scale.unit else ""
    return f"{definition.name}{unit}, {better} is better"


@dataclass(frozen=True)
class ChartAxis:
    """An axis of a chart, whose title and ends all layers share."""

    title: str
    low: float
    high: float
    logarithmic: bool

    def x(self, field: str = "x") -> Spec:
        title = self.title
        kind = "linear"
        options: Spec = {}
        if self.logarithmic:
            title = f"{title} (log)"
            kind = "log"
            if ticks := _list_log_ticks(self.low, self.high):
                options = {"values": ticks, "format": ",~g"}
        # clamp: an interval that reaches beyond ends at the edge.
        scale = {"type": kind, "domain": [self.low, self.high], "nice": False, "clamp": True}
        return make_channel(f"{field}:Q", title=title, scale=scale, axis=options)

    def y(self, field: str = "y") -> Spec:
        return self.x(field)

    def at(self, position: float) -> Spec:
        """Return a channel that puts the marks of all rows at this position of the axis."""
        channel = self.x()
        del channel["field"]
        return channel | {"datum": position}

    def share(self, value: float) -> float:
        """Return the position of a value: 0 at the low end, 1 at the high end."""
        if self.logarithmic:
            return log10(value / self.low) / log10(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, share: float) -> float:
        """Return the value at a position, the inverse of `share`."""
        if self.logarithmic:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + share * (self.high - self.low)


def _list_log_ticks(low: float, high: float) -> list[float]:
    """Return round values, each to be labeled, or an empty list if there are too few.

    By default, a logarithmic axis draws nine lines per decade and labels only some of them.
    """
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= FEWEST_TICKS:
            return ticks
    return []


def make_halo(
    layer: Layer,
    style: str,
    *,
    align: Literal["left", "right", "center"],
    dx: float = 0,
    dy: float = 0,
) -> list[Layer]:
    """Return two layers for text that can be read over lines: a rim in the paper's color, the text.

    The caller must encode both.
    """
    rim = layer.mark("text", style=[style, "rim"], align=align, dx=dx, dy=dy)
    text = layer.mark("text", style=[style], align=align, dx=dx, dy=dy)
    return [rim, text]


def make_error_bars(
    x: ChartAxis, y: ChartAxis, *, color: Spec | None = None, **look: Any
) -> list[Layer]:
    """Return intervals along both axes, cut off at the edge."""
    channels: dict[str, Any] = {} if color is None else {"color": color}
    upright = filter_rows("isValid(datum.y_low)").mark("rule", clip=True, **look)
    lying = filter_rows("isValid(datum.x_low)").mark("rule", clip=True, **look)
    layers = [
        upright.encode(x=x.x(), y=y.y("y_low"), y2="y_high", **channels),
        lying.encode(x=x.x("x_low"), x2="x_high", y=y.y(), **channels),
    ]
    for arrow in make_cut_marks("y", y, ("down", "up"), **look):
        layers.append(arrow.encode(x=x.x(), **channels))
    for arrow in make_cut_marks("x", x, ("left", "right"), **look):
        layers.append(arrow.encode(y=y.y(), **channels))
    return layers


CUT_SIZE = 55  # of an arrow head, in square pixels
CUT = "Arrow heads: the interval continues beyond the edge."


def make_cut_marks(
    field: str,
    axis: ChartAxis,
    ways: tuple[str, str] = ("left", "right"),
    *,
    high: float | None = None,
    base: Layer = EVERY_ROW,
    **look: Any,
) -> list[Layer]:
    """Return arrow heads at the edges at which intervals are cut off.

    `high` is the upper edge, if it differs from the axis.
    """
    edge = axis.high if high is None else high
    channel = "x" if ways == ("left", "right") else "y"
    ends = ((f"datum.{field}_low < {axis.low}", axis.low), (f"datum.{field}_high > {edge}", edge))
    marks = []
    for way, (is_beyond, end) in zip(ways, ends, strict=True):
        rows = base.where(f"isValid(datum.{field}_low) && {is_beyond}")
        mark = rows.mark("point", shape=f"triangle-{way}", filled=True, size=CUT_SIZE, **look)
        marks.append(mark.encode(**{channel: axis.at(end)}))
    return marks


def explain_cut_marks(rows: Iterable[Row], **axes: ChartAxis) -> str:
    """Return what arrow heads mean, or an empty text if none exist.

    `axes` has the axis of each field with an interval.
    """
    for row in rows:
        for name, axis in axes.items():
            low = row.get(f"{name}_low")
            high = row.get(f"{name}_high")
            if not isinstance(low, float) or not isinstance(high, float):
                continue
            if low < axis.low or high > axis.high:
                return CUT
    return ""


def make_axis(
    title: str,
    means: Sequence[float],
    others: Sequence[float] = (),
    *,
    zero: bool = False,
    least_span: float = 0.0,
) -> ChartAxis:
    """Return an axis wide enough for all means, and for the intervals as far as the means differ.

    `others` are the ends of the intervals. An interval of few trials can be many times as wide as
    all measured values: it is then cut off at the edge. `least_span` is a share of the largest
    mean: smaller differences must not look as if they mattered.
    """
    low = min(means)
    high = max(means)
    if low > 0 and high / low >= LOG_FROM:
        reach = (high / low) ** MOST_BEYOND
        inner = [value for value in others if low / reach <= value <= high * reach]
        bottom = min([low, *inner]) / 1.12
        return ChartAxis(title, bottom, max([high, *inner]) * 1.12, logarithmic=True)
    if (more := least_span * abs(high) - (high - low)) > 0:
        low -= more / 2
        high += more / 2
    size = (high - low) or abs(high) or 1.0
    reach = MOST_BEYOND * size
    bottom = max(min([low, *others]), low - reach) - 0.06 * size
    top = min(max([high, *others]), high + reach) + 0.06 * size
    if zero:
        bottom = 0.0
    elif low >= 0:
        bottom = max(bottom, 0.0)
    return ChartAxis(title, bottom, top, logarithmic=False)


def make_axis_of_rows(
    title: str, rows: Sequence[Row], field: str, *, zero: bool = False, least_span: float = 0.0
) -> ChartAxis:
    """Return an axis for the values and intervals that `place_on_axis` put into the rows."""
    means = list_field_values(rows, field)
    ends = list_field_values(rows, f"{field}_low", f"{field}_high")
    return make_axis(title, means, ends, zero=zero, least_span=least_span)


MOST_NAMED = 6


def describe_absent_configs(
    summary: StudySummary,
    workloads: Collection[str],
    drawn: Collection[Config],
    labels: Labels,
    *,
    lacks: str = "",
) -> str:
    """Return `Not shown: broken (unsupported).`, or an empty text if every config is drawn.

    `lacks` is the reason of configs that have a result, such as "quality unknown". Of the refused
    configs, only configs of engines that the chart lacks are listed. A section of the report lists
    all of them.
    """
    reasons = {}
    for point in summary.points:
        config = point.point.config
        if point.point.workload not in workloads or config in drawn:
            continue
        reasons[config] = lacks
        if not has_ranked_result(summary, point):
            reasons[config] = format_outcomes(point) or "not run"
    engines = {config.engine for config in drawn}
    for refusal in summary.refusals:
        config = refusal.point.config
        is_seen = config in drawn or (config.engine in engines and not refusal.was_tried)
        if refusal.point.workload in workloads and not is_seen:
            reason = "not made" if refusal.was_tried else "refused"
            reasons.setdefault(config, reason)
    missing = [config for config in reasons if reasons[config]]
    parts = []
    for reason, configs in group_by(missing, reasons.__getitem__).items():
        names = format_list([labels[config] for config in configs], most=MOST_NAMED)
        parts.append(f"{format_plain_text(names)} ({reason})")
    return f"Not shown: {'; '.join(parts)}." if parts else ""
