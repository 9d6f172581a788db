"""Charts of workloads that differ only in their load, as lines with a guide at each limit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from bitbench.analysis.results.estimate import MEDIAN
from bitbench.analysis.results.summary import PointSummary, RateAnswer, StudySummary
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.figure import (
    Layer,
    describe_absent_configs,
    make_channel,
    make_constant_channel,
    make_legend,
)
from bitbench.reports.document.model import Figure, Quantity, Unit
from bitbench.reports.document.numbers import (
    ROUGH,
    Scale,
    choose_scale,
    find_point_quantity,
    find_unit,
    format_quantity,
    format_starts_and_trials,
    make_setting,
    to_quantity,
)
from bitbench.reports.document.palette import MOST_SERIES
from bitbench.reports.labels import Labels, group_by
from bitbench.reports.sections.ranked import find_metric_definition
from bitbench.reports.sections.sweep import (
    LOAD,
    choose_tail_metric,
    compute_load,
    describe_shape_without,
)
from bitbench.study.metrics import METRICS, OBJECTIVES
from bitbench.study.plan import Config, Point
from bitbench.study.workload import Workload, format_length

HEIGHT = 320
THROUGHPUT = "output_throughput"


@dataclass(frozen=True)
class _Line:
    """A line: a metric of a config, and its label."""

    config: Config
    label: str
    metric: str


@dataclass(frozen=True)
class _Curves:
    """The lines of one chart, over workloads of rising load."""

    summary: StudySummary
    group: Sequence[Workload]
    lines: Sequence[_Line]

    @cached_property
    def drawn(self) -> list[tuple[_Line, PointSummary, Quantity]]:
        """The points of each line that have a value, by rising load."""
        points = {point.point: point for point in self.summary.points}
        result = []
        for line in self.lines:
            definition = find_metric_definition(self.summary, line.metric)
            for workload in self.group:
                point = points.get(Point(config=line.config, workload=workload.name))
                if point is None:
                    continue
                figure = find_point_quantity(point, line.metric, definition)
                if figure is not None:
                    result.append((line, point, figure))
        return result

    @cached_property
    def scale(self) -> Scale:
        unit = find_unit(find_metric_definition(self.summary, self.lines[0].metric))
        return choose_scale(unit, [figure.value for _, _, figure in self.drawn])

    @property
    def rows(self) -> list[fig.Row]:
        """A row per point, with its load on the x axis."""
        rows = []
        for line, point, figure in self.drawn:
            load = compute_load(self.summary.study.workload(point.point.workload))
            estimate = point.metrics.get(line.metric) or next(iter(point.metrics.values()))
            row: fig.Row = {
                "series": line.label,
                "workload": point.point.workload,
                **fig.place_on_axis("y", figure, self.scale),
                "x": load,
                "order": load,
                "at": format_quantity(make_setting(load)),
                "shown": format_quantity(figure),
                "counts": format_starts_and_trials(estimate),
            }
            rows.append(row)
        return rows

    @property
    def shape(self) -> str:
        first = self.group[0]
        input_tokens = format_length(first.input_tokens)
        return f"{input_tokens} tokens in, {format_length(first.output_tokens)} out"

    @property
    def over(self) -> tuple[str, str]:
        """The name and the unit of the load."""
        if self.group[0].open_loop:
            return "offered rate", "requests/s"
        return "concurrency", "requests in flight"


def build_load_charts(summary: StudySummary, labels: Labels) -> list[Figure]:
    """Draw latency against throughput for each group of workloads that differ only in load.

    A single config has its times and its throughput drawn over the load instead. Guides show the
    study's limits and the result of a rate search.
    """
    figures = []
    for group in group_by_load(summary.study.workloads):
        if len(summary.configs) != 1:
            figures.append(_build_load_chart(summary, group, labels))
            continue
        config = summary.configs[0].config
        for subject, metrics in _group_metrics(summary).items():
            lines = [_Line(config, label, metric) for metric, label in metrics.items()]
            figures.append(_build_level_chart(_Curves(summary, group, lines), subject))
    return list(filter(None, figures))


def group_by_load(workloads: Sequence[Workload]) -> list[list[Workload]]:
    """Group workloads that differ only in their load, each group by rising load.

    A group with a single load is left out.
    """
    groups = []
    for group in group_by(workloads, partial(describe_shape_without, LOAD)).values():
        if len(set(map(compute_load, group))) > 1:
            groups.append(sorted(group, key=compute_load))
    return groups


def _build_load_chart(
    summary: StudySummary, group: Sequence[Workload], labels: Labels
) -> Figure | None:
    """Draw latency against throughput, or return None if no point has a throughput."""
    ranking = next(ranking for ranking in summary.rankings if ranking.workload == group[-1].name)
    ranked = [entry.config for entry in ranking.entries]
    configs = dict.fromkeys([*ranked, *(config.config for config in summary.configs)])
    lines = [_Line(config, labels[config], "latency_s") for config in configs]
    every = _Curves(summary, group, lines)
    curves = _limit_curves(every)
    throughput = summary.definitions[THROUGHPUT]
    latency = summary.definitions["latency_s"]
    figures = [
        to_quantity(point.metrics.get(THROUGHPUT), throughput) for _, point, _ in curves.drawn
    ]
    values = [figure.value for figure in figures if figure is not None]
    if not values:
        return None
    scale = choose_scale(find_unit(throughput), values)
    rows: list[fig.Row] = []
    for row, figure in zip(curves.rows, figures, strict=True):
        if figure is not None:
            rows.append({**row, **fig.place_on_axis("x", figure, scale)})
    unit = curves.over[1]
    measured = {line.config for line, _, _ in every.drawn}
    left_out = ""
    if len(curves.lines) < len(measured):
        left_out = f"Shown are {len(curves.lines)} of {len(measured)} configs."
    workloads = {workload.name for workload in group}
    return _build_line_chart(
        f"load-{group[0].name}",
        f"{latency.name.capitalize()} against throughput, {curves.shape}",
        (
            f"A point per load ({unit}, as written at the first line), with its intervals.",
            "Best is the lower right.",
            left_out,
            describe_absent_configs(summary, workloads, measured, labels),
            labels.shared,
        ),
        rows,
        x=fig.make_axis_of_rows(fig.format_axis_title(throughput, scale), rows, "x", zero=True),
        y=fig.make_axis_of_rows(fig.format_axis_title(latency, curves.scale), rows, "y", zero=True),
        at=unit,
        is_marked=True,
    )


def _limit_curves(curves: _Curves) -> _Curves:
    """Return at most MOST_SERIES lines: the best at the highest load, and the baseline."""
    lines = list(dict.fromkeys(line for line, _, _ in curves.drawn))
    if len(lines) > MOST_SERIES:
        baseline = [line for line in lines if line.config == curves.summary.baseline]
        others = [line for line in lines if line not in baseline]
        lines = [*others[: MOST_SERIES - len(baseline)], *baseline]
    return replace(curves, lines=lines)


def _group_metrics(summary: StudySummary) -> dict[str, dict[str, str]]:
    """Return the lines of each chart over the load: the label of each metric.

    The keys are METRICS and "throughput". The metrics of objectives are among the lines.
    """
    ttft = {}
    for metric in ("ttft_p50_s", choose_tail_metric(summary)):
        ttft[metric] = find_metric_definition(summary, metric).label
    lines = {"ttft": ttft}
    for objective in summary.study.objectives:
        column = OBJECTIVES[objective.name].column
        label = OBJECTIVES[objective.name].label
        tails = [point.tails[column] for point in summary.points if column in point.tails]
        if not all(tail.is_carried for tail in tails):
            label = f"{label} or slowest"
        lines.setdefault(objective.metric, {})[column] = label
    return lines | {"throughput": {THROUGHPUT: "output throughput"}}


def _build_level_chart(curves: _Curves, subject: str) -> Figure | None:
    """Draw a time, or the throughput, over the requested load. Return None without a point."""
    if not curves.drawn:
        return None
    summary = curves.summary
    rows = curves.rows
    limits = _list_limits(curves, subject)
    answers = _list_answer_guides(summary.search)
    name = "output throughput"
    better = "more"
    if subject in METRICS:
        name = METRICS[subject].words
        better = "less"
    over, unit = curves.over
    loads = fig.list_field_values(rows, "x")
    loads += fig.list_field_values(answers, "guide_low", "guide_high")
    heights = fig.list_field_values(rows, "y") + fig.list_field_values(limits, "guide_y")
    ends = fig.list_field_values(rows, "y_low", "y_high")
    caption = [f"{curves.shape}."]
    if limits:
        caption.append("Red: the limit.")
    if answers:
        caption.append("Band: the interval of the highest rate that meets the limit.")
    if _has_slowest(curves):
        caption.append(
            "Where too few requests were sent for a p99, the slowest is shown in its place."
        )
    y_title = f"{name} ({curves.scale.unit}), {better} is better"
    return _build_line_chart(
        f"load-{subject}-{curves.group[0].name}",
        f"{name.capitalize()} by {over}",
        caption,
        rows,
        x=fig.make_axis(f"{over} ({unit})", loads, zero=True),
        y=fig.make_axis(y_title, heights, ends, zero=True),
        at=unit,
        guides=[*limits, *answers],
    )


def _list_limits(curves: _Curves, subject: str) -> list[fig.Row]:
    """Return a guide for each objective on the metric that the chart shows."""
    limits: list[fig.Row] = []
    for objective in curves.summary.study.objectives:
        if objective.metric == subject:
            limit = format_quantity(Quantity(objective.limit, Unit.SECONDS, digits=ROUGH))
            height = objective.limit / curves.scale.factor
            limits.append({"guide": f"{objective.name} ≤ {limit}", "guide_y": height})
    return limits


def _has_slowest(curves: _Curves) -> bool:
    """Return whether the slowest request replaces a percentile for lack of requests."""
    tails = [point.tails.get(line.metric) for line, point, _ in curves.drawn]
    return any(tail.note for tail in tails if tail is not None and tail.percent > MEDIAN)


def _list_answer_guides(search: RateAnswer | None) -> list[fig.Row]:
    """Return the guide of the rate that a search found, with its interval if it has one."""
    if search is None or search.rate is None:
        return []
    row: fig.Row = {
        "guide": format_quantity(Quantity(search.rate, "requests/s", digits=ROUGH)),
        "guide_x": search.rate,
    }
    if search.high is not None:
        row["guide_low"] = search.low
        row["guide_high"] = search.high
    return [row]


def _build_line_chart(
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
    """Draw a line per series, with error bars.

    `at` is the unit of the load. `is_marked` writes the loads at the points of the first line.
    """
    names = list(dict.fromkeys(str(row["series"]) for row in rows))
    entries = make_legend() if len(names) > 1 else None
    color = make_channel("series:N", sort=names, legend=entries)
    shape = make_channel("series:N", sort=names, legend=None)
    about = fig.make_tooltips(
        series="Config",
        workload="Workload",
        at=at.capitalize(),
        shown="Mean [interval]",
        counts="Starts / trials",
    )
    base = fig.filter_rows("isValid(datum.series)")
    line = base.mark("line")
    point = base.mark("point", filled=True, size=60)
    layers = [
        *_build_guides(x, y, guides),
        line.encode(x=x.x(), y=y.y(), color=color, order="order:Q"),
        *fig.make_error_bars(x, y, color=color, opacity=0.45),
        point.encode(x=x.x(), y=y.y(), color=color, shape=shape, tooltip=about),
    ]
    if is_marked:
        first = base.where({"field": "series", "equal": names[0]})
        texts = fig.make_halo(first, "dim", align="center", dy=-12)
        layers += [text.encode(x=x.x(), y=y.y(), text="at:N") for text in texts]
    sentences = [*caption, fig.explain_cut_marks(rows, x=x, y=y)]
    return fig.build_chart(name, title, sentences, layers, [*rows, *guides], height=HEIGHT)


def _build_guides(x: fig.ChartAxis, y: fig.ChartAxis, guides: Sequence[fig.Row]) -> list[Layer]:
    """Return the layers behind the lines. A label is at the edge that its guide meets."""
    layers: list[Layer] = []
    fields = {field for guide in guides for field in guide}
    edge = make_constant_channel(0)
    if "guide_low" in fields:
        band = fig.filter_rows("isValid(datum.guide_low)").mark("rect", style="answer")
        layers.append(band.encode(x=x.x("guide_low"), x2="guide_high"))
    if "guide_x" in fields:
        vertical = fig.filter_rows("isValid(datum.guide_x)")
        layers.append(vertical.mark("rule", style="baseline").encode(x=x.x("guide_x")))
        for text in fig.make_halo(vertical, "dim", align="right", dx=-6, dy=10):
            layers.append(text.encode(x=x.x("guide_x"), y=edge, text="guide:N"))
    if "guide_y" in fields:
        horizontal = fig.filter_rows("isValid(datum.guide_y)")
        layers.append(horizontal.mark("rule", style="limit").encode(y=y.y("guide_y")))
        for text in fig.make_halo(horizontal, "change", align="left", dx=4, dy=-8):
            layers.append(text.encode(x=edge, y=y.y("guide_y"), text="guide:N"))
    return layers
