"""What a machine that others keep busy may do to a run: our client is too slow in some trials, which then do not count.

They are repeated, but not for ever, so a test that is about something else has to allow for it.
"""

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from bitbench.records.folder import StudyFolder
from bitbench.records.trial import NOT_THE_ENGINES, Outcome
from bitbench.util.errors import ExitCode

LEFT_OVER_S = 45.0  # after which what should have happened never will
CALLS = 3  # of `bitbench run`, which measures again what it gave up for a busy machine


def wait_for(condition: Callable[[], bool], timeout_s: float = LEFT_OVER_S) -> bool:
    """Whether it came about."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def expected_exit_code(folder: StudyFolder) -> ExitCode:
    """Of a run without objectives in which some config works: nothing was measured only where all its trials were
    rejected, and none of a block where the run stopped for that; a point is lacking where all of its own were."""
    measured = [trial for trial in folder.trials() if trial.kind == "measured"]
    newest = max((trial.block for trial in measured), default=0)
    if measured and all(trial.is_rejected for trial in measured if trial.block == newest):
        return ExitCode.UNAVAILABLE
    outcomes = {trial.outcome for trial in folder.trials() if trial.kind == "measured"}
    if Outcome.CLIENT_BOUND in outcomes and Outcome.OK not in outcomes:
        return ExitCode.NOTHING_MEASURED
    return ExitCode.INCONCLUSIVE if _has_point_of_rejected_trials(folder) else ExitCode.DONE


def run_study(place: Path, study: str, timeout_s: float) -> StudyFolder:
    """The folder `out` beside the study, in which each point that can be measured was."""
    command = [sys.executable, "-m", "bitbench", "run", study, "--into", "out"]
    for _ in range(CALLS):
        done = subprocess.run(command, cwd=place, check=False, timeout=timeout_s)
        folder = StudyFolder.existing(place / "out")
        assert done.returncode == expected_exit_code(folder)
        if not _has_point_of_rejected_trials(folder):
            break
    return folder


def _has_point_of_rejected_trials(folder: StudyFolder) -> bool:
    outcomes = defaultdict(set)
    for trial in folder.trials():
        if trial.kind == "measured":
            outcomes[trial.point].add(trial.outcome)
    return any(own <= NOT_THE_ENGINES for own in outcomes.values())
