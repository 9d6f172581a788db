"""One figure of one cell, over all studies below a folder."""

from pathlib import Path

from bitbench.core.found.history import History
from bitbench.ground.errors import StoreError
from bitbench.lab.compare import read_side
from bitbench.statistics.comparability import Side
from bitbench.statistics.gate import parse_metric
from bitbench.statistics.history import find_cell, history
from bitbench.statistics.summarize import HEADLINES
from bitbench.store.folder import StudyFolder


def history_below(folder: Path, cell: str, metric: str | None = None) -> History:
    """`cell` is "variant @ engine / workload" or a unique part of it; the default metric is the newest headline."""
    sides = _sides(folder)
    if not sides:
        raise StoreError(f"there is no study folder below {folder}")
    headline = HEADLINES[sides[-1].plan.study.measure.headline]
    return history(find_cell(cell, sides), parse_metric(metric) if metric else headline, sides)


def _sides(folder: Path) -> list[Side]:
    """Oldest first. A folder whose run was stopped before it began has no plan and is left out."""
    locks = sorted(folder.rglob("lock.json"))
    sides = [read_side(lock.parent, str(lock.parent.relative_to(folder))) for lock in locks if _is_study(lock.parent)]
    return sorted(sides, key=lambda side: (str(side.lock.get("created_at") or ""), side.name))


def _is_study(folder: Path) -> bool:
    return (folder / "study.yaml").is_file() and "plan" in StudyFolder(folder).lock()
