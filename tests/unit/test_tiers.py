"""What runs when which files are touched."""

import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests import tiers

FILES = [
    str(path.relative_to(tiers.ROOT))
    for place in ("src", "native", "tests")
    for path in (tiers.ROOT / place).rglob("*.*")
]


def test_each_pattern_has_a_file_and_each_test_a_pattern() -> None:
    assert [
        pattern for pattern in tiers.TABLE if not any(fnmatch(path, pattern) for path in FILES)
    ] == []
    named = {name for names in tiers.TABLE.values() for name in names}
    assert named == {path.stem for path in tiers.TOUCHED.glob("test_*.py")}


def test_a_change_runs_its_tests_and_a_changed_test_itself() -> None:
    assert tiers.tests_of(["tests/touched/test_page.py"]) == ["tests/touched/test_page.py"]
    assert tiers.tests_of(["native/src/vptq/avx2.cpp"]) == [
        f"tests/touched/{name}.py" for name in tiers.KERNELS
    ]
    assert tiers.tests_of(["README.md", "src/bitbench/util/units.py"]) == []


def test_a_commit_that_is_not_here_is_unknown_and_not_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "ROOT", tmp_path)
    assert tiers.changed_files(None) is None  # no repository

    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments],
            cwd=tmp_path,
            check=True,
        )

    git("init", "--quiet")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "--quiet", "-m", "first")
    assert tiers.changed_files(None) is None  # no origin
    assert tiers.changed_files("0" * 40) is None
    (tmp_path / "a").write_text("2")
    (tmp_path / "b").write_text("3")
    assert tiers.changed_files("HEAD") == ["a", "b"]
