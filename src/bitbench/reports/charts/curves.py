"""Lines over workloads that differ in one thing: load, or the length of the prompt."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bitbench.analysis.results.estimate import MEDIAN
from bitbench.analysis.results.summary import PointSummary, RateAnswer, StudySummary
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.absent import absent_from
from bitbench.reports.charts.lines import Guide, lines_figure
from bitbench.reports.charts.style import MOST_SERIES
from bitbench.reports.document.model import Quantity, Unit
from bitbench.reports.document.numbers import Scale, scale_for, shown
from bitbench.reports.grouping import grouped
from bitbench.reports.labels import Labels
from bitbench.reports.quantities import ROUGH, estimated, figure_of, setting, starts_and_trials, unit_of
from bitbench.reports.sections.ranked import definition_of
from bitbench.reports.sections.sweep import level, tail_of
from bitbench.study.metrics import METRICS, OBJECTIVES
from bitbench.study.plan import Config, Point
from bitbench.study.prompts import show_length
from bitbench.study.workload import Workload
from bitbench.util.units import UNKNOWN


def by_load(workloads: Sequence[Workload]) -> list[list[Workload]]:
    """Groups of at least two that differ only in how much is asked at once, by rising load."""
    return _groups(workloads, {"concurrency", "arrival"}, level)


def by_input_length(workloads: Sequence[Workload]) -> list[list[Workload]]:
    """Groups of at least two that differ only in the length of the prompt, by rising length."""
    fixed = [
        workload
        for workload in workloads
        if isinstance(workload.input_tokens, int) and "input_tokens" not in workload.unknown
    ]
    return _groups(fixed, {"input_tokens"}, input_length)


def input_length(workload: Workload) -> float:
    return float(workload.input_tokens) if isinstance(workload.input_tokens, int) else 0.0


def _groups(
    workloads: Sequence[Workload], differing: set[str], place: Callable[[Workload], float]
) -> list[list[Workload]]:
    kept_out = {"name", "requests", "duration", *differing}

    def same(workload: Workload) -> str:
        return f"{workload.model_dump(exclude=kept_out)} {workload.arrival.kind}"

    ordered = [sorted(group, key=place) for group in grouped(workloads, same).values()]
    return [group for group in ordered if len({place(workload) for workload in group}) > 1]


THROUGHPUT = "output_throughput"
FEW_LENGTHS = 8  # ticks: more would not fit beside each other on a phone


@dataclass(frozen=True)
class _Line:
    """One line: whose it is, how it is called, and the metric that it shows."""

    config: Config
    label: str
    metric: str


def load_figures(summary: StudySummary, labels: Labels) -> list[fig.Figure]:
    """Latency over throughput, a point per load. Of one config its times and its throughput over the load, with the
    limits of the study and what a search found."""
    alone = len(summary.configs) == 1
    found: list[fig.Figure | None] = []
    for group in by_load(summary.study.workloads):
        if alone:
            found += [_level_figure(summary, group, *lines, labels) for lines in _over_load(summary).items()]
        else:
            found.append(_load_figure(summary, group, labels))
    return [figure for figure in found if figure is not None]


def length_figures(summary: StudySummary, labels: Labels) -> list[fig.Figure]:
    """The primary metric over the length of the prompt, and the time to first token."""
    found = [
        _length_figure(summary, group, metric, labels)
        for group in by_input_length(summary.study.workloads)
        for metric in dict.fromkeys((summary.primary_metric, "ttft_s"))
    ]
    return [figure for figure in found if figure is not None]


def _load_figure(summary: StudySummary, group: Sequence[Workload], labels: Labels) -> fig.Figure | None:
    lines, left_out = _lines(summary, group, {"latency_s": ""}, labels)
    drawn = [pair for pair in _drawn(summary, lines, group) if THROUGHPUT in pair[1].metrics]
    if not drawn:
        return None
    throughput, latency = summary.definitions[THROUGHPUT], summary.definitions["latency_s"]
    x_scale = scale_for(unit_of(throughput), [point.metrics[THROUGHPUT].value for _, point in drawn])
    y_scale = _y_scale(summary, lines, group)
    rows: list[fig.Row] = []
    for line, point in drawn:
        load = level(summary.study.workload(point.point.workload))
        x_values = fig.place("x", estimated(point.metrics[THROUGHPUT], throughput), x_scale)
        rows.append({**_point(summary, line, point, y_scale), **x_values, "order": load, "at": shown(setting(load))})
    unit = "requests/s" if group[0].open_loop else "requests in flight"
    pair = _pair(summary, lines)
    said = f"A point per load ({unit}, as written at the first line), with its intervals, cut off at the edge."
    return lines_figure(
        f"load-{group[0].name}",
        f"{latency.name.capitalize()} against throughput, {_shape(group)}",
        (said, "Best is the lower right.", _said_of_pair(pair, lines), left_out,
         absent_from(summary, _names(group), _configs(summary, group, lines), labels), labels.shared),
        rows,
        x=_axis(fig.axis_title(throughput, x_scale), rows, "x"),
        y=_axis(fig.axis_title(latency, y_scale), rows, "y"),
        at=unit,
        marked=True,
        pair=pair,
    )  # fmt: skip


def _over_load(summary: StudySummary) -> dict[str, dict[str, str]]:
    """By what is shown over the load: its lines, those of the objectives among them."""
    found = {"ttft": {metric: definition_of(summary, metric).label for metric in ("ttft_p50_s", tail_of(summary))}}
    for objective in summary.study.objectives:
        metric = OBJECTIVES[objective.name]
        sound = all(point.tails[metric.column].is_carried for point in summary.points if metric.column in point.tails)
        label = metric.label if sound else f"{metric.label} or slowest"
        found.setdefault(objective.metric, {})[metric.column] = label
    return found | {"throughput": {THROUGHPUT: "output throughput"}}


def _level_figure(
    summary: StudySummary, group: Sequence[Workload], shows: str, metrics: dict[str, str], labels: Labels
) -> fig.Figure | None:
    """A time, or the throughput, over the load that was asked for."""
    lines, _ = _lines(summary, group, metrics, labels)
    drawn = _drawn(summary, lines, group)
    if not drawn:
        return None
    scale = _y_scale(summary, lines, group)
    rows: list[fig.Row] = []
    for line, point in drawn:
        load = level(summary.study.workload(point.point.workload))
        rows.append({**_point(summary, line, point, scale), "x": load, "order": load, "at": shown(setting(load))})
    limits = _limits(summary, shows, scale)
    guides = [*limits, *_answer(summary.search)]
    words, better = (METRICS[shows].words, "less") if shows in METRICS else ("output throughput", "more")
    over, unit = ("offered rate", "requests/s") if group[0].open_loop else ("concurrency", "requests in flight")
    loads = [
        *fig.numbers(rows, "x"),
        *(end for guide in guides for end in (guide.x_low, guide.x_high) if end is not None),
    ]
    heights = [*fig.numbers(rows, "y"), *(guide.y for guide in limits if guide.y is not None)]
    band = (
        "Band: the interval of the highest rate that meets the limit."
        if summary.search and guides[len(limits) :]
        else ""
    )
    return lines_figure(
        f"load-{shows}-{group[0].name}",
        f"{words.capitalize()} by {over}",
        (_shape(group) + ".", "Red: the limit." if limits else "", band, _of_few_requests(drawn)),
        rows,
        x=fig.axis_for(f"{over} ({unit})", loads, zero=True),
        y=fig.axis_for(
            f"{words} ({scale.unit}), {better} is better", heights, fig.numbers(rows, "y_low", "y_high"), zero=True
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
    return f"{show_length(group[0].input_tokens)} tokens in, {show_length(group[0].output_tokens)} out"


def _names(group: Sequence[Workload]) -> set[str]:
    return {workload.name for workload in group}


def _configs(summary: StudySummary, group: Sequence[Workload], lines: Sequence[_Line]) -> set[Config]:
    """Those that a figure shows, or leaves out where there is no room, which it says otherwise."""
    with_result = {
        point.point.config for point in summary.points if point.point.workload in _names(group) and point.metrics
    }
    return with_result | {line.config for line in lines}


def _pair(summary: StudySummary, lines: Sequence[_Line]) -> list[str]:
    """The baseline and the best, by their names in the figure; where the baseline is the best, the next one."""
    own = [line.label for line in lines if line.config == summary.baseline]
    return [*own, *(line.label for line in lines if line.label not in own)][:2]


def _said_of_pair(pair: Sequence[str], lines: Sequence[_Line]) -> str:
    return f"Thick lines: {' and '.join(pair)}, the baseline and the best." if len(lines) > len(pair) > 1 else ""


def _of_few_requests(drawn: Sequence[tuple[_Line, PointSummary]]) -> str:
    tails = (point.tails[line.metric] for line, point in drawn if line.metric in point.tails)
    if not any(tail.note for tail in tails if tail.percent > MEDIAN):
        return ""
    return "Where too few requests were sent for a p99, the slowest is shown in its place."


def _length_figure(summary: StudySummary, group: Sequence[Workload], metric: str, labels: Labels) -> fig.Figure | None:
    lines, left_out = _lines(summary, group, {metric: ""}, labels)
    if not lines:
        return None
    scale = _y_scale(summary, lines, group)
    rows: list[fig.Row] = []
    for line, point in _drawn(summary, lines, group):
        length = input_length(summary.study.workload(point.point.workload))
        rows.append({**_point(summary, line, point, scale), "x": length, "order": length, "at": f"{length:,.0f}"})
    lengths = sorted(set(fig.numbers(rows, "x")))
    if len(lengths) < 2:  # nothing to see along a length
        return None
    definition, pair = summary.definitions[metric], _pair(summary, lines)
    same = f"Concurrency {group[0].concurrency}, {show_length(group[0].output_tokens)} tokens out."
    return lines_figure(
        f"length-{metric}-{group[0].name}",
        f"{definition.name.capitalize()} over input length",
        (same, "Bars are intervals, cut off at the edge.", _said_of_pair(pair, lines), left_out,
         absent_from(summary, _names(group), _configs(summary, group, lines), labels), labels.shared),
        rows,
        x=fig.axis_for("input tokens", lengths, ticks=lengths if len(lengths) <= FEW_LENGTHS else []),
        y=_axis(fig.axis_title(definition, scale), rows, "y"),
        at="input tokens",
        marked=False,
        pair=pair,
    )  # fmt: skip


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
    definitions = {line.metric: definition_of(summary, line.metric) for line in lines}
    figures = (figure_of(point, line.metric, definitions[line.metric]) for line, point in _drawn(summary, lines, group))
    return scale_for(unit_of(definitions[lines[0].metric]), [figure.value for figure in figures if figure is not None])


def _point(summary: StudySummary, line: _Line, point: PointSummary, scale: Scale) -> fig.Row:
    estimate = point.metrics.get(line.metric) or next(iter(point.metrics.values()))
    figure = figure_of(point, line.metric, definition_of(summary, line.metric))
    return {
        "series": line.label,
        "workload": point.point.workload,
        **fig.place("y", figure, scale),
        "shown": shown(figure) if figure else UNKNOWN,
        "counts": starts_and_trials(estimate),
    }


def _axis(title: str, rows: Sequence[fig.Row], field: str) -> fig.ChartAxis:
    ends = fig.numbers(rows, f"{field}_low", f"{field}_high")
    return fig.axis_for(title, fig.numbers(rows, field), ends, zero=True)
