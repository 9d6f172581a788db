"""The gallery as it is committed: records, and pages in Markdown that say what the records give."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gallery import GALLERY

ROOT = Path(__file__).parents[2]
ROWS = {"requests", "quality", "profiles"}
# `bitbench report` writes report/index.html beside the page; git ignores it.
TABLES = {
    "recipes-by-workload.md",
    "backends.md",
    "speed-by-length.rst",
}  # in the forms that people publish
FILES = re.compile(
    r"(study\.yaml|lock\.json|\w+\.jsonl|report/(report\.md|index\.html|figures/[^/]+\.svg))"
)
STUDIES = sorted(lock.parent for lock in GALLERY.rglob("lock.json"))


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_a_study_has_its_records_and_one_page_with_its_figures(study: Path) -> None:
    places = [path.relative_to(study) for path in study.rglob("*") if path.is_file()]
    others = {place.as_posix() for place in places if place.parts[0] not in ROWS} - TABLES
    assert not [name for name in others if not FILES.fullmatch(name)]
    shown = set(
        re.findall(
            r"\]\(figures/([^)]+)\)", (study / "report" / "report.md").read_text(encoding="utf-8")
        )
    )
    assert {path.name for path in (study / "report" / "figures").glob("*")} == shown


def test_pages_are_what_the_records_give() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "gallery", "--check"], check=False)
    assert done.returncode == 0, "run scripts/gallery"
