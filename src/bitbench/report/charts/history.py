"""One metric over past studies, evenly spaced, oldest left; a dashed line where a fact changed."""

from datetime import datetime

import altair as alt

from bitbench.core.found.history import History, HistoryPoint
from bitbench.ground.units import UNKNOWN
from bitbench.report.charts.figure import (
    ROWS,
    Figure,
    Row,
    axis_for,
    axis_title,
    ends,
    halo,
    numbers,
    specification,
)
from bitbench.report.document.numbers import Scale, scale_for, written
from bitbench.report.document.text import MAX_NAME, plain
from bitbench.report.document.words import counted
from bitbench.report.labels import distinct
from bitbench.report.quantities import estimated, times, unit_of

HEIGHT = 300
LENGTH_OF_DATE = len("2026-11-03")


def when(point: HistoryPoint) -> str:
    """`2026-11-03 03:00`"""
    try:
        return f"{datetime.fromisoformat(point.started_at):%Y-%m-%d %H:%M}" if point.started_at else UNKNOWN
    except ValueError:
        return UNKNOWN


def history_figure(found: History) -> Figure:
    """Needs a point."""
    definition = found.definition
    scale = scale_for(unit_of(definition), [point.estimate.mean for point in found.points])
    places = distinct([when(point) for point in found.points])
    rows = [_row(found, point, place, scale) for point, place in zip(found.points, places, strict=True)]
    axis = axis_for(axis_title(definition, scale), numbers(rows, "y"), numbers(rows, "low", "high"), zero=True)
    labels = alt.Axis(
        labelExpr=f"slice(datum.label, 0, {LENGTH_OF_DATE})", labelAngle=0, labelOverlap=True, labelFlush=False
    )
    x = alt.X("at:O", title=None, sort=places, axis=labels)
    y = axis.y()
    base = alt.Chart(alt.NamedData(name=ROWS))
    changed = base.transform_filter("isValid(datum.changed)")
    tooltip = [
        alt.Tooltip("study:N", title="Study"),
        alt.Tooltip("at:N", title="Begun (UTC)"),
        alt.Tooltip("shown:N", title=definition.label),
        alt.Tooltip("versus:N", title="vs. the one before"),
        alt.Tooltip("verdict:N", title="Verdict"),
        alt.Tooltip("changes:N", title="Changed"),
    ]
    layers = [
        changed.mark_rule(style="changed").encode(x=x, tooltip=tooltip),
        base.mark_line(style="history").encode(x=x, y=y),
        base.transform_filter("isValid(datum.low)")
        .mark_rule(style="interval")
        .encode(x=x, y=axis.y("low"), y2="high:Q"),
        base.mark_point(style="mean", filled=True).encode(x=x, y=y, tooltip=tooltip),
        *(text.encode(x=x, y=alt.value(0), text="changed:N") for text in halo(changed, "change", align="center", dy=8)),
    ]
    title = f"{plain(found.cell.name, MAX_NAME)}: {definition.name}"
    caption = "Dots and lines: means and intervals, oldest left; dashed: a fact changed since the study before."
    return Figure("history", title, caption, specification(layers, height=HEIGHT, title=title), rows)


def _row(found: History, point: HistoryPoint, place: str, scale: Scale) -> Row:
    low, high = ends(point.estimate, scale)
    figure, ratio = estimated(point.estimate, found.definition), times(point.ratio)
    changes = "; ".join(
        f"{one.fact.value}: {plain(one.before, MAX_NAME)} → {plain(one.after, MAX_NAME)}" for one in point.changes
    )
    return {
        "study": plain(point.folder, MAX_NAME),
        "at": place,
        "y": point.estimate.mean / scale.factor,
        "low": low,
        "high": high,
        "shown": written(figure).text if figure else UNKNOWN,
        "versus": written(ratio).text if ratio else UNKNOWN,
        "verdict": point.verdict.value if point.verdict else UNKNOWN,
        "changed": counted({one.fact.value for one in point.changes}) or None,
        "changes": changes or UNKNOWN,
    }
