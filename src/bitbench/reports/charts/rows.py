"""The chart of an answer: the ratio of each config to the baseline on each workload."""

from collections.abc import Sequence
from dataclasses import replace

from bitbench.analysis.results.summary import Ranking, StudySummary
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.figure import (
    Layer,
    Spec,
    describe_absent_configs,
    make_channel,
    make_constant_channel,
)
from bitbench.reports.document.model import Figure, Quantity
from bitbench.reports.document.numbers import Scale, format_quantity
from bitbench.reports.labels import CHOSEN, FLAGGED, Labels
from bitbench.reports.sections.ranked import (
    find_ratio_to_baseline,
    has_ranked_ratio,
    list_ranked_configs,
)
from bitbench.study.plan import Config

LANE = 15  # pixels: one workload of a config
WIDEST_LANE = 34  # the same, if there are few
GAP = 9  # pixels between configs
LEAST_HEIGHT = 240
MOST_LANES = 26  # as high as a first screen has room for
MOST_WORKLOADS = 4
NAME_LANE = "name"  # of a config, above its workloads: a phone has no room next to them
FAR = 1.7  # times the outermost value: an interval that reaches beyond is cut off
ROOM = 0.14  # of the axis, for the number after the last interval


def build_ratio_chart(summary: StudySummary, labels: Labels) -> Figure | None:
    """Draw the ratios to the baseline, or return None if no config has one.

    `labels` carry the marks of the answer.
    """
    rankings = list(filter(has_ranked_ratio, summary.rankings))
    if not rankings:
        return None
    drawn = rankings[:MOST_WORKLOADS]
    configs = []
    for config in list_ranked_configs(summary):
        if any(_has_mark(ranking, config) for ranking in drawn):
            configs.append(config)
    drawn_configs = _choose_configs(configs, summary, labels, max(3, MOST_LANES // len(drawn)))
    rows: list[fig.Row] = []
    for config in drawn_configs:
        marked = [ranking for ranking in drawn if _has_mark(ranking, config)]
        rows += [_make_row(ranking, config, labels) for ranking in marked]
    caption = [_explain_marks([labels[config] for config in drawn_configs])]
    if len(drawn_configs) < len(configs):
        caption.append(f"Shown are {len(drawn_configs)} of {len(configs)} configs.")
    if len(drawn) < len(rankings):
        caption.append(f"Shown are {len(drawn)} of {len(rankings)} workloads.")
    workloads = {ranking.workload for ranking in drawn}
    caption += [describe_absent_configs(summary, workloads, configs, labels), labels.shared]
    metric = summary.definitions[summary.primary_metric].name.capitalize()
    meaning = "times as good as the baseline, more is better"
    return build_ratio_rows_chart(
        "answer-ratios", f"{metric} against the baseline", caption, rows, meaning
    )


def build_ratio_rows_chart(
    name: str, title: str, caption: Sequence[str], rows: list[fig.Row], axis_title: str
) -> Figure:
    """Draw a row per `config` and a color per `workload`: `value` with its interval, around 1."""
    values = [1.0, *fig.list_field_values(rows, "value")]
    ends = fig.list_field_values(rows, "value_low", "value_high")
    near = [end for end in ends if min(values) / FAR <= end <= max(values) * FAR]
    axis = fig.make_axis(axis_title, [*values, *near])
    edge = axis.high
    cut_rows: list[fig.Row] = []
    for row in rows:
        end = min(edge, *fig.list_field_values([row], "end"))
        cut_rows.append(row | {"end": end})
    caption = [*caption, fig.explain_cut_marks(rows, value=axis)]
    axis = replace(axis, high=axis.value(1 + ROOM))
    configs = _list_values(rows, "config")
    workloads = _list_values(rows, "workload")
    lanes = len(workloads) + 1
    lane = max(LANE, min(WIDEST_LANE, LEAST_HEIGHT // (len(configs) * lanes)))
    height = len(configs) * (lane * lanes + GAP)
    layers = _build_layers(axis, edge, configs, workloads)
    return fig.build_chart(name, title, caption, layers, cut_rows, height=height)


def _list_values(rows: Sequence[fig.Row], field: str) -> list[str]:
    return list(dict.fromkeys(str(row[field]) for row in rows))


def make_ratio_row(
    config: str, workload: str, ratio: Quantity | None, *, is_flagged: bool = False
) -> fig.Row:
    """Return the row of a config on a workload. A ratio of None means the baseline itself."""
    position: fig.Row = {"value": 1.0, "value_low": None, "value_high": None}
    label = whole = "baseline"
    if ratio is not None:
        position = fig.place_on_axis("value", ratio, Scale(""))
        whole = format_quantity(ratio)
        if ratio.value:
            label = f"{ratio.value:.2f}×"
    return {
        "config": config,
        "workload": workload,
        **position,
        "end": position["value_high"] or position["value"],
        "shown": label,
        "whole": whole,
        "is_flagged": is_flagged,
    }


def _choose_configs(
    configs: Sequence[Config], summary: StudySummary, labels: Labels, most: int
) -> list[Config]:
    """Return at most `most` configs: those of the answer, the baseline, then the fastest."""
    if len(configs) <= most:
        return list(configs)
    kept = [config for config in configs if config == summary.baseline or labels.mark(config)]
    kept += [config for config in configs if config not in kept]
    return sorted(kept[:most], key=configs.index)


def _has_mark(ranking: Ranking, config: Config) -> bool:
    return config == ranking.baseline or find_ratio_to_baseline(ranking, config) is not None


def _make_row(ranking: Ranking, config: Config, labels: Labels) -> fig.Row:
    ratio = find_ratio_to_baseline(ranking, config)
    is_flagged = labels.mark(config) == FLAGGED
    return make_ratio_row(labels[config], ranking.workload, ratio, is_flagged=is_flagged)


def _explain_marks(names: Sequence[str]) -> str:
    """Return what the lines mean, and the marks that some names begin with."""
    parts = ["Lines are intervals"]
    for mark, meaning in ((CHOSEN, "recommended"), (FLAGGED, "quality flagged")):
        if any(name.startswith(mark) for name in names):
            parts.append(f"{mark} {meaning}")
    return f"{'; '.join(parts)}."


def _build_layers(
    axis: fig.ChartAxis, edge: float, names: Sequence[str], workloads: Sequence[str]
) -> list[Layer]:
    """Return the layers of the chart. Intervals are cut off at `edge`."""
    y = make_channel("config:N", sort=list(names), axis=None)
    lanes = make_channel("workload:N", scale={"domain": [NAME_LANE, *workloads]})
    base = fig.EVERY_ROW.encode(y=y, yOffset=lanes)
    legend: Spec | None = None
    if len(workloads) > 1:
        legend = {"title": None, "orient": "top", "direction": "horizontal"}
    color = make_channel("workload:N", sort=list(workloads), legend=legend)
    faint = {"condition": {"test": "datum.is_flagged", "value": 0.45}, "value": 1}
    about = fig.make_tooltips(config="Config", workload="Workload", whole="vs. baseline")
    interval = base.where("isValid(datum.value_low)").mark("rule", strokeWidth=2.5)
    point = base.mark("point", filled=True, size=70)
    layers = [
        fig.EVERY_ROW.first().mark("rule", style="baseline").encode(x=axis.at(1.0)),
        interval.encode(x=axis.x("value_low"), x2="end", color=color, opacity=faint),
    ]
    for arrow in fig.make_cut_marks("value", axis, high=edge, base=base):
        layers.append(arrow.encode(color=color, opacity=faint))
    layers.append(point.encode(x=axis.x("value"), color=color, opacity=faint, tooltip=about))
    for text in fig.make_halo(base, "dim", align="left", dx=8):
        layers.append(text.encode(x=axis.x("end"), text="shown:N"))
    for name, weight in _build_name_layers(y):
        layers.append(name.mark("text", style="name", fontWeight=weight))
    return layers


def _build_name_layers(y: Spec) -> list[tuple[Layer, int]]:
    """Return the names of configs above their lanes, each with its font weight.

    Names that the answer chooses are bold.
    """
    is_chosen = f"indexof(datum.config, '{CHOSEN}') == 0"
    once = {"window": [{"op": "row_number", "as": "number"}], "groupby": ["config"]}
    position: dict[str, Spec] = {
        "x": make_constant_channel(0),
        "y": y,
        "yOffset": {"datum": NAME_LANE},
    }
    names = Layer((once, {"filter": "datum.number == 1"})).encode(**position, text="config:N")
    return [(names.where(is_chosen), 700), (names.where(f"!({is_chosen})"), 400)]
