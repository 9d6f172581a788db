"""One metric of one cell, study after study: how it moved, whether that is more than noise, and what else changed."""

from collections.abc import Sequence

from bitbench.core.cell import Cell
from bitbench.core.found.comparison import Verdict
from bitbench.core.found.history import History, HistoryPoint
from bitbench.core.recorded.study import StudyRecords
from bitbench.ground.errors import StoreError
from bitbench.statistics.comparability import differences
from bitbench.statistics.comparison import SHARE_OF_ERROR, compare
from bitbench.statistics.intervals import Sample, estimate
from bitbench.statistics.studies import SHAPE, verdict_of
from bitbench.statistics.summarize import samples_by_cell
from bitbench.statistics.trial import DEFINITIONS

LISTED_CELLS = 12  # in a message


def find_cell(name: str, sides: Sequence[StudyRecords]) -> Cell:
    """`variant @ engine / workload`, or the same with a dot as reports write it; a name that is unique may be cut."""
    cells = list(dict.fromkeys(cell for side in sides for cell in side.plan.cells))
    wanted = " ".join(name.split())
    spelled = {cell: (f"{cell.contender.name} / {cell.workload}", cell.name) for cell in cells}
    exact = [cell for cell, names in spelled.items() if wanted in names]
    partly = [cell for cell, names in spelled.items() if any(wanted in one for one in names)]
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
    points: list[HistoryPoint] = []
    before: tuple[StudyRecords, Sample] | None = None
    without = []
    for number, side in enumerate(same):
        sample = samples_by_cell(side, stream=number)[cell].get(metric)
        if sample is None:
            without.append(side.name)
            continue
        points.append(_point(cell, metric, (side, sample), before, confidence))
        before = (side, sample)
    return History(
        cell=cell,
        metric=metric,
        definition=DEFINITIONS[metric],
        confidence=confidence,
        points=tuple(points),
        without_result=tuple(without),
        other_shape=tuple(side.name for side in asked if side not in same),
    )


def _has_shape(side: StudyRecords, cell: Cell, shape: object) -> bool:
    own = side.plan.study.workload(cell.workload)
    return all(getattr(own, part) == getattr(shape, part) for part in SHAPE)


def _point(
    cell: Cell,
    metric: str,
    now: tuple[StudyRecords, Sample],
    before: tuple[StudyRecords, Sample] | None,
    confidence: float,
) -> HistoryPoint:
    side, sample = now
    point = HistoryPoint(folder=side.name, started_at=side.lock.created_at, estimate=estimate(sample, confidence))
    if before is None:
        return point
    ratio = compare(sample, before[1], confidence)
    is_apart = ratio is not None and ratio.p_value is not None and ratio.p_value < SHARE_OF_ERROR * (1 - confidence)
    verdict = verdict_of(ratio, is_apart=is_apart, definition=DEFINITIONS[metric])
    if not (point.estimate.covers_starts and before[1].n_instances > 1):
        verdict = Verdict.UNKNOWN  # one start says nothing about the next
    changes, _ = differences(before[0], side, [(cell.contender, cell.contender)])
    return point.model_copy(update={"ratio": ratio, "verdict": verdict, "changes": tuple(changes)})
