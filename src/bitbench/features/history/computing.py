"""One metric of one point, study after study: how it moved, whether that is more than noise, and what else changed."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from bitbench.analysis.changes import Pair, changes_between
from bitbench.analysis.comparability import differences
from bitbench.analysis.gate import parse_metric
from bitbench.analysis.intervals import estimate
from bitbench.analysis.results.comparison import ChangeVerdict, Difference
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.study_comparison import SHAPE, cache_differences, compared_points
from bitbench.analysis.summarize import samples_by_point, values_by_start
from bitbench.analysis.trial import DEFINITIONS
from bitbench.features.history.types import History, HistoryPoint
from bitbench.records.folder import StudyFolder
from bitbench.records.study_records import StudyRecords
from bitbench.study.plan import Point
from bitbench.util.errors import StoreError

LISTED_POINTS = 12  # in a message


def history_below(folder: Path, point: str, metric: str | None = None) -> History:
    """Follow a figure of a point over all studies below a folder. `point` is "variant @ engine / workload" or a unique
    part of it; the default metric is the newest primary metric."""
    studies = _studies(folder)
    if not studies:
        raise StoreError(f"no study folder below {folder}; give one that contains folders filled by `bitbench run`")
    return history(find_point(point, studies), parse_metric(metric or studies[-1].study.measure.metric), studies)


def _studies(folder: Path) -> list[StudyRecords]:
    """Oldest first. A folder whose run was stopped before it began is not one of them."""
    found = [StudyFolder(lock.parent) for lock in sorted(folder.rglob("lock.json"))]
    studies = [study.read(str(study.path.relative_to(folder))) for study in found if study.study_file.is_file()]
    return sorted(studies, key=lambda study: (study.lock.created_at or "", study.name))


def find_point(name: str, sides: Sequence[StudyRecords]) -> Point:
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
    known = [side for side in same if values_by_start(side, metric)[point]]
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
    sample = samples_by_point(side)[point][metric]
    return HistoryPoint(folder=side.name, started_at=side.lock.created_at, estimate=estimate(sample, confidence))


def _move(
    point: Point, metric: str, before: StudyRecords, after: StudyRecords, confidence: float
) -> dict[str, Estimate | ChangeVerdict | tuple[Difference, ...] | None]:
    """What `compare` would say of this point in these two studies, and what else changed between them."""
    common = [other for other in before.plan.points if other in set(after.plan.points)]
    alike = [
        Pair(other, other) for other in common if _has_shape(before, other, after.plan.study.workload(other.workload))
    ]
    cached = cache_differences((before, after), alike)
    compared = compared_points(alike, changes_between(before, after), metric, confidence, undecided=cached)
    own = next(row for row in compared if row.candidate == point)
    changes, _ = differences(before, after, [(point.config, point.config)])
    return {"ratio": own.ratio, "verdict": own.verdict, "changes": tuple(changes)}
