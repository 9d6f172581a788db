"""One metric of one point over past studies, each compared with the study before it."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from bitbench.analysis.absolute import estimate_metric
from bitbench.analysis.changes import Pair, make_changes_between_studies, parse_change_metric
from bitbench.analysis.results.comparison import ComparedPoint, Difference
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.facts import Fact
from bitbench.analysis.study_comparison import (
    SHAPE,
    collect_cache_differences,
    collect_study_differences,
    list_compared_points,
)
from bitbench.analysis.summarize import collect_samples, collect_values_by_start
from bitbench.analysis.trial import DEFINITIONS
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.reports.document.model import Document, Name, Phrase, Section, Table
from bitbench.reports.document.numbers import find_unit, format_percent, make_ratio, to_quantity
from bitbench.reports.document.words import (
    Shown,
    Words,
    build_table,
    bullets,
    format_list,
    list_names,
    make_number_column,
    make_ratio_column,
    make_words_column,
    paragraph,
    say,
)
from bitbench.study.base import Record
from bitbench.study.plan import Point
from bitbench.util.errors import StoreError
from bitbench.util.units import UNKNOWN

LISTED_POINTS = 12  # in an error message
MAX_CHANGES = 3  # listed changes, the rest is counted
NAMED_SUBJECTS = (Fact.HOST, Fact.ENVIRONMENT)  # a config's subject is clear from the point
TO_THE_MINUTE = len("2026-11-03T03:00")


class HistoryPoint(Record):
    """The value in one study. `move` and `changes` are relative to the study before it, and empty
    for the first."""

    folder: str
    started_at: str | None
    estimate: Estimate
    move: ComparedPoint | None = None
    changes: tuple[Difference, ...] = ()


class History(Record):
    """The values of one metric of one point over past studies."""

    point: Point
    metric: str
    confidence: float
    points: tuple[HistoryPoint, ...]  # oldest first
    without_result: tuple[str, ...] = ()  # folders with this point, but without this metric
    other_shape: tuple[str, ...] = ()  # folders whose workload of this name has another shape


def collect_history(folder: Path, point: str, metric: str | None = None) -> History:
    """Return a metric of a point over all studies below a folder. `point` is "variant @ engine /
    workload" or a unique part of it. The default metric is the newest study's primary metric."""
    records: list[StudyRecords] = []
    for lock in sorted(folder.rglob("lock.json")):
        study = StudyFolder(lock.parent)
        if study.study_file.is_file():
            records.append(study.read(str(study.path.relative_to(folder))))
    if not records:
        raise StoreError(
            f"no study folder below {folder}; "
            "give one that contains folders filled by `bitbench run`"
        )
    records.sort(key=lambda study: (study.lock.created_at or "", study.name))
    metric = parse_change_metric(metric or records[-1].study.measure.metric)
    return history(find_point_for_history(point, records), metric, records)


def find_point_for_history(name: str, studies: Sequence[StudyRecords]) -> Point:
    """Return the point with this name, spelled "variant @ engine / workload" or with a dot, as in
    reports. A unique part of the name is enough. Raise StoreError otherwise."""
    text = " ".join(name.split())
    spellings: dict[Point, tuple[str, str]] = {}
    for records in studies:
        for point in records.plan.points:
            spellings[point] = (f"{point.config.name} / {point.workload}", point.name)
    matches = [point for point, names in spellings.items() if text in names]
    if not matches:
        matches = [
            point for point, names in spellings.items() if text in names[0] or text in names[1]
        ]
    if len(matches) == 1:
        return matches[0]
    names = [spellings[point][0] for point in matches or spellings]
    more = ""
    if len(names) > LISTED_POINTS:
        more = f" and {len(names) - LISTED_POINTS} more"
    problem = "matches several points" if matches else "is not a point of these studies"
    raise StoreError(f"{name!r} {problem}; known: {'; '.join(names[:LISTED_POINTS])}{more}")


def history(point: Point, metric: str, studies: Sequence[StudyRecords]) -> History:
    """Return a metric of a point over these studies, oldest first. Only studies whose workload has
    the same shape as in the newest one are compared."""
    if metric not in DEFINITIONS:
        raise StoreError(f"{metric} has no history: it is not a figure of a trial")
    with_point = [records for records in studies if point in records.plan.points]
    newest = with_point[-1]
    confidence = newest.study.measure.confidence
    measured: list[StudyRecords] = []
    without_result: list[str] = []
    other_shape: list[str] = []
    for records in with_point:
        if not _is_alike(point, records, newest):
            other_shape.append(records.name)
        elif collect_values_by_start(records, metric)[point]:
            measured.append(records)
        else:
            without_result.append(records.name)
    points = [_make_entry(point, metric, records, confidence) for records in measured[:1]]
    for before, after in pairwise(measured):
        points.append(_make_later_entry(point, metric, before, after, confidence))
    return History(
        point=point,
        metric=metric,
        confidence=confidence,
        points=tuple(points),
        without_result=tuple(without_result),
        other_shape=tuple(other_shape),
    )


