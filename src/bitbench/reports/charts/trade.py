"""Charts of speed against lost quality or memory, with the Pareto front."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bitbench.analysis.results.summary import (
    ConfigQuality,
    MetricDefinition,
    PointSummary,
    Ranking,
    StudySummary,
)
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.figure import Layer, describe_absent_configs
from bitbench.reports.document.model import Figure, Quantity, Unit, format_plain_text
from bitbench.reports.document.numbers import (
    Scale,
    choose_scale,
    find_unit,
    format_quantity,
    make_spread,
    to_quantity,
)
from bitbench.reports.document.words import format_list
from bitbench.reports.labels import Labels
from bitbench.reports.sections.ranked import (
    find_ranked_entry,
    format_rank,
    has_ranked_result,
    list_ranked_points,
)
from bitbench.study.plan import Config
from bitbench.util.units import UNKNOWN

HEIGHT = 320
FAR_RIGHT = 0.5  # of the axis: from here on, a label is left of its mark
FEW_LABELS = 5  # with more marks, only the front and the configs of the answer are labeled
BESIDE = 9  # pixels between a mark and its name
# The least span of an axis, as a share of its largest value: a tenth for memory, since a fraction
# of a MiB must not look like a gain.
LEAST_SPAN = {"memory": 0.1}


@dataclass(frozen=True)
class _Measure:
    """An axis, with the quantity of each config that has one."""

    key: str
    name: str  # as in a sentence: "peak memory"
    unit: str
    of: Mapping[Config, Quantity]
    sign: float = -1.0  # 1: more is better; -1: less is better

    def ends(self, config: Config) -> list[float]:
        """Return the value and the ends of its interval, turned so that more is better."""
        quantity = self.of[config]
        ends = (quantity.value, quantity.low, quantity.high)
        return [self.sign * end for end in ends if end is not None]

    def make_scale(self, configs: Iterable[Config]) -> Scale:
        return choose_scale(self.unit, [self.of[config].value for config in configs])


def is_pareto_better(better: Sequence[Sequence[float]], worse: Sequence[Sequence[float]]) -> bool:
    """Return whether the first config removes the second from the Pareto front.

    Both are the `ends` of the same measures. The first must be at least as good in all of them and
    significantly better in one.
    """
    pairs = list(zip(better, worse, strict=True))
    is_as_good = all(first[0] >= second[0] for first, second in pairs)
    return is_as_good and any(min(first) > max(second) for first, second in pairs)


def build_trade_chart(summary: StudySummary, ranking: Ranking, labels: Labels) -> Figure | None:
    """Draw speed against quality, or against memory if the quality of too few configs is known.

    The result is None if fewer than two configs have both a speed and a cost.
    """
    points = list_ranked_points(summary, ranking)
    points = [point for point in points if has_ranked_result(summary, point)]
    configs = [point.point.config for point in points]
    costs = []
    for cost in (_find_memory_measure(summary), _find_quality_measure(summary)):
        if cost is not None and len(cost.of.keys() & configs) > 1:
            costs.append(cost)
            points = [point for point in points if point.point.config in cost.of]
    if not costs or len(points) < 2:
        return None
    measures = [_measure_speed(summary, ranking, points), *costs]
    front = _find_front(measures, [point.point.config for point in points])
    return _build_chart(summary, ranking, measures, costs[-1], front=front, labels=labels)


def _find_front(measures: Sequence[_Measure], configs: Iterable[Config]) -> dict[Config, bool]:
    """Return for each config whether it is on the Pareto front."""
    ends = {}
    for config in configs:
        ends[config] = [measure.ends(config) for measure in measures]
    front = {}
    for config, config_ends in ends.items():
        is_beaten = any(is_pareto_better(other, config_ends) for other in ends.values())
        front[config] = not is_beaten
    return front


def _measure_speed(
    summary: StudySummary, ranking: Ranking, points: Sequence[PointSummary]
) -> _Measure:
    definition = summary.definitions[ranking.metric]
    speeds = {}
    for point in points:
        speed = to_quantity(point.metrics[ranking.metric], definition)
        if speed is not None:
            speeds[point.point.config] = speed
    sign = 1.0 if definition.higher_is_better else -1.0
    return _Measure("speed", definition.name, find_unit(definition), speeds, sign)


def _find_memory_measure(summary: StudySummary) -> _Measure | None:
    """Return the peak memory of configs, on the device if any config used one. None if unknown."""
    on_device = any(config.memory.device_peak_bytes for config in summary.configs)
    peaks = {}
    for config in summary.configs:
        memory = config.memory
        estimate = memory.device_peak_bytes if on_device else memory.peak_bytes
        peak = make_spread(estimate, Unit.BYTES)
        if peak is not None:
            peaks[config.config] = peak
    if not peaks:
        return None
    name = "peak device memory" if on_device else "peak memory"
    return _Measure("memory", name, Unit.BYTES, peaks)


def _find_quality_measure(summary: StudySummary) -> _Measure | None:
    """Return the divergence from the baseline, else the perplexity. None if both are unknown."""
    for key in ("kl_mean", "perplexity"):
        if sum(key in row.estimates for row in summary.quality) > 1:
            definition = summary.quality_definitions[key]
            losses = {}
            for row in summary.quality:
                loss = _find_quality(row, key, definition)
                if loss is not None:
                    losses[row.config] = loss
            return _Measure("quality", definition.name, find_unit(definition), losses)
    return None


def _find_quality(row: ConfigQuality, key: str, definition: MetricDefinition) -> Quantity | None:
    if key not in row.estimates and key == "kl_mean" and row.baseline == row.config:
        return Quantity(0.0, find_unit(definition))  # the baseline does not differ from itself
    return to_quantity(row.estimates.get(key), definition)


def _build_chart(
    summary: StudySummary,
    ranking: Ranking,
    measures: Sequence[_Measure],
    cost: _Measure,
    *,
    front: Mapping[Config, bool],
    labels: Labels,
) -> Figure:
    speed = measures[0]
    y_scale = speed.make_scale(front)
    x_scale = cost.make_scale(front)
    rows = []
    for config, is_on in front.items():
        row: fig.Row = {
            **fig.place_on_axis("y", speed.of[config], y_scale),
            **fig.place_on_axis("x", cost.of[config], x_scale),
            "shown": format_quantity(speed.of[config]),
            "cost": format_quantity(cost.of[config]),
            "rank": format_rank(find_ranked_entry(ranking, config)) or UNKNOWN,
            "config": labels[config],
            "front": is_on,
            "is_labelled": len(front) <= FEW_LABELS or is_on or bool(labels.mark(config)),
        }
        rows.append(row)
    y_title = fig.format_axis_title(summary.definitions[ranking.metric], y_scale)
    y = fig.make_axis_of_rows(y_title, rows, "y", zero=True)
    unit = f" ({x_scale.unit})" if x_scale.unit else ""
    x_title = f"{cost.name}{unit}, less is better"
    x = fig.make_axis_of_rows(x_title, rows, "x", least_span=LEAST_SPAN.get(cost.key, 0.0))
    for row in rows:  # a name is on the side that has more space
        is_right = x.share(fig.list_field_values([row], "x")[0]) > FAR_RIGHT
        row["side"] = "left" if is_right else "right"
    keys = [measure.key for measure in measures]
    best = [labels[config] for config, is_on in front.items() if is_on]
    names = ""
    if len(best) <= fig.MOST_LABELS:
        names = f": {format_plain_text(format_list(best))}"
    lacking = (
        f"{format_plain_text(format_list(keys[1:], 'or'))} unknown"  # of configs that have a speed
    )
    return fig.build_chart(
        f"{cost.key}-{ranking.workload}",
        f"{ranking.workload}: speed against {cost.key}",
        (
            f"On the Pareto front of {format_plain_text(format_list(keys))}{names}.",
            fig.explain_cut_marks(rows, x=x, y=y),
            describe_absent_configs(summary, {ranking.workload}, front, labels, lacks=lacking),
            labels.shared,
        ),
        _build_layers(x, y, cost),
        rows,
        height=HEIGHT,
    )


def _build_layers(x: fig.ChartAxis, y: fig.ChartAxis, cost: _Measure) -> list[Layer]:
    best = fig.filter_rows("datum.front")
    beaten = fig.filter_rows("!datum.front")
    about = fig.make_tooltips(
        config="Config", shown="Speed", cost=cost.name.capitalize(), rank="Rank by speed"
    )
    right = fig.filter_rows("datum.side == 'right'")
    left = fig.filter_rows("datum.side == 'left'")
    layers = fig.make_error_bars(x, y, style="error")
    labeled = "!datum.front && datum.is_labelled"
    for condition, style in (("datum.front", "bright"), (labeled, "dim")):
        texts = fig.make_halo(right, style, align="left", dx=BESIDE)
        texts += fig.make_halo(left, style, align="right", dx=-BESIDE)
        for text in texts:
            layers.append(text.where(condition).encode(x=x.x(), y=y.y(), text="config:N"))
    for layer, style, filled in ((beaten, "beaten", False), (best, "best", True)):
        mark = layer.mark("point", style=style, filled=filled)
        layers.append(mark.encode(x=x.x(), y=y.y(), tooltip=about))
    return layers
