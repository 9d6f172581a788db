"""One metric over past studies, evenly spaced, oldest left; a dashed line where a fact changed."""

from datetime import datetime

from bitbench.features.history.types import History, HistoryPoint
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.layer import channel, value
from bitbench.reports.document.numbers import Scale, scale_for, shown
from bitbench.reports.document.text import MAX_NAME, plain
from bitbench.reports.document.words import counted
from bitbench.reports.labels import distinct
from bitbench.reports.quantities import estimated, times, unit_of
from bitbench.util.units import UNKNOWN

HEIGHT = 300
LENGTH_OF_DATE = len("2026-11-03")


def when(point: HistoryPoint) -> str:
    """`2026-11-03 03:00`"""
    try:
        return f"{datetime.fromisoformat(point.started_at):%Y-%m-%d %H:%M}" if point.started_at else UNKNOWN
    except ValueError:
        return UNKNOWN


def history_figure(found: History) -> fig.Figure:
    """Draw it; there must be a point."""
    definition = found.definition
    scale = scale_for(unit_of(definition), [point.estimate.value for point in found.points])
    places = distinct([when(point) for point in found.points])
    rows = [_row(found, point, place, scale) for point, place in zip(found.points, places, strict=True)]
    ends = fig.numbers(rows, "y_low", "y_high")
    axis = fig.axis_for(fig.axis_title(definition, scale), fig.numbers(rows, "y"), ends, zero=True)
    labels = {
        "labelExpr": f"slice(datum.label, 0, {LENGTH_OF_DATE})",
        "labelAngle": 0,
        "labelOverlap": True,
        "labelFlush": False,
    }
    x = channel("at:O", title=None, sort=places, axis=labels)
    y = axis.y()
    base, changed = fig.EVERY_ROW, fig.where("isValid(datum.changed)")
    about = fig.tooltips(
        study="Study",
        at="Begun (UTC)",
        shown=definition.label,
        versus="vs. the one before",
        verdict="Verdict",
        changes="Changed",
    )
    said = fig.halo(changed, "change", align="center", dy=8)
    interval = fig.where("isValid(datum.y_low)").mark("rule", style="interval")
    layers = [
        changed.mark("rule", style="changed").encode(x=x, tooltip=about),
        base.mark("line", style="history").encode(x=x, y=y),
        interval.encode(x=x, y=axis.y("y_low"), y2="y_high"),
        base.mark("point", style="mean", filled=True).encode(x=x, y=y, tooltip=about),
        *(text.encode(x=x, y=value(0), text="changed:N") for text in said),
    ]
    title = f"{plain(found.point.name, MAX_NAME)}: {definition.name}"
    caption = "Dots and lines: means and intervals, oldest left; dashed: a fact changed since the study before."
    return fig.drawn("history", title, [caption], layers, rows, height=HEIGHT)


def _row(found: History, point: HistoryPoint, place: str, scale: Scale) -> fig.Row:
    figure, ratio = estimated(point.estimate, found.definition), times(point.ratio)
    changes = "; ".join(
        f"{change.fact.value}: {plain(change.before, MAX_NAME)} → {plain(change.after, MAX_NAME)}"
        for change in point.changes
    )
    return {
        "study": plain(point.folder, MAX_NAME),
        "at": place,
        **fig.place("y", figure, scale),
        "shown": shown(figure) if figure else UNKNOWN,
        "versus": shown(ratio) if ratio else UNKNOWN,
        "verdict": point.verdict.value if point.verdict else UNKNOWN,
        "changed": counted({change.fact.value for change in point.changes}) or None,
        "changes": changes or UNKNOWN,
    }