def _is_alike(point: Point, records: StudyRecords, other: StudyRecords) -> bool:
    """Return True if the point's workload has the same shape in both studies."""
    workload = records.study.workload(point.workload)
    other_workload = other.study.workload(point.workload)
    return all(getattr(workload, part) == getattr(other_workload, part) for part in SHAPE)


def _make_entry(
    point: Point, metric: str, records: StudyRecords, confidence: float
) -> HistoryPoint:
    estimates = estimate_metric(collect_samples(records), metric, confidence)
    return HistoryPoint(
        folder=records.name, started_at=records.lock.created_at, estimate=estimates[point]
    )


def _make_later_entry(
    point: Point, metric: str, before: StudyRecords, after: StudyRecords, confidence: float
) -> HistoryPoint:
    """Return the entry with the verdict of `compare` on these two studies, and their changes."""
    common = [other for other in before.plan.points if other in set(after.plan.points)]
    pairs = [Pair(other, other) for other in common if _is_alike(other, before, after)]
    cached = collect_cache_differences((before, after), pairs)
    moves = list_compared_points(
        pairs, make_changes_between_studies(before, after), metric, confidence, undecided=cached
    )
    changes, _ = collect_study_differences(before, after, [(point.config, point.config)])
    move = next(move for move in moves if move.candidate == point)
    return _make_entry(point, metric, after, confidence).model_copy(
        update={"move": move, "changes": tuple(changes)}
    )


def build_history_document(history: History) -> Document:
    """Return the page that answers `bitbench history`."""
    title = say(Name(history.point.name), f": {DEFINITIONS[history.metric].name}")
    if not history.points:
        empty = paragraph("No study has this figure for this point.")
        return Document(title, (empty, *bullets(_iter_absent(history))))
    changes: list[Phrase] = []
    for point in history.points:
        if point.changes:
            changes.append(say("* ", Name(point.folder), ": ", _format_changes(point), "."))
    notes = bullets((*_iter_notes(history), *_iter_absent(history)))
    return Document(
        title,
        (_build_table(history), *bullets(changes)),
        (Section(say("What to know"), notes),),
    )


def _build_table(history: History) -> Table:
    definition = DEFINITIONS[history.metric]

    def ratio(point: HistoryPoint) -> Shown:
        return make_ratio(point.move.decisive if point.move else None)

    return build_table(
        history.points,
        make_words_column("Begun (UTC)", _format_start),
        make_words_column("Study", lambda point: Name(point.folder)),
        make_number_column(
            definition.label,
            find_unit(definition),
            lambda point: to_quantity(point.estimate, definition),
            intervals_from=0,
        ),
        make_ratio_column("vs. the one before", ratio),
        make_words_column("Verdict", _format_verdict),
    )


def _format_start(point: HistoryPoint) -> str:
    """Return the time of the study, such as `2026-11-03 03:00`."""
    return (point.started_at or UNKNOWN)[:TO_THE_MINUTE].replace("T", " ")


def _format_verdict(point: HistoryPoint) -> str:
    verdict = point.move.verdict.value if point.move else UNKNOWN
    return f"{verdict} *" if point.changes else verdict


def _format_changes(point: HistoryPoint) -> Phrase:
    phrases: list[Phrase] = []
    for change in point.changes:
        subject = say(" (", Name(change.subject), ")") if change.fact in NAMED_SUBJECTS else ()
        phrases.append(
            say(change.fact.value, subject, ": ", Name(change.before), " → ", Name(change.after))
        )
    return format_list(phrases, most=MAX_CHANGES)


def _iter_notes(history: History) -> Iterator[Words]:
    yield (
        f"Intervals are at {format_percent(history.confidence)}; "
        "a verdict compares with the study in the line above only."
    )
    if any(point.changes for point in history.points):
        yield (
            "*: a fact changed, which may explain the difference; "
            "bitbench compare refuses such a pair."
        )


def _iter_absent(history: History) -> Iterator[Words]:
    for reason, folders in (
        ("Not applicable, as the workload of this name has another shape: ", history.other_shape),
        ("Without a result: ", history.without_result),
    ):
        if folders:
            yield say(reason, format_list(list_names(folders)), ".")
