"""One figure of one cell, over all studies below a folder."""

from pathlib import Path

from bitbench.core.found.history import History
from bitbench.core.recorded.study import StudyRecords
from bitbench.ground.errors import StoreError
from bitbench.statistics.gate import parse_metric
from bitbench.statistics.history import find_cell, history
from bitbench.store.folder import StudyFolder


def history_below(folder: Path, cell: str, metric: str | None = None) -> History:
    """`cell` is "variant @ engine / workload" or a unique part of it; the default metric is the newest headline."""
    studies = _studies(folder)
    if not studies:
        raise StoreError(f"no study folder below {folder}; give one that contains folders filled by `bitbench run`")
    return history(find_cell(cell, studies), parse_metric(metric or studies[-1].study.measure.headline), studies)


def _studies(folder: Path) -> list[StudyRecords]:
    """Oldest first. A folder whose run was stopped before it began is not one of them."""
    found = [StudyFolder(lock.parent) for lock in sorted(folder.rglob("lock.json"))]
    studies = [study.read(str(study.path.relative_to(folder))) for study in found if study.study_file.is_file()]
    return sorted(studies, key=lambda study: (study.lock.created_at or "", study.name))
