"""The answer as a picture: how many times as fast as the baseline each config is, a row each, a colour per workload."""

from collections.abc import Sequence
from dataclasses import replace

from bitbench.analysis.results.summary import Ranking, StudySummary
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.absent import absent_from
from bitbench.reports.charts.layer import Layer, Spec, channel, value
from bitbench.reports.document.model import Quantity
from bitbench.reports.document.numbers import Scale, shown
from bitbench.reports.labels import CHOSEN, FLAGGED, Labels
from bitbench.reports.sections.ranked import by_speed, ratio_to_baseline
from bitbench.study.plan import Config

LANE, WIDEST_LANE, GAP = 15, 34, 9  # pixels: one workload of a config, where there are few, and between configs
LEAST_HEIGHT = 240
MOST_LANES = 26  # as high as a first screen has room for
MOST_WORKLOADS = 4
NAMES = 260  # pixels of the longest name beside the rows
NAME_LANE = ""  # of a config, in a figure for a phone: no workload is called so
FAR = 1.7  # times the outermost value: an interval that reaches beyond is cut off
ROOM = 0.14  # of the axis, for the figure behind the last interval


def ratio_figure(summary: StudySummary, labels: Labels) -> fig.Figure | None:
    """None where no config has a ratio to another. `labels`: marked with what the answer says of each."""
    rankings = [ranking for ranking in summary.rankings if any(entry.ratio_to_baseline for entry in ranking.entries)]
    if not rankings:
        return None
    drawn = rankings[:MOST_WORKLOADS]
    known = [config for config in by_speed(summary) if any(_has_mark(ranking, config) for ranking in drawn)]
    configs = _with_room(known, summary, labels, max(3, MOST_LANES // len(drawn)))
    rows = [_row(ranking, config, labels) for config in configs for ranking in drawn if _has_mark(ranking, config)]
    definition = summary.definitions[summary.primary_metric]
    better = "more" if definition.higher_is_better else "less"
    caption = (
        _meaning([labels[config] for config in configs]),
        f"Shown are {len(configs)} of {len(known)} configs." if len(configs) < len(known) else "",
        f"Shown are {len(drawn)} of {len(rankings)} workloads." if len(drawn) < len(rankings) else "",
        absent_from(summary, {ranking.workload for ranking in drawn}, known, labels),
        labels.shared,
    )
    title = f"{definition.name.capitalize()} against the baseline"
    return ratio_rows("answer-ratios", title, caption, rows, f"ratio to the baseline, {better} is better")


def ratio_rows(name: str, title: str, caption: Sequence[str], rows: list[fig.Row], words: str) -> fig.Figure:
    """One row per `config` and a colour per `workload`: `value` with its ends, around 1."""
    values = [1.0, *fig.numbers(rows, "value")]
    ends = fig.numbers(rows, "value_low", "value_high")
    near = [end for end in ends if min(values) / FAR <= end <= max(values) * FAR]
    axis = fig.axis_for(words, [*values, *near])
    firsts = {row["config"]: place for place, row in reversed([*enumerate(rows)])}.values()
    rows = [row | {"heading": row["config"] if place in firsts else ""} for place, row in enumerate(rows)]
    rows = [row | {"end": min(axis.high, *fig.numbers([row], "end"))} for row in rows]  # of what is cut off, the edge
    axis = replace(axis, high=axis.value(1 + ROOM))
    names, groups = ([str(each) for each in dict.fromkeys(row[of] for row in rows)] for of in ("config", "workload"))
    lane = max(LANE, min(WIDEST_LANE, LEAST_HEIGHT // (len(names) * len(groups))))
    height = len(names) * (lane * len(groups) + GAP)

    def figure(*, narrow: bool) -> fig.Figure:
        layers = _layers(axis, names, groups, narrow=narrow)
        return fig.drawn(name, title, caption, layers, rows, height=height + narrow * (LANE + GAP) * len(names))

    return replace(figure(narrow=False), narrow=figure(narrow=True).spec)


def ratio_row(config: str, workload: str, ratio: Quantity | None, *, is_flagged: bool = False) -> fig.Row:
    """None: what the others are compared with."""
    place = fig.place("value", ratio, Scale("")) if ratio else {"value": 1.0, "value_low": None, "value_high": None}
    return {
        "config": config,
        "workload": workload,
        **place,
        "end": place["value_high"] or place["value"],
        "shown": f"{ratio.value:.2f}×" if ratio and ratio.value else "baseline",
        "whole": shown(ratio) if ratio else "baseline",
        "is_flagged": is_flagged,
    }


def _with_room(known: Sequence[Config], summary: StudySummary, labels: Labels, most: int) -> list[Config]:
    """The fastest; what the answer names and the baseline are always among them."""
    if len(known) <= most:
        return list(known)
    wanted = [config for config in known if config == summary.baseline or labels.mark(config)]
    kept = [*wanted, *(config for config in known if config not in wanted)][:most]
    return [config for config in known if config in kept]


def _has_mark(ranking: Ranking, config: Config) -> bool:
    return config == ranking.baseline or ratio_to_baseline(ranking, config) is not None


def _row(ranking: Ranking, config: Config, labels: Labels) -> fig.Row:
    flagged = labels.mark(config) == FLAGGED
    return ratio_row(labels[config], ranking.workload, ratio_to_baseline(ranking, config), is_flagged=flagged)


def _meaning(names: Sequence[str]) -> str:
    marks = {CHOSEN: "recommended", FLAGGED: "quality flagged"}
    meant = [f"{mark} {words}" for mark, words in marks.items() if any(name.startswith(mark) for name in names)]
    return f"{'; '.join(['Lines are intervals', *meant])}."


def _layers(axis: fig.ChartAxis, names: Sequence[str], workloads: Sequence[str], *, narrow: bool) -> list[Layer]:
    """A phone has no room beside the rows: names stand above them."""
    several = len(workloads) > 1
    weight = {"condition": {"test": f"indexof(datum.label, '{CHOSEN}') == 0", "value": 700}, "value": 400}
    beside: Spec = {
        "title": None, "labelLimit": NAMES, "labelFlush": False, "ticks": False, "domain": False, "grid": False,
        "labelPadding": 8, "labelFontSize": 12.5, "labelFontWeight": weight,
    }  # fmt: skip
    y = channel("config:N", sort=list(names), axis=None if narrow else beside)
    lanes = channel("workload:N", scale={"domain": [*([NAME_LANE] if narrow else []), *workloads]})
    base = fig.EVERY_ROW.encode(y=y, **({"yOffset": lanes} if several or narrow else {}))
    top: Spec = {"title": None, "orient": "top", "direction": "horizontal"}
    colour = channel("workload:N", sort=list(workloads), legend=top if several else None)
    faint = {"condition": {"test": "datum.is_flagged", "value": 0.45}, "value": 1}
    about = fig.tooltips(config="Config", workload="Workload", whole="vs. baseline")
    layers = [
        fig.EVERY_ROW.first().mark("rule", style="baseline").encode(x=_at(axis, 1.0)),
        base.where("isValid(datum.value_low)")
        .mark("rule", strokeWidth=2.5)
        .encode(x=axis.x("value_low"), x2="end", color=colour, opacity=faint),
        base.mark("point", filled=True, size=70).encode(x=axis.x("value"), color=colour, opacity=faint, tooltip=about),
        *(text.encode(x=axis.x("end"), text="shown:N") for text in fig.halo(base, "dim", align="left", dx=8)),
    ]
    if narrow:
        name = fig.EVERY_ROW.mark("text", style="name")
        layers.append(name.encode(x=value(0), y=y, yOffset={"datum": NAME_LANE}, text="heading:N"))
    return layers


def _at(axis: fig.ChartAxis, place: float) -> Spec:
    return {name: what for name, what in axis.x().items() if name != "field"} | {"datum": place}
