"""A feature is deleted by deleting its folder: nothing else breaks, and what its records say survives."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bitbench
from bitbench.feature import features
from bitbench.ground.exit_codes import ExitCode
from tests.gallery import GALLERY, TWINS
from tests.length import by_length

PACKAGE = Path(bitbench.__file__).parent
TOUR = Path(__file__).parents[2] / "examples" / "null-tour.yaml"
NAMES = [declared.name for declared in features().values() if declared.is_built_in]
COMMANDS = {declared.name: [command.name for command in declared.commands] for declared in features().values()}


class Copy:
    """Of bitbench, without some features."""

    def __init__(self, place: Path, *without: str) -> None:
        self.place = place
        shutil.copytree(PACKAGE, place / "src" / "bitbench", ignore=shutil.ignore_patterns("__pycache__"))
        for name in without:
            shutil.rmtree(place / "src" / "bitbench" / "features" / name)

    def bitbench(self, *arguments: str | Path) -> str:
        """What it prints; it has to succeed."""
        done = subprocess.run(
            [sys.executable, "-m", "bitbench", *arguments],
            cwd=self.place,
            env={**os.environ, "PYTHONPATH": str(self.place / "src"), "BITBENCH_HOME": str(self.place / "home")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout


def listed(help_text: str) -> set[str]:
    return {line.split()[0] for line in help_text.splitlines() if line.startswith("  ") and line.split()}


@pytest.mark.parametrize("name", by_length(NAMES[:1], NAMES))
def test_without_one_of_them(name: str, tmp_path: Path) -> None:
    copy = Copy(tmp_path, name)
    commands = listed(copy.bitbench("--help"))
    assert not commands & {*COMMANDS[name]}
    assert {"run", *(command for other in NAMES if other != name for command in COMMANDS[other])} <= commands
    check_what_is_left(copy)


def test_without_all_of_them(tmp_path: Path) -> None:
    copy = Copy(tmp_path, *NAMES)
    assert not listed(copy.bitbench("--help")) & {command for commands in COMMANDS.values() for command in commands}
    check_what_is_left(copy)
    for study in (GALLERY / "tune" / "search", GALLERY / "speculation"):  # a key and a report part that nobody knows
        shutil.copytree(study, tmp_path / study.name, ignore=shutil.ignore_patterns("report"))
        copy.bitbench("report", tmp_path / study.name)


def check_what_is_left(copy: Copy) -> None:
    copy.bitbench("schema", "study")
    copy.bitbench("plan", TOUR)
    copy.bitbench("run", TOUR, "--into", "tour")
    copy.bitbench("report", "tour")
    shutil.copytree(TWINS, copy.place / "twins", ignore=shutil.ignore_patterns("report"))
    copy.bitbench("report", "twins")
