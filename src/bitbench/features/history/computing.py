"""One metric of one cell, study after study: how it moved, whether that is more than noise, and what else changed."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from bitbench.analysis.changes import Pair, changes_between
from bitbench.analysis.comparability import differences
from bitbench.analysis.gate import parse_metric
from bitbench.analysis.intervals import estimate
from bitbench.analysis.results.comparison import Difference, Verdict
from bitbench.analysis.results.summary import Ratio
from bitbench.analysis.study_comparison import SHAPE, compared_cells
from bitbench.analysis.summarize import samples_by_cell, values_by_start
from bitbench.analysis.trial import DEFINITIONS
from bitbench.features.history.types import History, HistoryPoint
from bitbench.records.folder import StudyFolder
from bitbench.records.study_records import StudyRecords
from bitbench.study.plan import Cell
from bitbench.util.errors import StoreError

LISTED_CELLS = 12  # in a message


def history_below(folder: Path, cell: str, metric: str | None = None) -> History:
    """Follow a figure of a cell over all studies below a folder. `cell` is "variant @ engine / workload" or a unique
    part of it; the default metric is the newest headline."""
    studies = _studies(folder)
    if not studies:
        raise StoreError(f"no study folder below {folder}; give one that contains folders filled by `bitbench run`")
    return history(find_cell(cell, studies), parse_metric(metric or studies[-1].study.measure.headline), studies)


def _studies(folder: Path) -> list[StudyRecords]:
    """Oldest first. A folder whose run was stopped before it began is not one of them."""
    found = [StudyFolder(lock.parent) for lock in sorted(folder.rglob("lock.json"))]
    studies = [study.read(str(study.path.relative_to(folder))) for study in found if study.study_file.is_file()]
    return sorted(studies, key=lambda study: (study.lock.created_at or "", study.name))


def find_cell(name: str, sides: Sequence[StudyRecords]) -> Cell:
    """`variant @ engine / workload`, or the same with a dot as reports write it; a name that is unique may be cut."""
    cells = list(dict.fromkeys(cell for side in sides for cell in side.plan.cells))
    wanted = " ".join(name.split())
    spelled = {cell: (f"{cell.contender.name} / {cell.workload}", cell.name) for cell in cells}
    exact = [cell for cell, names in spelled.items() if wanted in names]
    partly = [cell for cell, names in spelled.items() if any(wanted in spelling for spelling in names)]
    found = exact or partly
    if len(found) == 1:
        return found[0]
    known = [names[0] for cell, names in spelled.items() if not found or cell in found]
    more = f" and {len(known) - LISTED_CELLS} more" if len(known) > LISTED_CELLS else ""
    what = "matches several cells" if found else "is not a cell of these studies"
    raise StoreError(f"{name!r} {what}; known: {'; '.join(known[:LISTED_CELLS])}{more}")


def history(cell: Cell, metric: str, sides: Sequence[StudyRecords]) -> History:
    """`sides` with the oldest first. Only studies whose workload has the shape of the newest one are in it."""
    if metric not in DEFINITIONS:
        raise StoreError(f"{metric} has no history: it is not a figure of a trial")
    asked = [side for side in sides if cell in side.plan.cells]
    newest = asked[-1].plan.study.workload(cell.workload)
    same = [side for side in asked if _has_shape(side, cell, newest)]
    confidence = asked[-1].plan.study.measure.confidence
    known = [side for side in same if values_by_start(side, metric)[cell]]
    entries = [_entry(cell, metric, side, confidence) for side in known]
    moves = [_move(cell, metric, before, after, confidence) for before, after in pairwise(known)]
    return History(
        cell=cell,
        metric=metric,
        definition=DEFINITIONS[metric],
        confidence=confidence,
        points=(*entries[:1], *(entry.model_copy(update=move) for entry, move in zip(entries[1:], moves, strict=True))),
        without_result=tuple(side.name for side in same if side not in known),
        other_shape=tuple(side.name for side in asked if side not in same),
    )


def _has_shape(side: StudyRecords, cell: Cell, shape: object) -> bool:
    own = side.plan.study.workload(cell.workload)
    return all(getattr(own, part) == getattr(shape, part) for part in SHAPE)


def _entry(cell: Cell, metric: str, side: StudyRecords, confidence: float) -> HistoryPoint:
    sample = samples_by_cell(side)[cell][metric]
    return HistoryPoint(folder=side.name, started_at=side.lock.created_at, estimate=estimate(sample, confidence))


def _move(
    cell: Cell, metric: str, before: StudyRecords, after: StudyRecords, confidence: float
) -> dict[str, Ratio | Verdict | tuple[Difference, ...] | None]:
    """What `compare` would say of this cell in these two studies, and what else changed between them."""
    common = [other for other in before.plan.cells if other in set(after.plan.cells)]
    alike = [
        Pair(other, other) for other in common if _has_shape(before, other, after.plan.study.workload(other.workload))
    ]
    compared = compared_cells(alike, changes_between(before, after), metric, confidence)
    own = next(row for row in compared if row.candidate == cell)
    changes, _ = differences(before, after, [(cell.contender, cell.contender)])
    return {"ratio": own.ratio, "verdict": own.verdict, "changes": tuple(changes)}
