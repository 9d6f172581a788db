"""The whole chain, from a study file to a report, on null engines in real processes."""

import subprocess
import sys
from pathlib import Path

from bitbench.store.folder import StudyFolder
from tests.busy_machine import expected_exit_code

BITBENCH = [sys.executable, "-m", "bitbench"]


def run_study_file(text: str, place: Path) -> StudyFolder:
    """Write a study file, run it through the command line, and give its folder."""
    (place / "study.yaml").write_text(text)
    done = subprocess.run(
        [*BITBENCH, "run", "study.yaml", "--into", "out"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    folder = StudyFolder.existing(place / "out")
    assert done.returncode == expected_exit_code(folder), done.stdout + done.stderr
    return folder
