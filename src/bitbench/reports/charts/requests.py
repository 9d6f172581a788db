"""One workload, one row per config: how the times of single requests are spread."""

from collections.abc import Sequence
from typing import Any

from bitbench.analysis.results.estimate import carries
from bitbench.analysis.results.summary import Ranking, RequestSpread, StudySummary
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.absent import absent_from
from bitbench.reports.charts.layer import channel, value
from bitbench.reports.charts.trials import MARKS_DOWN, NAME_UP, STEP
from bitbench.reports.document.model import Quantity, Unit
from bitbench.reports.document.numbers import scale_for, shown
from bitbench.reports.document.text import MAX_NAME, plain
from bitbench.reports.labels import Labels

FIELDS = ("p5", "p50", "p95", "p99", "highest")


def request_figures(summary: StudySummary, ranking: Ranking, labels: Labels) -> list[fig.Figure]:
    """One per time that is known of the requests of this workload, where there are many."""
    own = [spread for point in summary.points_of(ranking.workload) for spread in point.spreads]
    metrics = dict.fromkeys(spread.metric for spread in own)
    return [
        _figure(summary, ranking, [spread for spread in own if spread.metric == key], key, labels) for key in metrics
    ]


def _figure(
    summary: StudySummary, ranking: Ranking, spreads: Sequence[RequestSpread], metric: str, labels: Labels
) -> fig.Figure:
    definition = summary.definitions[metric]
    scale = scale_for(Unit.SECONDS, [spread.p50 for spread in spreads])
    rows: list[fig.Row] = [
        {
            "config": labels[spread.point.config],
            **{field: getattr(spread, field) / scale.factor for field in FIELDS},
            "shown": f"{_time(spread.p50)}, {_tail(spread)}",
            "requests": spread.requests,
            "slowest": f"{plain(spread.highest_trial, MAX_NAME)}, request {spread.highest_request}",
        }
        for spread in spreads
    ]
    axis = fig.axis_for(fig.axis_title(definition, scale), fig.numbers(rows, *FIELDS))
    order = {entry.config: place for place, entry in enumerate(ranking.entries)}
    ordered = sorted(spreads, key=lambda spread: order.get(spread.point.config, len(order)))
    y = channel("config:N", sort=[labels[spread.point.config] for spread in ordered], axis=None)
    base = fig.EVERY_ROW
    about = [
        channel("config:N", title="Config"),
        *(channel(f"{field}:Q", title=f"{field} ({scale.unit})", format=",.4~r") for field in FIELDS),
        channel("requests:Q", title="Requests", format=","),
        channel("slowest:N", title="Slowest"),
    ]
    line: dict[str, Any] = {"yOffset": MARKS_DOWN, "y2Offset": MARKS_DOWN}
    layers = [
        base.mark("rule", style="error", **line).encode(x=axis.x("p5"), x2="highest", y=y),
        base.mark("rule", style="spread", **line).encode(x=axis.x("p5"), x2="p95", y=y, tooltip=about),
        base.mark("tick", style="tail", thickness=2, yOffset=MARKS_DOWN, size=15).encode(
            x=axis.x("p99"), y=y, tooltip=about
        ),
        base.mark("point", style="mean", filled=True, yOffset=MARKS_DOWN).encode(x=axis.x("p50"), y=y, tooltip=about),
        base.mark("text", style="name", dy=NAME_UP).encode(y=y, text="config:N", x=value(0)),
        base.mark("text", style="value", dy=NAME_UP).encode(y=y, text="shown:N", x=value("width")),
    ]
    caption = (
        "Dot: median; broad bar: 5th to 95th percentile; red tick: 99th percentile; thin line: up to the slowest.",
        "Over every request of the trials that count.",
        absent_from(
            summary, {ranking.workload}, [spread.point.config for spread in spreads], labels, lacks="few requests"
        ),
        labels.shared,
    )
    title = f"{ranking.workload}: {definition.name} of single requests"
    return fig.drawn(f"requests-{metric}-{ranking.workload}", title, caption, layers, rows, height={"step": STEP})


def _tail(spread: RequestSpread) -> str:
    return f"p99 {_time(spread.p99)}" if carries(spread.requests, 99) else f"slowest {_time(spread.highest)}"


def _time(seconds: float) -> str:
    return shown(Quantity(seconds, Unit.SECONDS))
