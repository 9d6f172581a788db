"""Lines over workloads that differ in one thing: latency against throughput under rising load, and input length."""

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from bitbench.core.asked.prompts import show_length
from bitbench.core.asked.workload import Workload
from bitbench.core.base import Json
from bitbench.core.cell import Cell, Contender
from bitbench.core.found.summary import CellSummary, StudySummary
from bitbench.report.charts.figure import (
    ROWS,
    Axis,
    Figure,
    Row,
    axis_for,
    axis_title,
    caption_of,
    ends,
    estimate_text,
    numbers,
    scale_of,
    specification,
)
from bitbench.report.charts.series import by_input_length, by_load, input_length
from bitbench.report.charts.style import MOST_SERIES
from bitbench.report.document.numbers import Scale, shown
from bitbench.report.labels import Labels
from bitbench.report.quantities import setting
from bitbench.report.sections.sweep import level

HEIGHT = 320
LABEL_ROOM = 170  # pixels at the right, for the names of the lines
THROUGHPUT = "output_throughput"
TTFT_LINES = {"ttft_p50_s": "TTFT p50", "ttft_p99_s": "TTFT p99"}  # of one contender alone
FEW_LENGTHS = 8  # ticks: more would not fit beside each other on a phone


@dataclass(frozen=True)
class _Line:
    """One line: whose it is, how it is called, and the metric that it shows."""

    contender: Contender
    label: str
    metric: str


def load_figures(summary: StudySummary, labels: Labels) -> list[Figure]:
    """Latency over throughput, a point per load; of one contender the time to first token, as a sweep asks for it."""
    found = (_load_figure(summary, group, labels) for group in by_load(summary.study.workloads))
    return [figure for figure in found if figure is not None]


def length_figures(summary: StudySummary, labels: Labels) -> list[Figure]:
    """The headline metric over the length of the prompt, and the time to first token."""
    metrics = dict.fromkeys((summary.headline, "ttft_s"))
    found = [
        _length_figure(summary, group, metric, labels)
        for group in by_input_length(summary.study.workloads)
        for metric in metrics
    ]
    return [figure for figure in found if figure is not None]


def _load_figure(summary: StudySummary, group: Sequence[Workload], labels: Labels) -> Figure | None:
    alone = len(summary.contenders) == 1
    metrics = TTFT_LINES if alone else {"latency_s": ""}
    lines, left_out = _lines(summary, group, metrics, labels)
    cells = [cell for line in lines for cell in _cells(summary, line, group) if THROUGHPUT in cell.metrics]
    if not cells:
        return None
    throughput = summary.definitions[THROUGHPUT]
    latency = summary.definitions[next(iter(metrics))]
    if alone:  # its lines are percentiles of one time
        latency = latency.model_copy(update={"name": "time to first token"})
    x_scale = scale_of(throughput, [cell.metrics[THROUGHPUT].mean for cell in cells])
    y_scale = _y_scale(summary, lines, group)
    rows: list[Row] = []
    for line in lines:
        for cell in _cells(summary, line, group):
            if THROUGHPUT not in cell.metrics:
                continue
            low, high = ends(cell.metrics[THROUGHPUT], x_scale)
            x_values: Row = {"x": cell.metrics[THROUGHPUT].mean / x_scale.factor, "x_low": low, "x_high": high}
            place = level(summary.study.workload(cell.cell.workload))
            rows.append(
                {**_point(summary, line, cell, y_scale), **x_values, "order": place, "at": shown(setting(place))}
            )
    unit = "requests/s" if group[0].open_loop else "requests in flight"
    shape = f"{show_length(group[0].input_tokens)} tokens in, {show_length(group[0].output_tokens)} out"
    title = f"{latency.name.capitalize()} against throughput, {shape}"
    load = f"A point per load ({unit}, as written at the first line), with its intervals, cut off at the edge."
    caption = caption_of(load, "Best is the lower right.", left_out, labels.shared)
    return _curves(
        Figure(f"load-{group[0].name}", title, caption, {}, rows),
        x=_axis(axis_title(throughput, x_scale), rows, "x"),
        y=_axis(axis_title(latency, y_scale), rows, "y"),
        at=unit,
        names=[line.label for line in lines],
        marked=True,
    )


def _length_figure(summary: StudySummary, group: Sequence[Workload], metric: str, labels: Labels) -> Figure | None:
    lines, left_out = _lines(summary, group, {metric: ""}, labels)
    if not lines:
        return None
    scale = _y_scale(summary, lines, group)
    rows: list[Row] = []
    for line in lines:
        for cell in _cells(summary, line, group):
            place = input_length(summary.study.workload(cell.cell.workload))
            rows.append({**_point(summary, line, cell, scale), "x": place, "order": place, "at": f"{place:,.0f}"})
    lengths = sorted(set(numbers(rows, "x")))
    if len(lengths) < 2:  # nothing to see along a length
        return None
    definition = summary.definitions[metric]
    title = f"{definition.name.capitalize()} over input length"
    same = f"Concurrency {group[0].concurrency}, {show_length(group[0].output_tokens)} tokens out."
    caption = caption_of(same, "Bars are intervals, cut off at the edge.", left_out, labels.shared)
    ticks = lengths if len(lengths) <= FEW_LENGTHS else []
    return _curves(
        Figure(f"length-{metric}-{group[0].name}", title, caption, {}, rows),
        x=axis_for("input tokens", lengths, ticks=ticks),
        y=_axis(axis_title(definition, scale), rows, "y"),
        at="input tokens",
        names=[line.label for line in lines],
        marked=False,
    )


