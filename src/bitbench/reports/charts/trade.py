"""Speed against lost quality or memory, with the Pareto front of all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bitbench.analysis.results.summary import (
    ConfigQuality,
    MetricDefinition,
    PointSummary,
    Ranking,
    StudySummary,
)
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.figure import Layer, absent_from_figure
from bitbench.reports.document.model import Figure, Quantity, Unit, plain_text
from bitbench.reports.document.numbers import (
    estimated,
    quantity_scale,
    quantity_unit,
    shown,
    spread_quantity,
)
from bitbench.reports.document.words import listing
from bitbench.reports.labels import Labels
from bitbench.reports.sections.ranked import (
    has_ranked_result,
    rank_text,
    ranked_entry,
    ranked_points,
)
from bitbench.study.plan import Config
from bitbench.util.units import UNKNOWN

HEIGHT = 320
FAR_RIGHT = 0.5  # of the axis: from here on a label stands left of its mark
FEW_LABELS = 5  # of more marks only those are named that the front or the answer names
BESIDE = 9  # pixels between a mark and its name
LEAST_SPAN = {
    "memory": 0.1
}  # of an axis: a tenth of what is taken. A fraction of a MiB must not look like a gain


@dataclass(frozen=True)
class _Measure:
    """One axis: what it is called, and the figure of each config that has one."""

    key: str
    name: str  # as in a sentence: "peak memory"
    unit: str
    of: Mapping[Config, Quantity]
    sign: float = -1.0  # 1: more is better; -1: less is

    def ends(self, config: Config) -> list[float]:
        """Its value, and those of its interval, turned so that more is better. Without an interval it is a point."""
        quantity = self.of[config]
        return [
            self.sign * end
            for end in (quantity.value, quantity.low, quantity.high)
            if end is not None
        ]


def is_pareto_better(other: Sequence[Sequence[float]], own: Sequence[Sequence[float]]) -> bool:
    """By the `ends` of the same measures. One worse only within noise stays on the Pareto front."""
    pairs = list(zip(other, own, strict=True))
    return all(a[0] >= b[0] for a, b in pairs) and any(min(a) > max(b) for a, b in pairs)


def trade_figure(summary: StudySummary, ranking: Ranking, labels: Labels) -> Figure | None:
    """Draw speed against quality, or against memory if no quality is known of two configs with a result."""
    points = [
        point for point in ranked_points(summary, ranking) if has_ranked_result(summary, point)
    ]
    configs = [point.point.config for point in points]
    costs = [
        cost
        for cost in (_memory(summary), _divergence(summary))
        if cost is not None and sum(config in cost.of for config in configs) > 1
    ]
    known = [point for point in points if all(point.point.config in cost.of for cost in costs)]
    if not costs or len(known) < 2:
        return None
    measures = [_speed(summary, ranking, known), *costs]
    ends = {
        point.point.config: [measure.ends(point.point.config) for measure in measures]
        for point in known
    }
    front = {
        config: not any(is_pareto_better(other, own) for other in ends.values())
        for config, own in ends.items()
    }
    return _figure(summary, ranking, measures, costs[-1], front=front, labels=labels)


def _speed(summary: StudySummary, ranking: Ranking, points: Sequence[PointSummary]) -> _Measure:
    definition = summary.definitions[ranking.metric]
    found = {
        point.point.config: estimated(point.metrics[ranking.metric], definition) for point in points
    }
    of = {config: figure for config, figure in found.items() if figure is not None}
    return _Measure(
        "speed",
        definition.name,
        quantity_unit(definition),
        of,
        1.0 if definition.higher_is_better else -1.0,
    )


def _memory(summary: StudySummary) -> _Measure | None:
    on_device = any(config.memory.device_peak_bytes for config in summary.configs)
    of = {}
    for config in summary.configs:
        peak = spread_quantity(
            config.memory.device_peak_bytes if on_device else config.memory.peak_bytes, Unit.BYTES
        )
        if peak is not None:
            of[config.config] = peak
    return (
        _Measure("memory", "peak device memory" if on_device else "peak memory", Unit.BYTES, of)
        if of
        else None
    )


def _divergence(summary: StudySummary) -> _Measure | None:
    """How far the answers move away from the baseline's; where that is unknown, perplexity."""
    for key in ("kl_mean", "perplexity"):
        if sum(key in row.estimates for row in summary.quality) > 1:
            definition = summary.quality_definitions[key]
            found = {row.config: _quality(row, key, definition) for row in summary.quality}
            of = {config: figure for config, figure in found.items() if figure is not None}
            return _Measure("quality", definition.name, quantity_unit(definition), of)
    return None


