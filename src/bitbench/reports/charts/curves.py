"""Lines over workloads that differ in one thing, load or the length of the prompt, with guides where a limit is."""

from collections.abc import Sequence
from dataclasses import dataclass

from bitbench.analysis.results.estimate import MEDIAN
from bitbench.analysis.results.summary import PointSummary, RateAnswer, StudySummary
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.figure import (
    MOST_SERIES,
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
from bitbench.reports.labels import Labels, grouped
from bitbench.reports.sections.ranked import ranked_metric_definition
from bitbench.reports.sections.sweep import LOAD, sweep_level, sweep_shape_without, sweep_tail_metric
from bitbench.study.metrics import METRICS, OBJECTIVES
from bitbench.study.plan import Config, Point
from bitbench.study.workload import Workload, workload_length_text
from bitbench.util.units import UNKNOWN

HEIGHT = 320


@dataclass(frozen=True)
class Guide:
    """A line across the figure, at a place of the y axis (a limit) or of the x axis (an answer with its interval)."""

    label: str
    x: float | None = None
    y: float | None = None
    x_low: float | None = None
    x_high: float | None = None

    @property
    def row(self) -> fig.Row:
        ends: fig.Row = {"guide_low": self.x_low, "guide_high": self.x_high}
        return {"guide": self.label, "guide_x": self.x, "guide_y": self.y, **ends}


def _lines_figure(
    name: str,
    title: str,
    caption: Sequence[str],
    rows: Sequence[fig.Row],
    *,
    x: fig.ChartAxis,
    y: fig.ChartAxis,
    at: str,
    marked: bool,
    guides: Sequence[Guide] = (),
) -> Figure:
    """Return a figure with a line per series, with error bars. `marked`: the points of the first say their load."""
    series = list(dict.fromkeys(str(row["series"]) for row in rows))
    layers = [*_guides(x, y, guides), *_layers(x, y, at, series, marked=marked)]
    sentences = [*caption, fig.cut_sentence(rows, x=x, y=y)]
    drawn = [*rows, *(guide.row for guide in guides)]
    return fig.layered_figure(name, title, sentences, layers, drawn, height=HEIGHT)


def _layers(x: fig.ChartAxis, y: fig.ChartAxis, at: str, names: Sequence[str], *, marked: bool) -> list[Layer]:
    base = fig.figure_layer_where("isValid(datum.series)")
    colour = figure_channel("series:N", sort=list(names), legend=None if len(names) == 1 else legend())
    shape = figure_channel("series:N", sort=list(names), legend=None)
    about = fig.tooltips(
        series="Config",
        workload="Workload",
        at=at.capitalize(),
        shown="Mean [interval]",
        counts="Starts / trials",
    )
    return [
        base.mark("line").encode(x=x.x(), y=y.y(), color=colour, order="order:Q"),
        *fig.error_bars(x, y, colour=colour, opacity=0.45),
        base.mark("point", filled=True, size=60).encode(x=x.x(), y=y.y(), color=colour, shape=shape, tooltip=about),
        *(_loads(base, x, y, names[0]) if marked else []),
    ]


def _loads(base: Layer, x: fig.ChartAxis, y: fig.ChartAxis, series: str) -> list[Layer]:
    first = base.where({"field": "series", "equal": series})
    return [text.encode(x=x.x(), y=y.y(), text="at:N") for text in fig.halo(first, "dim", align="center", dy=-12)]


def _guides(x: fig.ChartAxis, y: fig.ChartAxis, guides: Sequence[Guide]) -> list[Layer]:
    """Behind the lines. A label stands where its guide meets the edge."""
    layers: list[Layer] = []
    if any(guide.x_low is not None for guide in guides):
        band = fig.figure_layer_where("isValid(datum.guide_low)").mark("rect", style="answer")
        layers.append(band.encode(x=x.x("guide_low"), x2="guide_high"))
    if any(guide.x is not None for guide in guides):
        upright = fig.figure_layer_where("isValid(datum.guide_x)")
        layers.append(upright.mark("rule", style="baseline").encode(x=x.x("guide_x")))
        texts = fig.halo(upright, "dim", align="right", dx=-6, dy=10)
        layers += [text.encode(x=x.x("guide_x"), y=figure_constant(0), text="guide:N") for text in texts]
    if any(guide.y is not None for guide in guides):
        lying = fig.figure_layer_where("isValid(datum.guide_y)")
        layers.append(lying.mark("rule", style="limit").encode(y=y.y("guide_y")))
        texts = fig.halo(lying, "change", align="left", dx=4, dy=-8)
        layers += [text.encode(x=figure_constant(0), y=y.y("guide_y"), text="guide:N") for text in texts]
    return layers


def curves_by_load(workloads: Sequence[Workload]) -> list[list[Workload]]:
    """Groups of at least two that differ only in how much is asked at once, by rising load."""
    alike = grouped(workloads, lambda workload: sweep_shape_without(LOAD, workload))
    ordered = [sorted(group, key=sweep_level) for group in alike.values()]
    return [group for group in ordered if len({sweep_level(workload) for workload in group}) > 1]


THROUGHPUT = "output_throughput"


@dataclass(frozen=True)
class _Line:
    """One line: whose it is, how it is called, and the metric that it shows."""

    config: Config
    label: str
    metric: str


def load_curve_figures(summary: StudySummary, labels: Labels) -> list[Figure]:
    """Latency over throughput, a point per load. Of one config its times and its throughput over the load, with the
    limits of the study and what a search found."""
    alone = len(summary.configs) == 1
    found: list[Figure | None] = []
    for group in curves_by_load(summary.study.workloads):
        if alone:
            found += [_level_figure(summary, group, *lines, labels) for lines in _over_load(summary).items()]
        else:
            found.append(_load_figure(summary, group, labels))
    return [figure for figure in found if figure is not None]


def _load_figure(summary: StudySummary, group: Sequence[Workload], labels: Labels) -> Figure | None:
    lines, left_out = _lines(summary, group, {"latency_s": ""}, labels)
    drawn = [pair for pair in _drawn(summary, lines, group) if THROUGHPUT in pair[1].metrics]
    if not drawn:
        return None
    throughput, latency = summary.definitions[THROUGHPUT], summary.definitions["latency_s"]
    x_scale = quantity_scale(quantity_unit(throughput), [point.metrics[THROUGHPUT].value for _, point in drawn])
    y_scale = _y_scale(summary, lines, group)
    rows: list[fig.Row] = []
    for line, point in drawn:
        load = sweep_level(summary.study.workload(point.point.workload))
        x_values = fig.place_on_axis("x", estimated(point.metrics[THROUGHPUT], throughput), x_scale)
        rows.append(
            {**_point(summary, line, point, y_scale), **x_values, "order": load, "at": shown(setting_quantity(load))}
        )
    unit = "requests/s" if group[0].open_loop else "requests in flight"
    said = f"A point per load ({unit}, as written at the first line), with its intervals."
    return _lines_figure(
        f"load-{group[0].name}",
        f"{latency.name.capitalize()} against throughput, {_shape(group)}",
        (said, "Best is the lower right.", left_out,
         absent_from_figure(summary, _names(group), _configs(summary, group, lines), labels), labels.shared),
        rows,
        x=fig.axis_of(fig.axis_title(throughput, x_scale), rows, "x", zero=True),
        y=fig.axis_of(fig.axis_title(latency, y_scale), rows, "y", zero=True),
        at=unit,
        marked=True,
    )  # fmt: skip


def _over_load(summary: StudySummary) -> dict[str, dict[str, str]]:
    """By what is shown over the load: its lines, those of the objectives among them."""
    found = {
        "ttft": {
            metric: ranked_metric_definition(summary, metric).label
            for metric in ("ttft_p50_s", sweep_tail_metric(summary))
        }
    }
    for objective in summary.study.objectives:
        metric = OBJECTIVES[objective.name]
        sound = all(point.tails[metric.column].is_carried for point in summary.points if metric.column in point.tails)
        label = metric.label if sound else f"{metric.label} or slowest"
        found.setdefault(objective.metric, {})[metric.column] = label
    return found | {"throughput": {THROUGHPUT: "output throughput"}}


def _level_figure(
    summary: StudySummary, group: Sequence[Workload], shows: str, metrics: dict[str, str], labels: Labels
) -> Figure | None:
    """A time, or the throughput, over the load that was asked for."""
    lines, _ = _lines(summary, group, metrics, labels)
    drawn = _drawn(summary, lines, group)
    if not drawn:
        return None
    scale = _y_scale(summary, lines, group)
    rows: list[fig.Row] = []
    for line, point in drawn:
        load = sweep_level(summary.study.workload(point.point.workload))
        rows.append(
            {**_point(summary, line, point, scale), "x": load, "order": load, "at": shown(setting_quantity(load))}
        )
    limits = _limits(summary, shows, scale)
    guides = [*limits, *_answer(summary.search)]
    words, better = (METRICS[shows].words, "less") if shows in METRICS else ("output throughput", "more")
    over, unit = ("offered rate", "requests/s") if group[0].open_loop else ("concurrency", "requests in flight")
    loads = [
        *fig.figure_field_values(rows, "x"),
        *(end for guide in guides for end in (guide.x_low, guide.x_high) if end is not None),
    ]
    heights = [*fig.figure_field_values(rows, "y"), *(guide.y for guide in limits if guide.y is not None)]
    band = (
        "Band: the interval of the highest rate that meets the limit."
        if summary.search and guides[len(limits) :]
        else ""
    )
    return _lines_figure(
        f"load-{shows}-{group[0].name}",
        f"{words.capitalize()} by {over}",
        (_shape(group) + ".", "Red: the limit." if limits else "", band, _of_few_requests(drawn)),
        rows,
        x=fig.axis_for(f"{over} ({unit})", loads, zero=True),
        y=fig.axis_for(
            f"{words} ({scale.unit}), {better} is better",
            heights,
            fig.figure_field_values(rows, "y_low", "y_high"),
            zero=True,
        ),
        at=unit,
        marked=False,
        guides=guides,
    )


def _limits(summary: StudySummary, time: str, scale: Scale) -> list[Guide]:
    return [
        Guide(
            f"{objective.name} ≤ {shown(Quantity(objective.limit, Unit.SECONDS, digits=ROUGH))}",
            y=objective.limit / scale.factor,
        )
        for objective in summary.study.objectives
        if objective.metric == time
    ]


def _answer(search: RateAnswer | None) -> list[Guide]:
    if search is None or search.rate is None:
        return []
    ends = {"x_low": search.low, "x_high": search.high} if search.high is not None else {}
    return [Guide(shown(Quantity(search.rate, "requests/s", digits=ROUGH)), x=search.rate, **ends)]


def _shape(group: Sequence[Workload]) -> str:
    return (
        f"{workload_length_text(group[0].input_tokens)} tokens in, {workload_length_text(group[0].output_tokens)} out"
    )


def _names(group: Sequence[Workload]) -> set[str]:
    return {workload.name for workload in group}


def _configs(summary: StudySummary, group: Sequence[Workload], lines: Sequence[_Line]) -> set[Config]:
    """Those that a figure shows, or leaves out where there is no room, which it says otherwise."""
    with_result = {
        point.point.config for point in summary.points if point.point.workload in _names(group) and point.metrics
    }
    return with_result | {line.config for line in lines}


def _of_few_requests(drawn: Sequence[tuple[_Line, PointSummary]]) -> str:
    tails = (point.tails[line.metric] for line, point in drawn if line.metric in point.tails)
    if not any(tail.note for tail in tails if tail.percent > MEDIAN):
        return ""
    return "Where too few requests were sent for a p99, the slowest is shown in its place."


def _lines(
    summary: StudySummary, group: Sequence[Workload], metrics: dict[str, str], labels: Labels
) -> tuple[list[_Line], str]:
    """The best at the last workload of the group, the baseline always among them; and a sentence about the others."""
    last = group[-1].name
    ranking = next(ranking for ranking in summary.rankings if ranking.workload == last)
    ranked = [entry.config for entry in ranking.entries]
    order = dict.fromkeys([*ranked, *(config.config for config in summary.configs)])
    lines = [_Line(config, name or labels[config], metric) for config in order for metric, name in metrics.items()]
    known = [line for line in lines if _points(summary, line, group)]
    kept = known[:MOST_SERIES]
    ours = [line for line in known if line.config == summary.baseline]
    if ours and ours[0] not in kept:
        kept[-1] = ours[0]
    if len(kept) == len(known):
        return kept, ""
    return kept, f"Shown are {len(kept)} of {len(known)} configs, the best at {last} and the baseline."


def _drawn(
    summary: StudySummary, lines: Sequence[_Line], group: Sequence[Workload]
) -> list[tuple[_Line, PointSummary]]:
    return [(line, point) for line in lines for point in _points(summary, line, group)]


def _points(summary: StudySummary, line: _Line, group: Sequence[Workload]) -> list[PointSummary]:
    wanted = [Point(config=line.config, workload=workload.name) for workload in group]
    found = {point.point: point for point in summary.points if line.metric in {**point.metrics, **point.tails}}
    return [found[point] for point in wanted if point in found]


def _y_scale(summary: StudySummary, lines: Sequence[_Line], group: Sequence[Workload]) -> Scale:
    definitions = {line.metric: ranked_metric_definition(summary, line.metric) for line in lines}
    figures = (
        point_quantity(point, line.metric, definitions[line.metric]) for line, point in _drawn(summary, lines, group)
    )
    return quantity_scale(
        quantity_unit(definitions[lines[0].metric]), [figure.value for figure in figures if figure is not None]
    )


def _point(summary: StudySummary, line: _Line, point: PointSummary, scale: Scale) -> fig.Row:
    estimate = point.metrics.get(line.metric) or next(iter(point.metrics.values()))
    figure = point_quantity(point, line.metric, ranked_metric_definition(summary, line.metric))
    return {
        "series": line.label,
        "workload": point.point.workload,
        **fig.place_on_axis("y", figure, scale),
        "shown": shown(figure) if figure else UNKNOWN,
        "counts": starts_and_trials(estimate),
    }
