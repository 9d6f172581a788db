"""A feature is deleted by deleting its folder: nothing else breaks, and what its records say survives."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bitbench
from bitbench.feature import features
from bitbench.util.errors import ExitCode
from tests.gallery import GALLERY, TWINS
from tests.length import by_length

PACKAGE = Path(bitbench.__file__).parent
STUDY = """
name: small
engines: [{engine: null, name: a, args: {ttft: 100ms}}, {engine: null, name: b, args: {fail: exit}}]
workloads: [{name: single, concurrency: 1, input_tokens: 8, output_tokens: 1}]
measure: {starts: 1, trials: 1}
"""
NAMES = [declared.name for declared in features().values() if declared.is_built_in]
COMMANDS = {
    declared.name: [command.name for command in declared.commands]
    for declared in features().values()
}


class Copy:
    """A copy of bitbench without some features."""

    def __init__(self, place: Path, *without: str) -> None:
        self.place = place
        shutil.copytree(PACKAGE, place / "src" / "bitbench")
        for name in without:
            shutil.rmtree(place / "src" / "bitbench" / "features" / name)

    def bitbench(self, *arguments: str | Path, code: ExitCode = ExitCode.DONE) -> str:
        """What it prints, where it ends with this code."""
        done = subprocess.run(
            [sys.executable, "-m", "bitbench", *arguments],
            cwd=self.place,
            env={**os.environ, "PYTHONPATH": str(self.place / "src")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout


def listed(help_text: str) -> set[str]:
    return {
        line.split()[0] for line in help_text.splitlines() if line.startswith("  ") and line.split()
    }


@pytest.mark.parametrize(
    "without", by_length([NAMES], [NAMES, *([name] for name in NAMES)]), ids=" ".join
)
def test_what_is_left_works(without: list[str], tmp_path: Path) -> None:
    copy = Copy(tmp_path, *without)
    left = listed(copy.bitbench("--help"))
    assert not left & {command for name in without for command in COMMANDS[name]}
    assert {
        "run",
        *(command for name in {*NAMES} - {*without} for command in COMMANDS[name]),
    } <= left
    copy.bitbench("schema", "study")
    (tmp_path / "small.yaml").write_text(STUDY)
    copy.bitbench("plan", "small.yaml")
    copy.bitbench("run", "small.yaml", "--into", "small")
    copy.bitbench("report", "small")
    # Of records that have a key, a report part, or none that only a deleted feature knows.
    search, speculation = GALLERY / "tune" / "search", GALLERY / "speculation"
    for study, code in (
        (search, ExitCode.INCONCLUSIVE),
        (speculation, ExitCode.DONE),
        (TWINS, ExitCode.DONE),
    ):
        shutil.copytree(study, tmp_path / study.name, ignore=shutil.ignore_patterns("report"))
        copy.bitbench("report", study.name, code=code)
