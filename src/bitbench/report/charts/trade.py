"""Speed against memory, and against lost quality: which contenders are on the Pareto front of all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import altair as alt

from bitbench.core.cell import Contender
from bitbench.core.found.summary import CellSummary, ContenderQuality, ContenderSummary, Ranking, StudySummary
from bitbench.ground.units import UNKNOWN
from bitbench.report.charts.figure import (
    MOST_LABELS,
    ROWS,
    Axis,
    Figure,
    Row,
    axis_for,
    axis_title,
    caption_of,
    ends,
    estimate_text,
    halo,
    numbers,
    scale_of,
    specification,
)
from bitbench.report.charts.pareto import Reach, on_front
from bitbench.report.document.model import Quantity, Unit, plain_text
from bitbench.report.document.numbers import Scale, scale_for, shown
from bitbench.report.document.words import listing
from bitbench.report.labels import Labels
from bitbench.report.quantities import over_instances, quality_of, unit_of
from bitbench.report.sections.ranked import entry_of, has_result, in_order, rank

HEIGHT = 320
FAR_RIGHT = 0.5  # of the axis: from here on a label stands left of its mark


@dataclass(frozen=True)
class _Cost:
    """Something of which less is better, per contender."""

    key: str
    name: str  # as in a sentence: "peak memory"
    unit: str
    of: Callable[[Contender], Quantity | None]


@dataclass(frozen=True)
class _Span:
    """A quantity of an axis: without an interval it is a point."""

    value: float
    low: float
    high: float


def _span(quantity: Quantity | None) -> _Span:
    assert quantity is not None  # only contenders whose costs are known are drawn
    assert quantity.value is not None
    low, high = (quantity.value if end is None else end for end in (quantity.low, quantity.high))
    return _Span(quantity.value, low, high)


def trade_figures(summary: StudySummary, ranking: Ranking, labels: Labels) -> list[Figure]:
    """One figure per cost that is known of at least two contenders with a result."""
    cells = [cell for cell in in_order(summary, ranking) if has_result(summary, cell)]
    costs = [
        cost
        for cost in (_memory(summary), _divergence(summary))
        if cost is not None and sum(cost.of(cell.cell.contender) is not None for cell in cells) > 1
    ]
    known = [cell for cell in cells if all(cost.of(cell.cell.contender) is not None for cost in costs)]
    if not costs or len(known) < 2:
        return []
    front = dict(
        zip((cell.cell.contender for cell in known), on_front(_reaches(summary, ranking, known, costs)), strict=True)
    )
    measures = ["speed", *(cost.key for cost in costs)]
    return [_figure(summary, ranking, known, cost=one, front=front, measures=measures, labels=labels) for one in costs]


def _memory(summary: StudySummary) -> _Cost | None:
    on_device = any(one.memory.device_peak_bytes for one in summary.contenders)

    def peak(one: ContenderSummary) -> Quantity | None:
        spread = one.memory.device_peak_bytes if on_device else one.memory.peak_bytes
        return over_instances(spread, Unit.BYTES)

    known = {one.contender: found for one in summary.contenders if (found := peak(one)) is not None}
    name = "peak device memory" if on_device else "peak memory"
    return _Cost("memory", name, Unit.BYTES, known.get) if known else None


def _divergence(summary: StudySummary) -> _Cost | None:
    """How far the answers move away from the baseline's; where that is unknown, perplexity."""
    of = {row.contender: row for row in summary.quality}
    for key in ("kl_mean", "perplexity"):
        if sum(key in row.estimates for row in summary.quality) > 1:
            definition = summary.quality_definitions[key]
            return _Cost("quality", definition.name, unit_of(definition), partial(_estimate, summary, of, key))
    return None


def _estimate(
    summary: StudySummary, of: Mapping[Contender, ContenderQuality], key: str, contender: Contender
) -> Quantity | None:
    quality, definition = of.get(contender), summary.quality_definitions[key]
    if quality is None:
        return None
    if key not in quality.estimates and key == "kl_mean" and quality.baseline in (None, contender):
        return Quantity(0.0, unit_of(definition))  # the baseline does not differ from itself
    return quality_of(quality.estimates.get(key), definition)


def _reaches(
    summary: StudySummary, ranking: Ranking, cells: list[CellSummary], costs: list[_Cost]
) -> list[list[Reach]]:
    sign = 1.0 if summary.definitions[ranking.metric].higher_is_better else -1.0
    reaches = []
    for cell in cells:
        estimate = cell.metrics[ranking.metric]
        low, high = ends(estimate, Scale(""))
        speed = [sign * estimate.mean, *(sign * end for end in (low, high) if end is not None)]
        own = [Reach(speed[0], min(speed), max(speed))]
        for cost in costs:
            span = _span(cost.of(cell.cell.contender))
            own.append(Reach(-span.value, -span.high, -span.low))
        reaches.append(own)
    return reaches


