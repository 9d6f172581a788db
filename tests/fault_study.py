"""A study on null engines that fork, to which faults are done: who its processes are, and what may come of it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bitbench.records.folder import StudyFolder
from bitbench.records.trial import NOT_THE_ENGINES, Outcome, TrialRecord
from bitbench.running.progress import CLIENT_BOUND_REPEATS
from bitbench.util.errors import ExitCode
from tests.busy_machine import LEFT_OVER_S, expected_exit_code
from tests.left_behind import alive_in, marked

BITBENCH = [sys.executable, "-m", "bitbench"]
TRIALS = 4
STUDY = f"""
name: faults
engines:
  - {{engine: null, args: {{ttft: 10ms, tpot: 2ms, children: 2}}}}
workloads:
  - {{name: one, concurrency: 1, input_tokens: 8, output_tokens: 150}}
measure: {{starts: 1, trials: {TRIALS}}}
"""
ROLES = ("main", "load worker", "engine", "guardian")
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Ended:
    exit_code: int
    said: str


class FaultyRun:
    """`bitbench run` of the study in a folder of its own."""

    def __init__(self, place: Path, prefix: Sequence[str] = (), study: str = STUDY) -> None:
        self.place = place
        self.folder = StudyFolder(place / "out")
        (place / "study.yaml").write_text(study)
        self._output = place / "said.txt"
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [*prefix, *BITBENCH, "run", "study.yaml", "--into", "out"],
                cwd=place,
                env=marked(place),
                stdout=output,
                stderr=output,
            )

    def trials(self) -> list[TrialRecord]:
        return self.folder.trials()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while not condition():
            assert self._process.poll() is None, self._output.read_text()
            assert time.monotonic() < deadline, "it takes too long"
            time.sleep(0.02)

    def kill(self, role: str) -> None:
        """`kill -9` of one of its processes, with an engine that is up."""
        self.wait_for(lambda: len(self._tree()) == len(ROLES) + 2)
        os.kill(self._tree()[role], signal.SIGKILL)

    def wait(self) -> Ended:
        code = self._process.wait(_TIMEOUT_S)
        return Ended(code, self._output.read_text())

    def left_over(self) -> list[psutil.Process]:
        """Its processes that are still alive some seconds after its end."""
        deadline = time.monotonic() + LEFT_OVER_S
        while (alive := alive_in(self.place)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return alive

    def _tree(self) -> dict[str, int]:
        """By role, as far as they are there; the engine's own children too."""
        try:
            main = psutil.Process(self._process.pid)
            found = {"main": main.pid}
            for child in main.children():
                if "bitbench.loadgen.worker_process" in child.cmdline():
                    found["load worker"] = child.pid
                elif any(word.endswith("guardian.py") for word in child.cmdline()):
                    found["guardian"] = child.pid
                    below = sorted(
                        child.children(recursive=True), key=lambda one: (one.create_time(), one.pid)
                    )
                    names = ("engine", *(f"child {number}" for number in range(len(below))))
                    found.update((name, one.pid) for name, one in zip(names, below, strict=False))
        except psutil.Error:
            return {}
        return found


def check_no_blame(trials: Sequence[TrialRecord], said: str) -> None:
    """No outcome is an engine's, and no word of a bug."""
    assert {trial.outcome for trial in trials} <= {Outcome.OK, *NOT_THE_ENGINES}, [
        trial.cause for trial in trials
    ]
    assert "bug" not in said, said
    assert "unexpected" not in said, said


def check_complete(trials: Sequence[TrialRecord]) -> None:
    """As many trials as were asked for count, but for a client that was too slow on a busy machine."""
    outcomes = [trial.outcome for trial in trials if trial.kind == "measured" and trial.turn == 0]
    late = outcomes.count(Outcome.CLIENT_BOUND)
    assert outcomes.count(Outcome.OK) == TRIALS or late > CLIENT_BOUND_REPEATS, outcomes


def kill_and_resume(place: Path, role: str, wait_s: float = 0.0) -> list[TrialRecord]:
    """Kill one process `wait_s` after the first trial that counts, and run to the end; the trials that are recorded."""
    run = FaultyRun(place)
    run.wait_for(lambda: len(run.trials()) > 1)
    time.sleep(wait_s)
    run.kill(role)
    ended = run.wait()
    assert not run.left_over()
    check_no_blame(run.trials(), ended.said)
    if role in ("main", "load worker"):
        assert ended.exit_code == (-signal.SIGKILL if role == "main" else ExitCode.UNAVAILABLE), (
            ended.said
        )
        run = FaultyRun(place)
        ended = run.wait()
    assert ended.exit_code == expected_exit_code(run.folder), ended.said
    assert not run.left_over()
    check_no_blame(run.trials(), ended.said)
    check_complete(run.trials())
    return run.trials()
