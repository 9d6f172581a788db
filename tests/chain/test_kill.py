"""Killed at any moment and started again: nothing that had ended is lost or counted twice, no process is left over."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Outcome
from bitbench.running.progress import CLIENT_BOUND_REPEATS
from tests.busy_machine import LEFT_OVER_S
from tests.chain.conftest import BITBENCH
from tests.length import by_length

KILLS = by_length(3, 50)
SEEDS = range(10, 10 + by_length(1, 4))
BLOCKS, TRIALS = by_length((2, 3), (3, 6))
STUDY = f"""
name: killed
engines:
  - {{engine: null, name: a, args: {{ttft: 10ms, tpot: 1ms}}}}
  - {{engine: null, name: b, args: {{ttft: 10ms, tpot: 2ms}}}}
  - {{engine: null, name: c, args: {{ttft: 10ms, tpot: 3ms}}}}
workloads:
  - {{name: one, concurrency: 1, input_tokens: 8, output_tokens: 40}}
  - {{name: four, concurrency: 4, input_tokens: 8, output_tokens: 40}}
measure: {{starts: {BLOCKS}, trials: {TRIALS}}}
"""


def descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill_and_check(run: subprocess.Popen[bytes]) -> None:
    """kill -9, and every process that it had started must be gone soon after."""
    os.kill(run.pid, signal.SIGSTOP)  # so that nothing new is started between the look and the kill
    family = descendants(psutil.Process(run.pid))
    run.kill()
    run.wait()
    _, alive = psutil.wait_procs(family, timeout=LEFT_OVER_S)
    assert not alive, (
        f"left over: {[process.cmdline() for process in alive if process.is_running()]}"
    )


def start(place: Path, folder: StudyFolder) -> subprocess.Popen[bytes]:
    command = [*BITBENCH, "run", "study.yaml", "--into", folder.path.name]
    return subprocess.Popen(
        command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def kill_until(place: Path, kills: int, rng: random.Random) -> int:
    """Kill a run of the study at a random moment, so many times; one that is complete is checked, and a new one begun.

    Returns how many studies were completed, the last one undisturbed.
    """
    (place / "study.yaml").write_text(STUDY)
    completed, killed = 0, 0
    folder, ended = StudyFolder(place / "out0"), set[str]()
    while killed < kills:
        run = start(place, folder)
        # Some are killed while they begin (imports, lock file), the others in the middle of trials.
        time.sleep(rng.uniform(0.2, 4.0))
        if run.poll() is None:
            killed += 1
            kill_and_check(run)
        now = {trial.id for trial in folder.trials()}
        assert ended <= now, f"kill {killed} lost {ended - now}"
        ended = now
        if run.returncode == 0:
            check_complete(folder)
            completed += 1
            folder, ended = StudyFolder(place / f"out{completed}"), set()
    last = start(place, folder)
    assert last.wait(timeout=180) == 0
    assert ended <= {trial.id for trial in folder.trials()}
    check_complete(folder)
    return completed + 1


def check_complete(folder: StudyFolder) -> None:
    """Each point has its trials in each block, once; their rows and nothing else are in the folder."""
    trials = folder.trials()
    lines = (folder.path / "trials.jsonl").read_text().splitlines()
    assert len(lines) == len(trials) == len({trial.id for trial in trials})
    for engine in "abc":
        for workload in ("one", "four"):
            for block in range(BLOCKS):
                outcomes = [
                    trial.outcome
                    for trial in trials
                    if (trial.kind, trial.point.name, trial.block)
                    == ("measured", f"{engine} · {workload}", block)
                    and trial.turn == 0
                ]
                late = outcomes.count(
                    Outcome.CLIENT_BOUND
                )  # on a busy machine; each call repeats them, not for ever
                assert outcomes.count(Outcome.OK) == TRIALS or late > CLIENT_BOUND_REPEATS, (
                    engine,
                    workload,
                    block,
                    outcomes,
                )
                assert len(outcomes) - late <= TRIALS
    assert {path.name for path in folder.requests.iterdir()} == {
        f"{trial.id}.parquet" for trial in trials if trial.requests_file
    }
    report = (folder.report / "report.md").read_text()
    assert all(name in report for name in ("one", "four", "a", "b", "c"))


@pytest.mark.parametrize("seed", SEEDS)
def test_kills(seed: int, tmp_path: Path) -> None:
    assert kill_until(tmp_path, KILLS, random.Random(seed)) >= 1
