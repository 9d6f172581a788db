"""Lines over workloads that differ in one thing: latency against throughput under rising load, and input length."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import altair as alt

from bitbench.core.asked.prompts import show_length
from bitbench.core.asked.workload import Workload
from bitbench.core.cell import Cell, Contender
from bitbench.core.found.summary import CellSummary, StudySummary
from bitbench.ground.units import UNKNOWN
from bitbench.report.charts import figure as fig
from bitbench.report.charts.series import by_input_length, by_load, input_length
from bitbench.report.charts.style import MOST_SERIES
from bitbench.report.document.numbers import Scale, scale_for, shown
from bitbench.report.labels import Labels
from bitbench.report.quantities import estimated, setting, unit_of
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


def load_figures(summary: StudySummary, labels: Labels) -> list[fig.Figure]:
    """Latency over throughput, a point per load; of one contender the time to first token, as a sweep asks for it."""
    found = (_load_figure(summary, group, labels) for group in by_load(summary.study.workloads))
    return [figure for figure in found if figure is not None]


def length_figures(summary: StudySummary, labels: Labels) -> list[fig.Figure]:
    """The headline metric over the length of the prompt, and the time to first token."""
    found = [
        _length_figure(summary, group, metric, labels)
        for group in by_input_length(summary.study.workloads)
        for metric in dict.fromkeys((summary.headline, "ttft_s"))
    ]
    return [figure for figure in found if figure is not None]


def _load_figure(summary: StudySummary, group: Sequence[Workload], labels: Labels) -> fig.Figure | None:
    alone = len(summary.contenders) == 1
    metrics = TTFT_LINES if alone else {"latency_s": ""}
    lines, left_out = _lines(summary, group, metrics, labels)
    points = [point for point in _points(summary, lines, group) if THROUGHPUT in point[1].metrics]
    if not points:
        return None
    throughput, latency = summary.definitions[THROUGHPUT], summary.definitions[next(iter(metrics))]
    if alone:  # its lines are percentiles of one time
        latency = latency.model_copy(update={"name": "time to first token"})
    x_scale = scale_for(unit_of(throughput), [cell.metrics[THROUGHPUT].mean for _, cell in points])
    y_scale = _y_scale(summary, lines, group)
    rows: list[fig.Row] = []
    for line, cell in points:
        load = level(summary.study.workload(cell.cell.workload))
        x_values = fig.place("x", estimated(cell.metrics[THROUGHPUT], throughput), x_scale)
        rows.append({**_point(summary, line, cell, y_scale), **x_values, "order": load, "at": shown(setting(load))})
    unit = "requests/s" if group[0].open_loop else "requests in flight"
    shape = f"{show_length(group[0].input_tokens)} tokens in, {show_length(group[0].output_tokens)} out"
    said = f"A point per load ({unit}, as written at the first line), with its intervals, cut off at the edge."
    return _curves(
        f"load-{group[0].name}",
        f"{latency.name.capitalize()} against throughput, {shape}",
        (said, "Best is the lower right.", left_out, labels.shared),
        rows,
        x=_axis(fig.axis_title(throughput, x_scale), rows, "x"),
        y=_axis(fig.axis_title(latency, y_scale), rows, "y"),
        at=unit,
        marked=True,
    )


def _length_figure(summary: StudySummary, group: Sequence[Workload], metric: str, labels: Labels) -> fig.Figure | None:
    lines, left_out = _lines(summary, group, {metric: ""}, labels)
    if not lines:
        return None
    scale = _y_scale(summary, lines, group)
    rows: list[fig.Row] = []
    for line, cell in _points(summary, lines, group):
        length = input_length(summary.study.workload(cell.cell.workload))
        rows.append({**_point(summary, line, cell, scale), "x": length, "order": length, "at": f"{length:,.0f}"})
    lengths = sorted(set(fig.numbers(rows, "x")))
    if len(lengths) < 2:  # nothing to see along a length
        return None
    definition = summary.definitions[metric]
    same = f"Concurrency {group[0].concurrency}, {show_length(group[0].output_tokens)} tokens out."
    return _curves(
        f"length-{metric}-{group[0].name}",
        f"{definition.name.capitalize()} over input length",
        (same, "Bars are intervals, cut off at the edge.", left_out, labels.shared),
        rows,
        x=fig.axis_for("input tokens", lengths, ticks=lengths if len(lengths) <= FEW_LENGTHS else []),
        y=_axis(fig.axis_title(definition, scale), rows, "y"),
        at="input tokens",
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


def _points(
    summary: StudySummary, lines: Sequence[_Line], group: Sequence[Workload]
) -> list[tuple[_Line, CellSummary]]:
    return [(line, cell) for line in lines for cell in _cells(summary, line, group)]


def _cells(summary: StudySummary, line: _Line, group: Sequence[Workload]) -> list[CellSummary]:
    wanted = [Cell(contender=line.contender, workload=workload.name) for workload in group]
    found = {cell.cell: cell for cell in summary.cells if line.metric in cell.metrics}
    return [found[cell] for cell in wanted if cell in found]


def _y_scale(summary: StudySummary, lines: Sequence[_Line], group: Sequence[Workload]) -> Scale:
    means = [cell.metrics[line.metric].mean for line, cell in _points(summary, lines, group)]
    return scale_for(unit_of(summary.definitions[lines[0].metric]), means)


def _point(summary: StudySummary, line: _Line, cell: CellSummary, scale: Scale) -> fig.Row:
    estimate = cell.metrics[line.metric]
    figure = estimated(estimate, summary.definitions[line.metric])
    return {
        "series": line.label,
        "workload": cell.cell.workload,
        **fig.place("y", figure, scale),
        "shown": shown(figure) if figure else UNKNOWN,
        "counts": f"{estimate.n_instances} / {estimate.n_trials}",
    }


def _axis(title: str, rows: Sequence[fig.Row], field: str) -> fig.Axis:
    ends = fig.numbers(rows, f"{field}_low", f"{field}_high")
    return fig.axis_for(title, fig.numbers(rows, field), ends, zero=True)


def _curves(
    name: str,
    title: str,
    caption: Sequence[str],
    rows: Sequence[fig.Row],
    *,
    x: fig.Axis,
    y: fig.Axis,
    at: str,
    marked: bool,
) -> fig.Figure:
    """A line per series, with error bars; names stand beside them. `marked`: the points of the first say their load."""
    series = list(dict.fromkeys(str(row["series"]) for row in rows))
    one = len(series) == 1

    def figure(*, direct: bool) -> fig.Figure:
        layers = _layers(x, y, at, series, direct=direct, marked=marked)
        return fig.drawn(name, title, caption, layers, _with_ends(rows, y), height=HEIGHT)

    return replace(figure(direct=not one), narrow=None if one else figure(direct=False).spec)


def _layers(x: fig.Axis, y: fig.Axis, at: str, names: Sequence[str], *, direct: bool, marked: bool) -> list[alt.Chart]:
    base = fig.EVERY_ROW
    beside = alt.Legend(title=None, orient="top", direction="vertical", columns=1)
    colour = alt.Color("series:N", sort=list(names), legend=None if direct or len(names) == 1 else beside)
    shape = alt.Shape("series:N", sort=list(names), legend=None)
    about = fig.tooltips(
        series="Contender",
        workload="Workload",
        at=at.capitalize(),
        shown="Mean [interval]",
        counts="Instances / trials",
    )
    point = base.mark_point(filled=True, size=60, opacity=1)
    layers = [
        base.mark_line(strokeWidth=1.5).encode(x=x.x(), y=y.y(), color=colour, order="order:Q"),
        *fig.error_bars(x, y, colour=colour, opacity=0.45),
        point.encode(x=x.x(), y=y.y(), color=colour, shape=shape, tooltip=about),
    ]
    if marked:
        first = base.transform_filter(alt.datum.series == names[0])
        layers.append(first.mark_text(style="dim", dy=-12).encode(x=x.x(), y=y.y(), text="at:N"))
    if direct:
        name = fig.where("datum.is_end").mark_text(align="left", dx=10, fontSize=12, limit=LABEL_ROOM)
        layers.append(name.encode(x=alt.value("width"), y=y.y("label_y"), text="series:N", color=colour))
    return layers


def _with_ends(rows: Sequence[fig.Row], axis: fig.Axis) -> list[fig.Row]:
    """The last point of each line carries its name, as high as it lies and where no other name is."""
    places = {row["series"]: number for number, row in enumerate(rows)}.values()
    of_row = dict(zip(places, axis.apart(fig.numbers((rows[place] for place in places), "y")), strict=True))
    return [{**row, "is_end": number in of_row, "label_y": of_row.get(number)} for number, row in enumerate(rows)]
