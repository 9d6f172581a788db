"""The whole chain, from a study file to a report, on null engines in real processes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bitbench.store.folder import StudyFolder

RunStudy = Callable[[str], StudyFolder]
BITBENCH = [sys.executable, "-m", "bitbench"]


@pytest.fixture
def run_study(tmp_path: Path) -> RunStudy:
    """Write a study file, run it through the command line, and give its folder."""

    def run(text: str) -> StudyFolder:
        (tmp_path / "study.yaml").write_text(text)
        done = subprocess.run(
            [*BITBENCH, "run", "study.yaml", "--into", "out"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return StudyFolder.existing(tmp_path / "out")

    return run
