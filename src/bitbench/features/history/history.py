"""One metric of one point, study after study: how it moved, whether that is more than noise, what else changed; as a
figure and as a page."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from bitbench.analysis.absolute import metric_estimates
from bitbench.analysis.changes import Pair, changes_between, metric_of_change
from bitbench.analysis.results.comparison import ChangeVerdict, Difference
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.facts import Fact
from bitbench.analysis.results.summary import MetricDefinition
from bitbench.analysis.study_comparison import SHAPE, compared_points, study_cache_differences, study_differences
from bitbench.analysis.summarize import sample_values_by_start, samples_by_point
from bitbench.analysis.trial import DEFINITIONS
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.figure import figure_channel, figure_constant
from bitbench.reports.document.model import Chart, Document, Figure, Name, Phrase, Section, Table
from bitbench.reports.document.numbers import (
    Scale,
    estimated,
    number,
    percent,
    quantity_scale,
    quantity_unit,
    shown,
    times,
)
from bitbench.reports.document.words import (
    MAX_NAME,
    Words,
    bullets,
    counted,
    listing,
    name_phrases,
    number_column,
    paragraph,
    plain_words,
    ratio_column,
    say,
    table,
    words_column,
)
from bitbench.reports.labels import distinct_labels
from bitbench.study.base import Record
from bitbench.study.plan import Point
from bitbench.util.errors import StoreError
from bitbench.util.units import UNKNOWN


class HistoryPoint(Record):
    """One study. `ratio`, `verdict` and `changes` are against the point before; the first has none."""

    folder: str
    started_at: str | None
    estimate: Estimate
    ratio: Estimate | None = None
    decisive: Estimate | None = None  # the same with an interval that agrees with the verdict
    verdict: ChangeVerdict | None = None
    changes: tuple[Difference, ...] = ()


class History(Record):
    point: Point
    metric: str
    definition: MetricDefinition
    confidence: float
    points: tuple[HistoryPoint, ...]  # oldest first
    without_result: tuple[str, ...] = ()  # folders that asked for this point and have no such figure
    other_shape: tuple[str, ...] = ()  # folders whose workload of this name is another one


LISTED_POINTS = 12  # in a message


def history_below(folder: Path, point: str, metric: str | None = None) -> History:
    """Follow a figure of a point over all studies below a folder. `point` is "variant @ engine / workload" or a unique
    part of it; the default metric is the newest primary metric."""
    studies = _studies(folder)
    if not studies:
        raise StoreError(f"no study folder below {folder}; give one that contains folders filled by `bitbench run`")
    return history(
        find_point_for_history(point, studies), metric_of_change(metric or studies[-1].study.measure.metric), studies
    )


def _studies(folder: Path) -> list[StudyRecords]:
    """Oldest first. A folder whose run was stopped before it began is not one of them."""
    found = [StudyFolder(lock.parent) for lock in sorted(folder.rglob("lock.json"))]
    studies = [study.read(str(study.path.relative_to(folder))) for study in found if study.study_file.is_file()]
    return sorted(studies, key=lambda study: (study.lock.created_at or "", study.name))


def find_point_for_history(name: str, sides: Sequence[StudyRecords]) -> Point:
    """`variant @ engine / workload`, or the same with a dot as reports write it; a name that is unique may be cut."""
    points = list(dict.fromkeys(point for side in sides for point in side.plan.points))
    wanted = " ".join(name.split())
    spelled = {point: (f"{point.config.name} / {point.workload}", point.name) for point in points}
    exact = [point for point, names in spelled.items() if wanted in names]
    partly = [point for point, names in spelled.items() if any(wanted in spelling for spelling in names)]
    found = exact or partly
    if len(found) == 1:
        return found[0]
    known = [names[0] for point, names in spelled.items() if not found or point in found]
    more = f" and {len(known) - LISTED_POINTS} more" if len(known) > LISTED_POINTS else ""
    what = "matches several points" if found else "is not a point of these studies"
    raise StoreError(f"{name!r} {what}; known: {'; '.join(known[:LISTED_POINTS])}{more}")


def history(point: Point, metric: str, sides: Sequence[StudyRecords]) -> History:
    """`sides` with the oldest first. Only studies whose workload has the shape of the newest one are in it."""
    if metric not in DEFINITIONS:
        raise StoreError(f"{metric} has no history: it is not a figure of a trial")
    asked = [side for side in sides if point in side.plan.points]
    newest = asked[-1].plan.study.workload(point.workload)
    same = [side for side in asked if _has_shape(side, point, newest)]
    confidence = asked[-1].plan.study.measure.confidence
    known = [side for side in same if sample_values_by_start(side, metric)[point]]
    entries = [_entry(point, metric, side, confidence) for side in known]
    moves = [_move(point, metric, before, after, confidence) for before, after in pairwise(known)]
    return History(
        point=point,
        metric=metric,
        definition=DEFINITIONS[metric],
        confidence=confidence,
        points=(*entries[:1], *(entry.model_copy(update=move) for entry, move in zip(entries[1:], moves, strict=True))),
        without_result=tuple(side.name for side in same if side not in known),
        other_shape=tuple(side.name for side in asked if side not in same),
    )


def _has_shape(side: StudyRecords, point: Point, shape: object) -> bool:
    own = side.plan.study.workload(point.workload)
    return all(getattr(own, part) == getattr(shape, part) for part in SHAPE)


def _entry(point: Point, metric: str, side: StudyRecords, confidence: float) -> HistoryPoint:
    estimates = metric_estimates(samples_by_point(side), metric, confidence)
    return HistoryPoint(folder=side.name, started_at=side.lock.created_at, estimate=estimates[point])


def _move(
    point: Point, metric: str, before: StudyRecords, after: StudyRecords, confidence: float
) -> dict[str, Estimate | ChangeVerdict | tuple[Difference, ...] | None]:
    """What `compare` would say of this point in these two studies, and what else changed between them."""
    common = [other for other in before.plan.points if other in set(after.plan.points)]
    alike = [
        Pair(other, other) for other in common if _has_shape(before, other, after.plan.study.workload(other.workload))
    ]
    cached = study_cache_differences((before, after), alike)
    compared = compared_points(alike, changes_between(before, after), metric, confidence, undecided=cached)
    own = next(row for row in compared if row.candidate == point)
    changes, _ = study_differences(before, after, [(point.config, point.config)])
    return {"ratio": own.ratio, "decisive": own.decisive, "verdict": own.verdict, "changes": tuple(changes)}


HEIGHT = 300
LENGTH_OF_DATE = len("2026-11-03")


def _history_time(point: HistoryPoint) -> str:
    """`2026-11-03 03:00`"""
    try:
        return f"{datetime.fromisoformat(point.started_at):%Y-%m-%d %H:%M}" if point.started_at else UNKNOWN
    except ValueError:
        return UNKNOWN


def history_figure(found: History) -> Figure:
    """Draw it; there must be a point."""
    definition = found.definition
    scale = quantity_scale(quantity_unit(definition), [point.estimate.value for point in found.points])
    places = distinct_labels([_history_time(point) for point in found.points])
    rows = [_row(found, point, place, scale) for point, place in zip(found.points, places, strict=True)]
    ends = fig.figure_field_values(rows, "y_low", "y_high")
    axis = fig.axis_for(fig.axis_title(definition, scale), fig.figure_field_values(rows, "y"), ends, zero=True)
    labels = {
        "labelExpr": f"slice(datum.label, 0, {LENGTH_OF_DATE})",
        "labelAngle": 0,
        "labelOverlap": True,
        "labelFlush": False,
    }
    x = figure_channel("at:O", title=None, sort=places, axis=labels)
    y = axis.y()
    base, changed = fig.EVERY_ROW, fig.figure_layer_where("isValid(datum.changed)")
    about = fig.tooltips(
        study="Study",
        at="Begun (UTC)",
        shown=definition.label,
        versus="vs. the one before",
        verdict="Verdict",
        changes="Changed",
    )
    said = fig.halo(changed, "change", align="center", dy=8)
    interval = fig.figure_layer_where("isValid(datum.y_low)").mark("rule", style="interval")
    layers = [
        changed.mark("rule", style="changed").encode(x=x, tooltip=about),
        base.mark("line", style="history").encode(x=x, y=y),
        interval.encode(x=x, y=axis.y("y_low"), y2="y_high"),
        base.mark("point", style="mean", filled=True).encode(x=x, y=y, tooltip=about),
        *(text.encode(x=x, y=figure_constant(0), text="changed:N") for text in said),
    ]
    title = f"{plain_words(found.point.name, MAX_NAME)}: {definition.name}"
    caption = "Dots and lines: means and intervals, oldest left; dashed: a fact changed since the study before."
    return fig.layered_figure("history", title, [caption], layers, rows, height=HEIGHT)


def _row(found: History, point: HistoryPoint, place: str, scale: Scale) -> fig.Row:
    figure, ratio = estimated(point.estimate, found.definition), times(point.decisive)
    changes = "; ".join(
        f"{change.fact.value}: {plain_words(change.before, MAX_NAME)} → {plain_words(change.after, MAX_NAME)}"
        for change in point.changes
    )
    return {
        "study": plain_words(point.folder, MAX_NAME),
        "at": place,
        **fig.place_on_axis("y", figure, scale),
        "shown": shown(figure) if figure else UNKNOWN,
        "versus": shown(ratio) if ratio else UNKNOWN,
        "verdict": point.verdict.value if point.verdict else UNKNOWN,
        "changed": counted({change.fact.value for change in point.changes}) or None,
        "changes": changes or UNKNOWN,
    }


BLOCKS = "▁▂▃▄▅▆▇█"
MAX_CHANGES = 3  # in words; the rest is counted
NAMED_SUBJECTS = (Fact.HOST, Fact.ENVIRONMENT)  # those of a config are clear from the point


def history_document(found: History) -> Document:
    title = say(Name(found.point.name), f": {found.definition.name}")
    if not found.points:
        return Document(title, (paragraph("No study has this figure for this point."), *bullets(_absent(found))))
    means = [point.estimate.value for point in found.points]
    first, last, lowest, highest = (
        number(mean, quantity_unit(found.definition)) for mean in (means[0], means[-1], min(means), max(means))
    )
    between = say(" (between ", lowest, " and ", highest, ")") if len(means) > 2 else ()
    changes = bullets(
        say("* ", Name(point.folder), ": ", _changes(point), ".") for point in found.points if point.changes
    )
    return Document(
        title,
        (paragraph(sparkline(means), " ", first, " → ", last, between), Chart(history_figure(found))),
        (
            Section(say("Studies"), (_table(found), *changes)),
            Section(say("What to know"), bullets(_notes(found))),
        ),
    )


def sparkline(values: Sequence[float]) -> str:
    """One block per value between the smallest and the largest; all in the middle where they are equal."""
    low, high = min(values), max(values)
    if high == low:
        return BLOCKS[len(BLOCKS) // 2] * len(values)
    return "".join(BLOCKS[round((value - low) / (high - low) * (len(BLOCKS) - 1))] for value in values)


def _table(found: History) -> Table:
    unit = quantity_unit(found.definition)
    return table(
        found.points,
        words_column("Begun (UTC)", _history_time),
        words_column("Study", lambda point: Name(point.folder)),
        number_column(
            found.definition.label, unit, lambda point: estimated(point.estimate, found.definition), intervals_from=0
        ),
        ratio_column("vs. the one before", lambda point: times(point.decisive)),
        words_column(
            "Verdict",
            lambda point: f"{point.verdict.value if point.verdict else UNKNOWN}{' *' if point.changes else ''}",
        ),
    )


def _changes(point: HistoryPoint) -> Phrase:
    said: list[Words] = []
    for change in point.changes:
        subject = say(" (", Name(change.subject), ")") if change.fact in NAMED_SUBJECTS else ()
        said.append(say(change.fact.value, subject, ": ", Name(change.before), " → ", Name(change.after)))
    return listing(said, most=MAX_CHANGES)


def _notes(found: History) -> Iterator[Words]:
    yield f"Intervals are at {percent(found.confidence)}; a verdict compares with the study in the line above only."
    if any(point.changes for point in found.points):
        yield "*: a fact changed, which may explain the difference; bitbench compare refuses such a pair."
    yield from _absent(found)


def _absent(found: History) -> Iterator[Words]:
    if found.other_shape:
        yield say(
            "Not applicable, as the workload of this name has another shape: ",
            listing(name_phrases(found.other_shape)),
            ".",
        )
    if found.without_result:
        yield say("Without a result: ", listing(name_phrases(found.without_result)), ".")
