"""The figure of an answer: each config with its ratio to the baseline on each workload."""

from collections.abc import Sequence
from dataclasses import replace

from bitbench.analysis.results.summary import Ranking, StudySummary
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.figure import (
    Layer,
    Spec,
    absent_from_figure,
    figure_channel,
    figure_constant,
)
from bitbench.reports.document.model import Figure, Quantity
from bitbench.reports.document.numbers import Scale, shown
from bitbench.reports.labels import CHOSEN, FLAGGED, Labels
from bitbench.reports.sections.ranked import (
    ranked_configs,
    ranked_ratio_to_baseline,
)
from bitbench.study.plan import Config

LANE, WIDEST_LANE, GAP = (
    15,
    34,
    9,
)  # pixels: one workload of a config, where there are few, and between configs
LEAST_HEIGHT = 240
MOST_LANES = 26  # as high as a first screen has room for
MOST_WORKLOADS = 4
NAME_LANE = "name"  # of a config, above the lanes of its workloads: a phone has no room beside them
FAR = 1.7  # times the outermost value: an interval that reaches beyond is cut off
ROOM = 0.14  # of the axis, for the figure behind the last interval


def ratio_figure(summary: StudySummary, labels: Labels) -> Figure | None:
    """None where no config has a ratio to another. `labels`: marked with what the answer says of each."""
    rankings = [
        ranking
        for ranking in summary.rankings
        if any(entry.ratio_to_baseline for entry in ranking.entries)
    ]
    if not rankings:
        return None
    drawn = rankings[:MOST_WORKLOADS]
    known = [
        config
        for config in ranked_configs(summary)
        if any(_has_mark(ranking, config) for ranking in drawn)
    ]
    configs = _with_room(known, summary, labels, max(3, MOST_LANES // len(drawn)))
    rows = [
        _row(ranking, config, labels)
        for config in configs
        for ranking in drawn
        if _has_mark(ranking, config)
    ]
    definition = summary.definitions[summary.primary_metric]
    caption = (
        _meaning([labels[config] for config in configs]),
        f"Shown are {len(configs)} of {len(known)} configs." if len(configs) < len(known) else "",
        f"Shown are {len(drawn)} of {len(rankings)} workloads."
        if len(drawn) < len(rankings)
        else "",
        absent_from_figure(summary, {ranking.workload for ranking in drawn}, known, labels),
        labels.shared,
    )
    title = f"{definition.name.capitalize()} against the baseline"
    return ratio_rows(
        "answer-ratios", title, caption, rows, "times as good as the baseline, more is better"
    )


def ratio_rows(
    name: str, title: str, caption: Sequence[str], rows: list[fig.Row], words: str
) -> Figure:
    """One row per `config` and a colour per `workload`: `value` with its ends, around 1."""
    values = [1.0, *fig.figure_field_values(rows, "value")]
    ends = fig.figure_field_values(rows, "value_low", "value_high")
    near = [end for end in ends if min(values) / FAR <= end <= max(values) * FAR]
    axis = fig.axis_for(words, [*values, *near])
    rows = [
        row | {"end": min(axis.high, *fig.figure_field_values([row], "end"))} for row in rows
    ]  # of what is cut off, the edge
    edge = axis.high
    caption = [*caption, fig.cut_sentence(rows, value=axis)]
    axis = replace(axis, high=axis.value(1 + ROOM))
    names, groups = (
        [str(each) for each in dict.fromkeys(row[of] for row in rows)]
        for of in ("config", "workload")
    )
    lanes = len(groups) + 1
    lane = max(LANE, min(WIDEST_LANE, LEAST_HEIGHT // (len(names) * lanes)))
    height = len(names) * (lane * lanes + GAP)
    return fig.layered_figure(
        name, title, caption, _layers(axis, edge, names, groups), rows, height=height
    )


def ratio_row(
    config: str, workload: str, ratio: Quantity | None, *, is_flagged: bool = False
) -> fig.Row:
    """None: what the others are compared with."""
    place = (
        fig.place_on_axis("value", ratio, Scale(""))
        if ratio
        else {"value": 1.0, "value_low": None, "value_high": None}
    )
    return {
        "config": config,
        "workload": workload,
        **place,
        "end": place["value_high"] or place["value"],
        "shown": f"{ratio.value:.2f}×" if ratio and ratio.value else "baseline",
        "whole": shown(ratio) if ratio else "baseline",
        "is_flagged": is_flagged,
    }


def _with_room(
    known: Sequence[Config], summary: StudySummary, labels: Labels, most: int
) -> list[Config]:
    """The fastest; what the answer names and the baseline are always among them."""
    if len(known) <= most:
        return list(known)
    wanted = [config for config in known if config == summary.baseline or labels.mark(config)]
    kept = [*wanted, *(config for config in known if config not in wanted)][:most]
    return [config for config in known if config in kept]


def _has_mark(ranking: Ranking, config: Config) -> bool:
    return config == ranking.baseline or ranked_ratio_to_baseline(ranking, config) is not None


def _row(ranking: Ranking, config: Config, labels: Labels) -> fig.Row:
    flagged = labels.mark(config) == FLAGGED
    return ratio_row(
        labels[config],
        ranking.workload,
        ranked_ratio_to_baseline(ranking, config),
        is_flagged=flagged,
    )


def _meaning(names: Sequence[str]) -> str:
    marks = {CHOSEN: "recommended", FLAGGED: "quality flagged"}
    meant = [
        f"{mark} {words}"
        for mark, words in marks.items()
        if any(name.startswith(mark) for name in names)
    ]
    return f"{'; '.join(['Lines are intervals', *meant])}."


def _layers(
    axis: fig.ChartAxis, edge: float, names: Sequence[str], workloads: Sequence[str]
) -> list[Layer]:
    """`edge`: where intervals are cut off."""
    several = len(workloads) > 1
    y = figure_channel("config:N", sort=list(names), axis=None)
    lanes = figure_channel("workload:N", scale={"domain": [NAME_LANE, *workloads]})
    base = fig.EVERY_ROW.encode(y=y, yOffset=lanes)
    top: Spec = {"title": None, "orient": "top", "direction": "horizontal"}
    colour = figure_channel("workload:N", sort=list(workloads), legend=top if several else None)
    faint = {"condition": {"test": "datum.is_flagged", "value": 0.45}, "value": 1}
    about = fig.tooltips(config="Config", workload="Workload", whole="vs. baseline")
    return [
        fig.EVERY_ROW.first().mark("rule", style="baseline").encode(x=axis.at(1.0)),
        base.where("isValid(datum.value_low)")
        .mark("rule", strokeWidth=2.5)
        .encode(x=axis.x("value_low"), x2="end", color=colour, opacity=faint),
        *(
            arrow.encode(color=colour, opacity=faint)
            for arrow in fig.cut_marks("value", axis, high=edge, base=base)
        ),
        base.mark("point", filled=True, size=70).encode(
            x=axis.x("value"), color=colour, opacity=faint, tooltip=about
        ),
        *(
            text.encode(x=axis.x("end"), text="shown:N")
            for text in fig.halo(base, "dim", align="left", dx=8)
        ),
        *(name.mark("text", style="name", fontWeight=weight) for name, weight in _names(y)),
    ]


def _names(y: Spec) -> list[tuple[Layer, int]]:
    """Return the names of configs above their lanes, and how bold they are: what the answer chooses stands out."""
    chosen = f"indexof(datum.config, '{CHOSEN}') == 0"
    once = {"window": [{"op": "row_number", "as": "number"}], "groupby": ["config"]}
    place: dict[str, Spec] = {"x": figure_constant(0), "y": y, "yOffset": {"datum": NAME_LANE}}
    named = Layer((once, {"filter": "datum.number == 1"})).encode(**place, text="config:N")
    return [(named.where(chosen), 700), (named.where(f"!({chosen})"), 400)]
