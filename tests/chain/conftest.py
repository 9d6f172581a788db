"""The whole chain, from a study file to a report, on null engines in real processes."""

import sys
from pathlib import Path

import pytest

from bitbench.machine import host
from bitbench.records.folder import StudyFolder
from tests.busy_machine import expected_exit_code
from tests.forked import bitbench_process

BITBENCH = [sys.executable, "-m", "bitbench"]


@pytest.fixture(autouse=True)
def other_work_is_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a null engine which says that it computes a model is measured beside them."""
    monkeypatch.setattr(host, "DISTURBING_SHARE", 99.0)


def run_study_file(text: str, place: Path) -> StudyFolder:
    """Write a study file, run it through the command line, and give its folder."""
    (place / "study.yaml").write_text(text)
    done = bitbench_process("run", "study.yaml", "--into", "out", cwd=place)
    folder = StudyFolder.existing(place / "out")
    assert done.returncode == expected_exit_code(folder), done.stdout + done.stderr
    return folder
