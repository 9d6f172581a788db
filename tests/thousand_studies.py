"""Many small studies with their kept tables."""

import shutil
from pathlib import Path

from bitbench.records.folder import StudyFolder
from bitbench.records.kept_tables import write_kept_tables
from tests.gallery import TWINS

TRIALS_EACH = 20
SUM = """
SELECT count(DISTINCT folder) AS studies, count(*) AS trials, avg(output_throughput) AS speed
FROM trials JOIN studies USING (folder)
"""


def write_studies(place: Path, count: int) -> None:
    """Copies of one, under many names."""
    first = place / "study-0000"
    first.mkdir(parents=True)
    for name in ("study.yaml", "lock.json", "instances.jsonl"):
        shutil.copy(TWINS / name, first / name)
    lines = (TWINS / "trials.jsonl").read_text().splitlines(keepends=True)
    (first / "trials.jsonl").write_text("".join(lines[:TRIALS_EACH]))
    write_kept_tables(StudyFolder(first))
    for number in range(1, count):
        shutil.copytree(first, place / f"study-{number:04d}")
