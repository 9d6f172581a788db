"""Lines over workloads that differ in their load alone, with guides where a limit is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from bitbench.analysis.results.estimate import MEDIAN
from bitbench.analysis.results.summary import PointSummary, RateAnswer, StudySummary
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.figure import (
    Layer,
    absent_from_figure,
    figure_channel,
    figure_constant,
    legend,
)
from bitbench.reports.document.model import Figure, Quantity, Unit
from bitbench.reports.document.numbers import (
    ROUGH,
    Scale,
    estimated,
    point_quantity,
    quantity_scale,
    quantity_unit,
    setting_quantity,
    shown,
    starts_and_trials,
)
from bitbench.reports.document.palette import MOST_SERIES
from bitbench.reports.labels import Labels, grouped
from bitbench.reports.sections.ranked import ranked_metric_definition
from bitbench.reports.sections.sweep import (
    LOAD,
    sweep_level,
    sweep_shape_without,
    sweep_tail_metric,
)
from bitbench.study.metrics import METRICS, OBJECTIVES
from bitbench.study.plan import Config, Point
from bitbench.study.workload import Workload, workload_length_text

HEIGHT = 320
THROUGHPUT = "output_throughput"


@dataclass(frozen=True)
class _Line:
    """One line: whose it is, how it is called, and the metric that it shows."""

    config: Config
    label: str
    metric: str


@dataclass(frozen=True)
class _Curves:
    """The lines of one figure, and their points by rising load."""

    summary: StudySummary
    group: Sequence[Workload]
    lines: Sequence[_Line]

    @cached_property
    def drawn(self) -> list[tuple[_Line, PointSummary, Quantity]]:
        points = {point.point: point for point in self.summary.points}
        found = []
        for line in self.lines:
            definition = ranked_metric_definition(self.summary, line.metric)
            for workload in self.group:
                point = points.get(Point(config=line.config, workload=workload.name))
                figure = point_quantity(point, line.metric, definition) if point else None
                if point is not None and figure is not None:
                    found.append((line, point, figure))
        return found

    @cached_property
    def scale(self) -> Scale:
        unit = quantity_unit(ranked_metric_definition(self.summary, self.lines[0].metric))
        return quantity_scale(unit, [figure.value for _, _, figure in self.drawn])

    @property
    def rows(self) -> list[fig.Row]:
        """A row per point, over its load."""
        rows: list[fig.Row] = []
        for line, point, figure in self.drawn:
            load = sweep_level(self.summary.study.workload(point.point.workload))
            estimate = point.metrics.get(line.metric) or next(iter(point.metrics.values()))
            rows.append(
                {
                    "series": line.label,
                    "workload": point.point.workload,
                    **fig.place_on_axis("y", figure, self.scale),
                    "x": load,
                    "order": load,
                    "at": shown(setting_quantity(load)),
                    "shown": shown(figure),
                    "counts": starts_and_trials(estimate),
                }
            )
        return rows

    @property
    def shape(self) -> str:
        first = self.group[0]
        asked, answered = (
            workload_length_text(length) for length in (first.input_tokens, first.output_tokens)
        )
        return f"{asked} tokens in, {answered} out"

    @property
    def over(self) -> tuple[str, str]:
        """What rises, and its unit."""
        is_open = self.group[0].open_loop
        return ("offered rate", "requests/s") if is_open else ("concurrency", "requests in flight")


def load_curve_figures(summary: StudySummary, labels: Labels) -> list[Figure]:
    """Latency over throughput, a point per load. Of one config its times and its throughput over the load, with the
    limits of the study and what a search found."""
    found: list[Figure | None] = []
    for group in curves_by_load(summary.study.workloads):
        if len(summary.configs) != 1:
            found.append(_load_figure(summary, group, labels))
            continue
        config = summary.configs[0].config
        for shows, metrics in _over_load(summary).items():
            lines = [_Line(config, label, metric) for metric, label in metrics.items()]
            found.append(_level_figure(_Curves(summary, group, lines), shows))
    return [figure for figure in found if figure is not None]


def curves_by_load(workloads: Sequence[Workload]) -> list[list[Workload]]:
    """Groups of at least two that differ only in how much is asked at once, by rising load."""
    alike = grouped(workloads, lambda workload: sweep_shape_without(LOAD, workload))
    ordered = [sorted(group, key=sweep_level) for group in alike.values()]
    return [group for group in ordered if len({sweep_level(workload) for workload in group}) > 1]


def _load_figure(summary: StudySummary, group: Sequence[Workload], labels: Labels) -> Figure | None:
    ranking = next(ranking for ranking in summary.rankings if ranking.workload == group[-1].name)
    ranked = [entry.config for entry in ranking.entries]
    order = dict.fromkeys([*ranked, *(config.config for config in summary.configs)])
    every = _Curves(
        summary, group, [_Line(config, labels[config], "latency_s") for config in order]
    )
    curves = _most_curves(every)
    throughput, latency = summary.definitions[THROUGHPUT], summary.definitions["latency_s"]
    figures = [estimated(point.metrics.get(THROUGHPUT), throughput) for _, point, _ in curves.drawn]
    known = [figure.value for figure in figures if figure is not None]
    if not known:
        return None
    scale = quantity_scale(quantity_unit(throughput), known)
    rows = [
        {**row, **fig.place_on_axis("x", figure, scale)}
        for row, figure in zip(curves.rows, figures, strict=True)
        if figure is not None
    ]
    unit = curves.over[1]
    measured = {line.config for line, _, _ in every.drawn}
    left_out = (
        f"Shown are {len(curves.lines)} of {len(measured)} configs."
        if len(curves.lines) < len(measured)
        else ""
    )
    absent = absent_from_figure(summary, {each.name for each in group}, measured, labels)
    return _lines_figure(
        f"load-{group[0].name}",
        f"{latency.name.capitalize()} against throughput, {curves.shape}",
        (f"A point per load ({unit}, as written at the first line), with its intervals.", "Best is the lower right.",
         left_out, absent, labels.shared),
        rows,
        x=fig.axis_of(fig.axis_title(throughput, scale), rows, "x", zero=True),
        y=fig.axis_of(fig.axis_title(latency, curves.scale), rows, "y", zero=True),
        at=unit,
        is_marked=True,
    )  # fmt: skip


def _most_curves(curves: _Curves) -> _Curves:
    """Return as many lines as can be told apart: the best at the highest load, and the baseline."""
    known = list(dict.fromkeys(line for line, _, _ in curves.drawn))
    if len(known) <= MOST_SERIES:
        return replace(curves, lines=known)
    own = [line for line in known if line.config == curves.summary.baseline]
    others = [line for line in known if line not in own]
    return replace(curves, lines=[*others[: MOST_SERIES - len(own)], *own])


def _over_load(summary: StudySummary) -> dict[str, dict[str, str]]:
    """By what is shown over the load: its lines, those of the objectives among them."""
    times = ("ttft_p50_s", sweep_tail_metric(summary))
    found = {"ttft": {metric: ranked_metric_definition(summary, metric).label for metric in times}}
    for objective in summary.study.objectives:
        metric = OBJECTIVES[objective.name]
        sound = all(
            point.tails[metric.column].is_carried
            for point in summary.points
            if metric.column in point.tails
        )
        label = metric.label if sound else f"{metric.label} or slowest"
        found.setdefault(objective.metric, {})[metric.column] = label
    return found | {"throughput": {THROUGHPUT: "output throughput"}}


def _level_figure(curves: _Curves, shows: str) -> Figure | None:
    """A time, or the throughput, over the load that was asked for."""
    if not curves.drawn:
        return None
    summary = curves.summary
    rows = curves.rows
    limits: list[fig.Row] = [
        {
            "guide": f"{objective.name} ≤ {shown(Quantity(objective.limit, Unit.SECONDS, digits=ROUGH))}",
            "guide_y": objective.limit / curves.scale.factor,
        }
        for objective in summary.study.objectives
        if objective.metric == shows
    ]
    answers = _answer(summary.search)
    words, better = (
        (METRICS[shows].words, "less") if shows in METRICS else ("output throughput", "more")
    )
    over, unit = curves.over
    loads = [
        *fig.figure_field_values(rows, "x"),
        *fig.figure_field_values(answers, "guide_low", "guide_high"),
    ]
    heights = [*fig.figure_field_values(rows, "y"), *fig.figure_field_values(limits, "guide_y")]
    ends = fig.figure_field_values(rows, "y_low", "y_high")
    tails = [
        point.tails[line.metric] for line, point, _ in curves.drawn if line.metric in point.tails
    ]
    has_slowest = any(tail.note for tail in tails if tail.percent > MEDIAN)
    return _lines_figure(
        f"load-{shows}-{curves.group[0].name}",
        f"{words.capitalize()} by {over}",
        (
            f"{curves.shape}.",
            "Red: the limit." if limits else "",
            "Band: the interval of the highest rate that meets the limit." if answers else "",
            "Where too few requests were sent for a p99, the slowest is shown in its place."
            if has_slowest
            else "",
        ),
        rows,
        x=fig.axis_for(f"{over} ({unit})", loads, zero=True),
        y=fig.axis_for(
            f"{words} ({curves.scale.unit}), {better} is better", heights, ends, zero=True
        ),
        at=unit,
        guides=[*limits, *answers],
    )


def _answer(search: RateAnswer | None) -> list[fig.Row]:
    if search is None or search.rate is None:
        return []
    row: fig.Row = {
        "guide": shown(Quantity(search.rate, "requests/s", digits=ROUGH)),
        "guide_x": search.rate,
    }
    return [
        row if search.high is None else row | {"guide_low": search.low, "guide_high": search.high}
    ]


def _lines_figure(
    name: str,
    title: str,
    caption: Sequence[str],
    rows: Sequence[fig.Row],
    *,
    x: fig.ChartAxis,
    y: fig.ChartAxis,
    at: str,
    is_marked: bool = False,
    guides: Sequence[fig.Row] = (),
) -> Figure:
    """Return a figure with a line per series, with error bars. `is_marked`: the points of the first say their load."""
    names = list(dict.fromkeys(str(row["series"]) for row in rows))
    base = fig.figure_layer_where("isValid(datum.series)")
    colour = figure_channel("series:N", sort=names, legend=None if len(names) == 1 else legend())
    shape = figure_channel("series:N", sort=names, legend=None)
    about = fig.tooltips(
        series="Config",
        workload="Workload",
        at=at.capitalize(),
        shown="Mean [interval]",
        counts="Starts / trials",
    )
    layers = [
        *_guides(x, y, guides),
        base.mark("line").encode(x=x.x(), y=y.y(), color=colour, order="order:Q"),
        *fig.error_bars(x, y, colour=colour, opacity=0.45),
        base.mark("point", filled=True, size=60).encode(
            x=x.x(), y=y.y(), color=colour, shape=shape, tooltip=about
        ),
    ]
    if is_marked:
        first = fig.halo(
            base.where({"field": "series", "equal": names[0]}), "dim", align="center", dy=-12
        )
        layers += [text.encode(x=x.x(), y=y.y(), text="at:N") for text in first]
    sentences = [*caption, fig.cut_sentence(rows, x=x, y=y)]
    return fig.layered_figure(name, title, sentences, layers, [*rows, *guides], height=HEIGHT)


def _guides(x: fig.ChartAxis, y: fig.ChartAxis, guides: Sequence[fig.Row]) -> list[Layer]:
    """Behind the lines. A label stands where its guide meets the edge."""
    layers: list[Layer] = []
    if any("guide_low" in guide for guide in guides):
        band = fig.figure_layer_where("isValid(datum.guide_low)").mark("rect", style="answer")
        layers.append(band.encode(x=x.x("guide_low"), x2="guide_high"))
    if any("guide_x" in guide for guide in guides):
        upright = fig.figure_layer_where("isValid(datum.guide_x)")
        layers.append(upright.mark("rule", style="baseline").encode(x=x.x("guide_x")))
        texts = fig.halo(upright, "dim", align="right", dx=-6, dy=10)
        layers += [
            text.encode(x=x.x("guide_x"), y=figure_constant(0), text="guide:N") for text in texts
        ]
    if any("guide_y" in guide for guide in guides):
        lying = fig.figure_layer_where("isValid(datum.guide_y)")
        layers.append(lying.mark("rule", style="limit").encode(y=y.y("guide_y")))
        texts = fig.halo(lying, "change", align="left", dx=4, dy=-8)
        layers += [
            text.encode(x=figure_constant(0), y=y.y("guide_y"), text="guide:N") for text in texts
        ]
    return layers
