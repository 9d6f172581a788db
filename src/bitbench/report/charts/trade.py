"""Speed against memory, and against what quality is lost: who is on the front of all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import altair as alt

from bitbench.core.cell import Contender
from bitbench.core.found.summary import CellSummary, ContenderQuality, ContenderSummary, Interval, Ranking, StudySummary
from bitbench.ground.units import significant
from bitbench.report.charts.figure import (
    MOST_LABELS,
    ROWS,
    Axis,
    Figure,
    Row,
    axis_for,
    axis_title,
    ends,
    halo,
    numbers,
    specification,
)
from bitbench.report.charts.pareto import Reach, on_front
from bitbench.report.document.numbers import Scale, mean_and_interval, size_scale
from bitbench.report.document.text import listing
from bitbench.report.labels import Labels
from bitbench.report.sections.answer import has_result
from bitbench.report.sections.workloads import column_scale, in_order, rank_text

HEIGHT = 320
FAR_RIGHT = 0.5  # of the axis: from here on a label stands left of its mark


@dataclass(frozen=True)
class _Cost:
    """Something of which less is better, per contender: (value, low, high), already in the unit of its axis."""

    key: str
    title: str
    of: Callable[[Contender], tuple[float, float, float] | None]


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
    of = {one.contender: one for one in summary.contenders}
    device = any(one.memory.device_peak_bytes for one in summary.contenders)

    def peak(one: ContenderSummary) -> tuple[float, float, float] | None:
        spread = one.memory.device_peak_bytes if device else one.memory.peak_bytes
        return None if spread is None else (spread.mean, spread.low, spread.high)

    known = [value for one in summary.contenders if (value := peak(one)) is not None]
    if not known:
        return None
    scale = size_scale([value[0] for value in known])

    def scaled(contender: Contender) -> tuple[float, float, float] | None:
        found = peak(of[contender])
        return None if found is None else (found[0] / scale.factor, found[1] / scale.factor, found[2] / scale.factor)

    return _Cost(
        "memory", f"{'peak device memory' if device else 'peak memory'} ({scale.unit}), less is better", scaled
    )


def _divergence(summary: StudySummary) -> _Cost | None:
    """How far the answers move away from the baseline's; where nothing is known of that, perplexity."""
    of: dict[Contender, ContenderQuality] = {one.contender: one for one in summary.quality}
    for key in ("kl_mean", "perplexity"):
        if sum(key in one.estimates for one in summary.quality) < 2:
            continue
        definition = summary.quality_definitions[key]
        unit = f" ({definition.unit})" if definition.unit else ""
        return _Cost("quality", f"{definition.name}{unit}, less is better", partial(_estimate, of, key))
    return None


def _estimate(
    of: Mapping[Contender, ContenderQuality], key: str, contender: Contender
) -> tuple[float, float, float] | None:
    quality = of.get(contender)
    if quality is None:
        return None
    if key not in quality.estimates:  # the baseline does not differ from itself
        return (0.0, 0.0, 0.0) if key == "kl_mean" and quality.baseline in (None, contender) else None
    found = quality.estimates[key]
    interval = found.interval or Interval(low=found.value, high=found.value, confidence=0.95)
    return found.value, interval.low, interval.high


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
            value = cost.of(cell.cell.contender)
            assert value is not None
            own.append(Reach(-value[0], -value[2], -value[1]))
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
    definition, scale = summary.definitions[ranking.metric], column_scale(summary, cells, ranking.metric)
    entries = {entry.contender: entry for entry in ranking.entries}
    rows: list[Row] = []
    for cell in cells:
        value, estimate = cost.of(cell.cell.contender), cell.metrics[ranking.metric]
        assert value is not None
        low, high = ends(estimate, scale)
        rows.append(
            {
                "contender": labels[cell.cell.contender],
                "x": value[0],
                "x_low": value[1],
                "x_high": value[2],
                "y": estimate.mean / scale.factor,
                "y_low": low,
                "y_high": high,
                "cost": significant(value[0]),
                "shown": f"{mean_and_interval(estimate, scale)} {scale.unit}",
                "rank": rank_text(entries.get(cell.cell.contender)),
                "front": front[cell.cell.contender],
            }
        )
    title = f"{ranking.workload}: {definition.name} against {cost.title.split(' (')[0].split(',')[0]}"
    is_plane = len(measures) == 2  # of three measures the front is no line in a figure of two
    on = [labels[contender] for contender, is_on in front.items() if is_on]
    named = f": {listing(on)}" if len(on) <= MOST_LABELS else ""
    caption = f"On the front of {listing(measures)}{named}.{labels.in_words()}"
    y = axis_for(axis_title(definition, scale), numbers(rows, "y"), numbers(rows, "y_low", "y_high"), zero=True)
    x = axis_for(cost.title, numbers(rows, "x"), numbers(rows, "x_low", "x_high"))
    spec = specification(_layers(x, y, cost, line=is_plane), height=HEIGHT, title=title)
    return Figure(
        f"{cost.key}-{ranking.workload}",
        title,
        caption,
        spec,
        _placed(rows, x, y, 1.0 if definition.higher_is_better else -1.0),
    )


def _layers(x: Axis, y: Axis, cost: _Cost, *, line: bool) -> list[alt.Chart]:
    base = alt.Chart(alt.NamedData(name=ROWS))
    best, beaten = base.transform_filter("datum.front"), base.transform_filter("!datum.front")
    about = [
        alt.Tooltip("contender:N", title="Contender"),
        alt.Tooltip("shown:N", title="Speed"),
        alt.Tooltip("cost:N", title=cost.title.split(",", maxsplit=1)[0].capitalize()),
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