def _lines(
    summary: StudySummary, group: Sequence[Workload], metrics: dict[str, str], labels: Labels
) -> tuple[list[_Line], str]:
    """The best at the last workload of the group, the baseline always among them; and a sentence about the others."""
    last = group[-1].name
    ranking = next(one for one in summary.rankings if one.workload == last)
    ranked = [entry.contender for entry in ranking.entries]
    order = dict.fromkeys([*ranked, *(one.contender for one in summary.contenders)])
    lines = [
        _Line(contender, name or labels[contender], metric) for contender in order for metric, name in metrics.items()
    ]
    known = [line for line in lines if _cells(summary, line, group)]
    kept = known[:MOST_SERIES]
    ours = [line for line in known if line.contender == summary.baseline]
    if ours and ours[0] not in kept:
        kept[-1] = ours[0]
    if len(kept) == len(known):
        return kept, ""
    return kept, f"Shown are {len(kept)} of {len(known)} contenders, the best at {last} and the baseline."


def _cells(summary: StudySummary, line: _Line, group: Sequence[Workload]) -> list[CellSummary]:
    wanted = [Cell(contender=line.contender, workload=workload.name) for workload in group]
    found = {cell.cell: cell for cell in summary.cells if line.metric in cell.metrics}
    return [found[cell] for cell in wanted if cell in found]


def _y_scale(summary: StudySummary, lines: Sequence[_Line], group: Sequence[Workload]) -> Scale:
    means = [cell.metrics[line.metric].mean for line in lines for cell in _cells(summary, line, group)]
    return scale_of(summary.definitions[lines[0].metric], means)


def _point(summary: StudySummary, line: _Line, cell: CellSummary, scale: Scale) -> Row:
    estimate = cell.metrics[line.metric]
    low, high = ends(estimate, scale)
    return {
        "series": line.label,
        "workload": cell.cell.workload,
        "y": estimate.mean / scale.factor,
        "y_low": low,
        "y_high": high,
        "shown": estimate_text(estimate, summary.definitions[line.metric]),
        "counts": f"{estimate.n_instances} / {estimate.n_trials}",
    }


def _axis(title: str, rows: Sequence[Row], field: str) -> Axis:
    return axis_for(title, numbers(rows, field), numbers(rows, f"{field}_low", f"{field}_high"), zero=True)


def _curves(figure: Figure, *, x: Axis, y: Axis, at: str, names: Sequence[str], marked: bool) -> Figure:
    """A line per name, with error bars; names stand beside them. `marked`: the points of the first say their load."""
    one = len(names) == 1

    def spec(*, direct: bool) -> dict[str, Json]:
        layers = _layers(x, y, at, names, direct=direct, marked=marked)
        return specification(layers, height=HEIGHT, title=figure.title)

    wide = spec(direct=not one)
    narrow = None if one else spec(direct=False)
    return Figure(figure.name, figure.title, figure.caption, wide, _with_ends(figure.rows, y), narrow)


def _layers(x: Axis, y: Axis, at: str, names: Sequence[str], *, direct: bool, marked: bool) -> list[alt.Chart]:
    base = alt.Chart(alt.NamedData(name=ROWS))
    legend = (
        None if direct or len(names) == 1 else alt.Legend(title=None, orient="top", direction="vertical", columns=1)
    )
    colour = alt.Color("series:N", sort=list(names), legend=legend)
    shape = alt.Shape("series:N", sort=list(names), legend=None)
    about = [
        alt.Tooltip("series:N", title="Contender"),
        alt.Tooltip("workload:N", title="Workload"),
        alt.Tooltip("at:N", title=at.capitalize()),
        alt.Tooltip("shown:N", title="Mean [interval]"),
        alt.Tooltip("counts:N", title="Instances / trials"),
    ]
    y_known, x_known = (base.transform_filter(f"isValid(datum.{axis}_low)") for axis in "yx")
    point = base.mark_point(filled=True, size=60, opacity=1)
    layers = [
        base.mark_line(strokeWidth=1.5).encode(x=x.x(), y=y.y(), color=colour, order="order:Q"),
        y_known.mark_rule(clip=True, opacity=0.45).encode(x=x.x(), y=y.y("y_low"), y2="y_high:Q", color=colour),
        x_known.mark_rule(clip=True, opacity=0.45).encode(x=x.x("x_low"), x2="x_high:Q", y=y.y(), color=colour),
        point.encode(x=x.x(), y=y.y(), color=colour, shape=shape, tooltip=about),
    ]
    if marked:
        first = base.transform_filter(alt.datum.series == names[0])
        layers.append(first.mark_text(style="dim", dy=-12).encode(x=x.x(), y=y.y(), text="at:N"))
    if direct:
        ends_of_lines = base.transform_filter("datum.is_end")
        name = ends_of_lines.mark_text(align="left", dx=10, fontSize=12, limit=LABEL_ROOM)
        layers.append(name.encode(x=alt.value("width"), y=y.y("label_y"), text="series:N", color=colour))
    return layers


def _with_ends(rows: Sequence[Row], axis: Axis) -> list[Row]:
    """The last point of each line carries its name, as high as it lies and where no other name is."""
    last = {row["series"]: number for number, row in enumerate(rows)}
    places = list(last.values())
    label_y = axis.apart(numbers((rows[place] for place in places), "y"))
    of_row = dict(zip(places, label_y, strict=True))
    return [{**row, "is_end": number in of_row, "label_y": of_row.get(number)} for number, row in enumerate(rows)]