def _quality(row: ConfigQuality, key: str, definition: MetricDefinition) -> Quantity | None:
    if key not in row.estimates and key == "kl_mean" and row.baseline == row.config:
        return Quantity(0.0, quantity_unit(definition))  # the baseline does not differ from itself
    return estimated(row.estimates.get(key), definition)


def _figure(
    summary: StudySummary,
    ranking: Ranking,
    measures: Sequence[_Measure],
    cost: _Measure,
    *,
    front: Mapping[Config, bool],
    labels: Labels,
) -> Figure:
    speed, definition = measures[0], summary.definitions[ranking.metric]
    y_scale, x_scale = (
        quantity_scale(measure.unit, [measure.of[each].value for each in front])
        for measure in (speed, cost)
    )
    rows: list[fig.Row] = [
        {
            **fig.place_on_axis("y", speed.of[config], y_scale),
            **fig.place_on_axis("x", cost.of[config], x_scale),
            "shown": shown(speed.of[config]),
            "cost": shown(cost.of[config]),
            "rank": rank_text(ranked_entry(ranking, config)) or UNKNOWN,
            "config": labels[config],
            "front": is_on,
            "is_labelled": len(front) <= FEW_LABELS or is_on or bool(labels.mark(config)),
        }
        for config, is_on in front.items()
    ]
    y = fig.axis_of(fig.axis_title(definition, y_scale), rows, "y", zero=True)
    unit = f" ({x_scale.unit})" if x_scale.unit else ""
    x = fig.axis_of(
        f"{cost.name}{unit}, less is better", rows, "x", least_span=LEAST_SPAN.get(cost.key, 0.0)
    )
    for row in rows:  # names stand on the side where there is room
        row["side"] = (
            "left" if x.share(fig.figure_field_values([row], "x")[0]) > FAR_RIGHT else "right"
        )
    on = [labels[config] for config, is_on in front.items() if is_on]
    named = f": {plain_text(listing(on))}" if len(on) <= fig.MOST_LABELS else ""
    caption = f"On the Pareto front of {plain_text(listing([measure.key for measure in measures]))}{named}."
    # Of a config that has a speed: `memory or quality unknown`.
    lacking = f"{plain_text(listing([measure.key for measure in measures[1:]], 'or'))} unknown"
    return fig.layered_figure(
        f"{cost.key}-{ranking.workload}",
        f"{ranking.workload}: speed against {cost.key}",
        (
            caption,
            fig.cut_sentence(rows, x=x, y=y),
            absent_from_figure(summary, {ranking.workload}, front, labels, lacks=lacking),
            labels.shared,
        ),
        _layers(x, y, cost),
        rows,
        height=HEIGHT,
    )


def _layers(x: fig.ChartAxis, y: fig.ChartAxis, cost: _Measure) -> list[Layer]:
    best, beaten = fig.figure_layer_where("datum.front"), fig.figure_layer_where("!datum.front")
    about = fig.tooltips(
        config="Config", shown="Speed", cost=cost.name.capitalize(), rank="Rank by speed"
    )
    right, left = (fig.figure_layer_where(f"datum.side == '{side}'") for side in ("right", "left"))
    names = [
        text.where(shown).encode(x=x.x(), y=y.y(), text="config:N")
        for shown, style in (
            ("datum.front", "bright"),
            ("!datum.front && datum.is_labelled", "dim"),
        )
        for text in (
            *fig.halo(right, style, align="left", dx=BESIDE),
            *fig.halo(left, style, align="right", dx=-BESIDE),
        )
    ]
    return [
        *fig.error_bars(x, y, style="error"),
        *names,
        beaten.mark("point", style="beaten", filled=False).encode(x=x.x(), y=y.y(), tooltip=about),
        best.mark("point", style="best", filled=True).encode(x=x.x(), y=y.y(), tooltip=about),
    ]