def _figure(
    summary: StudySummary,
    ranking: Ranking,
    cells: list[CellSummary],
    *,
    cost: _Cost,
    front: dict[Contender, bool],
    measures: list[str],
    labels: Labels,
) -> Figure:
    definition = summary.definitions[ranking.metric]
    scale = scale_of(definition, [cell.metrics[ranking.metric].mean for cell in cells])
    cost_scale = scale_for(cost.unit, [_span(cost.of(cell.cell.contender)).value for cell in cells])
    rows = [
        {
            **_point(cell, ranking, summary, scale),
            **_cost_of(cell.cell.contender, cost, cost_scale),
            "contender": labels[cell.cell.contender],
            "front": front[cell.cell.contender],
        }
        for cell in cells
    ]
    title = f"{ranking.workload}: {definition.name} against {cost.name}"
    is_plane = len(measures) == 2  # of three measures the front is no line in a figure of two
    y = axis_for(axis_title(definition, scale), numbers(rows, "y"), numbers(rows, "y_low", "y_high"), zero=True)
    unit = f" ({cost_scale.unit})" if cost_scale.unit else ""
    x = axis_for(f"{cost.name}{unit}, less is better", numbers(rows, "x"), numbers(rows, "x_low", "x_high"))
    spec = specification(_layers(x, y, cost, line=is_plane), height=HEIGHT, title=title)
    return Figure(
        f"{cost.key}-{ranking.workload}",
        title,
        _caption(front, measures, labels),
        spec,
        _placed(rows, x, y, 1.0 if definition.higher_is_better else -1.0),
    )


def _point(cell: CellSummary, ranking: Ranking, summary: StudySummary, scale: Scale) -> Row:
    estimate = cell.metrics[ranking.metric]
    low, high = ends(estimate, scale)
    return {
        "y": estimate.mean / scale.factor,
        "y_low": low,
        "y_high": high,
        "shown": estimate_text(estimate, summary.definitions[ranking.metric]),
        "rank": rank(entry_of(ranking, cell.cell.contender)) or UNKNOWN,
    }


def _cost_of(contender: Contender, cost: _Cost, scale: Scale) -> Row:
    quantity = cost.of(contender)
    span = _span(quantity)
    return {
        "x": span.value / scale.factor,
        "x_low": span.low / scale.factor,
        "x_high": span.high / scale.factor,
        "cost": shown(quantity) if quantity else UNKNOWN,
    }


def _caption(front: Mapping[Contender, bool], measures: list[str], labels: Labels) -> str:
    on = [labels[contender] for contender, is_on in front.items() if is_on]
    named = f": {plain_text(listing(on))}" if len(on) <= MOST_LABELS else ""
    return caption_of(f"On the Pareto front of {plain_text(listing(measures))}{named}.", labels.shared)


def _layers(x: Axis, y: Axis, cost: _Cost, *, line: bool) -> list[alt.Chart]:
    base = alt.Chart(alt.NamedData(name=ROWS))
    best, beaten = base.transform_filter("datum.front"), base.transform_filter("!datum.front")
    about = [
        alt.Tooltip("contender:N", title="Contender"),
        alt.Tooltip("shown:N", title="Speed"),
        alt.Tooltip("cost:N", title=cost.name.capitalize()),
        alt.Tooltip("rank:N", title="Rank by speed"),
    ]
    right, left = (base.transform_filter(f"datum.side == '{side}'") for side in ("right", "left"))
    names = [
        text.transform_filter(shown).encode(x=x.x(), y=y.y("label_y"), text="contender:N")
        for shown, style in (("datum.front", "bright"), ("!datum.front && datum.is_labelled", "dim"))
        for text in (*halo(right, style, align="left", dx=9), *halo(left, style, align="right", dx=-9))
    ]
    y_known = base.transform_filter("isValid(datum.y_low)")
    edge = base.transform_filter("datum.edge")
    front = edge.mark_line(style="front", interpolate="step-after").encode(x=x.x(), y=y.y())
    return [
        *([front] if line else []),
        y_known.mark_rule(style="error", clip=True).encode(x=x.x(), y=y.y("y_low"), y2="y_high:Q"),
        base.mark_rule(style="error", clip=True).encode(x=x.x("x_low"), x2="x_high:Q", y=y.y()),
        *names,
        beaten.mark_point(style="beaten", filled=False).encode(x=x.x(), y=y.y(), tooltip=about),
        best.mark_point(style="best", filled=True).encode(x=x.x(), y=y.y(), tooltip=about),
    ]


def _placed(rows: list[Row], x: Axis, y: Axis, better: float) -> list[Row]:
    """Labels beside their marks, on the side where there is room, none over another."""
    label_y = y.apart(numbers(rows, "y"))
    return [
        {
            **row,
            "label_y": place,
            "side": "left" if x.share(value) > FAR_RIGHT else "right",
            "is_labelled": len(rows) <= MOST_LABELS,
            "edge": not any(_beyond(other, row, better) for other in rows),
        }
        for row, place, value in zip(rows, label_y, numbers(rows, "x"), strict=True)
    ]


def _beyond(other: Row, row: Row, better: float) -> bool:
    """Whether the front by means alone passes beyond this row. More is `better` (1) or less is (-1)."""
    (x, y), (own_x, own_y) = numbers([other], "x", "y"), numbers([row], "x", "y")
    return other is not row and x <= own_x and better * y >= better * own_y and (x, y) != (own_x, own_y)
