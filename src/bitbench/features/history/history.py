"""One metric of one point, study after study: each with what `compare` says of it and the one before."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from bitbench.analysis.absolute import metric_estimates
from bitbench.analysis.changes import Pair, changes_between, metric_of_change
from bitbench.analysis.results.comparison import ComparedPoint, Difference
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.facts import Fact
from bitbench.analysis.study_comparison import (
    SHAPE,
    compared_points,
    study_cache_differences,
    study_differences,
)
from bitbench.analysis.summarize import sample_values_by_start, samples_by_point
from bitbench.analysis.trial import DEFINITIONS
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.reports.document.model import Document, Name, Phrase, Section, Table
from bitbench.reports.document.numbers import estimated, percent, quantity_unit, times
from bitbench.reports.document.words import (
    Words,
    bullets,
    listing,
    name_phrases,
    number_column,
    paragraph,
    ratio_column,
    say,
    table,
    words_column,
)
from bitbench.study.base import Record
from bitbench.study.plan import Point
from bitbench.util.errors import StoreError
from bitbench.util.units import UNKNOWN

LISTED_POINTS = 12  # in a message
MAX_CHANGES = 3  # in words; the rest is counted
NAMED_SUBJECTS = (Fact.HOST, Fact.ENVIRONMENT)  # those of a config are clear from the point
TO_THE_MINUTE = len("2026-11-03T03:00")


class HistoryPoint(Record):
    """One study. `move` and `changes` are against the one before; the first has none."""

    folder: str
    started_at: str | None
    estimate: Estimate
    move: ComparedPoint | None = None
    changes: tuple[Difference, ...] = ()


class History(Record):
    point: Point
    metric: str
    confidence: float
    points: tuple[HistoryPoint, ...]  # oldest first
    without_result: tuple[
        str, ...
    ] = ()  # folders that asked for this point and have no such figure
    other_shape: tuple[str, ...] = ()  # folders whose workload of this name is another one


def history_below(folder: Path, point: str, metric: str | None = None) -> History:
    """Follow a figure of a point over all studies below a folder. `point` is "variant @ engine / workload" or a unique
    part of it; the default metric is the newest primary metric."""
    found = [StudyFolder(lock.parent) for lock in sorted(folder.rglob("lock.json"))]
    studies = [
        study.read(str(study.path.relative_to(folder)))
        for study in found
        if study.study_file.is_file()
    ]
    studies.sort(key=lambda study: (study.lock.created_at or "", study.name))
    if not studies:
        raise StoreError(
            f"no study folder below {folder}; give one that contains folders filled by `bitbench run`"
        )
    metric = metric_of_change(metric or studies[-1].study.measure.metric)
    return history(find_point_for_history(point, studies), metric, studies)


def find_point_for_history(name: str, sides: Sequence[StudyRecords]) -> Point:
    """`variant @ engine / workload`, or the same with a dot as reports write it; a name that is unique may be cut."""
    wanted = " ".join(name.split())
    spelled: dict[Point, tuple[str, str]] = {}
    for side in sides:
        spelled |= {
            point: (f"{point.config.name} / {point.workload}", point.name)
            for point in side.plan.points
        }
    exact = [point for point, names in spelled.items() if wanted in names]
    found = exact or [
        point for point, names in spelled.items() if wanted in names[0] or wanted in names[1]
    ]
    if len(found) == 1:
        return found[0]
    known = [spelled[point][0] for point in found or spelled]
    more = f" and {len(known) - LISTED_POINTS} more" if len(known) > LISTED_POINTS else ""
    what = "matches several points" if found else "is not a point of these studies"
    raise StoreError(f"{name!r} {what}; known: {'; '.join(known[:LISTED_POINTS])}{more}")


def history(point: Point, metric: str, sides: Sequence[StudyRecords]) -> History:
    """`sides` with the oldest first. Only studies whose workload has the shape of the newest one are in it."""
    if metric not in DEFINITIONS:
        raise StoreError(f"{metric} has no history: it is not a figure of a trial")
    asked = [side for side in sides if point in side.plan.points]
    same = [side for side in asked if _is_alike(point, side, asked[-1])]
    known = [side for side in same if sample_values_by_start(side, metric)[point]]
    confidence = asked[-1].study.measure.confidence
    first = [_entry(point, metric, side, confidence) for side in known[:1]]
    later = [
        _later_entry(point, metric, before, after, confidence) for before, after in pairwise(known)
    ]
    return History(
        point=point,
        metric=metric,
        confidence=confidence,
        points=(*first, *later),
        without_result=tuple(side.name for side in same if side not in known),
        other_shape=tuple(side.name for side in asked if side not in same),
    )


def _is_alike(point: Point, side: StudyRecords, other: StudyRecords) -> bool:
    """Whether the workload has the same shape in both."""
    own = side.study.workload(point.workload)
    its = other.study.workload(point.workload)
    return all(getattr(own, part) == getattr(its, part) for part in SHAPE)


def _entry(point: Point, metric: str, side: StudyRecords, confidence: float) -> HistoryPoint:
    estimates = metric_estimates(samples_by_point(side), metric, confidence)
    return HistoryPoint(
        folder=side.name, started_at=side.lock.created_at, estimate=estimates[point]
    )


def _later_entry(
    point: Point, metric: str, before: StudyRecords, after: StudyRecords, confidence: float
) -> HistoryPoint:
    """With what `compare` would say of this point in these two studies, and what else changed between them."""
    common = [other for other in before.plan.points if other in set(after.plan.points)]
    pairs = [Pair(other, other) for other in common if _is_alike(other, before, after)]
    cached = study_cache_differences((before, after), pairs)
    moves = compared_points(
        pairs, changes_between(before, after), metric, confidence, undecided=cached
    )
    changes, _ = study_differences(before, after, [(point.config, point.config)])
    move = next(move for move in moves if move.candidate == point)
    return _entry(point, metric, after, confidence).model_copy(
        update={"move": move, "changes": tuple(changes)}
    )


def history_document(found: History) -> Document:
    title = say(Name(found.point.name), f": {DEFINITIONS[found.metric].name}")
    if not found.points:
        return Document(
            title, (paragraph("No study has this figure for this point."), *bullets(_absent(found)))
        )
    changes = bullets(
        say("* ", Name(point.folder), ": ", _changes(point), ".")
        for point in found.points
        if point.changes
    )
    return Document(
        title,
        (_table(found), *changes),
        (Section(say("What to know"), bullets((*_notes(found), *_absent(found)))),),
    )


def _table(found: History) -> Table:
    definition = DEFINITIONS[found.metric]
    return table(
        found.points,
        words_column("Begun (UTC)", _begun),
        words_column("Study", lambda point: Name(point.folder)),
        number_column(
            definition.label,
            quantity_unit(definition),
            lambda point: estimated(point.estimate, definition),
            intervals_from=0,
        ),
        ratio_column(
            "vs. the one before", lambda point: times(point.move.decisive if point.move else None)
        ),
        words_column("Verdict", _verdict),
    )


def _begun(point: HistoryPoint) -> str:
    """`2026-11-03 03:00`"""
    return (point.started_at or UNKNOWN)[:TO_THE_MINUTE].replace("T", " ")


def _verdict(point: HistoryPoint) -> str:
    return f"{point.move.verdict.value if point.move else UNKNOWN}{' *' if point.changes else ''}"


def _changes(point: HistoryPoint) -> Phrase:
    said = []
    for change in point.changes:
        subject = say(" (", Name(change.subject), ")") if change.fact in NAMED_SUBJECTS else ()
        said.append(
            say(change.fact.value, subject, ": ", Name(change.before), " → ", Name(change.after))
        )
    return listing(said, most=MAX_CHANGES)


def _notes(found: History) -> Iterator[Words]:
    yield f"Intervals are at {percent(found.confidence)}; a verdict compares with the study in the line above only."
    if any(point.changes for point in found.points):
        yield "*: a fact changed, which may explain the difference; bitbench compare refuses such a pair."


def _absent(found: History) -> Iterator[Words]:
    for why, folders in (
        ("Not applicable, as the workload of this name has another shape: ", found.other_shape),
        ("Without a result: ", found.without_result),
    ):
        if folders:
            yield say(why, listing(name_phrases(folders)), ".")
