"""Killed at any moment and started again: nothing that had ended is lost or counted twice, no process is left over."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import psutil

from bitbench.core.recorded.trial import Outcome
from bitbench.planning.schedule import CLIENT_BOUND_REPEATS
from bitbench.store.folder import StudyFolder
from tests.chain.conftest import BITBENCH

KILLS = 20
STUDY = """
name: killed
engines:
  - {engine: null, name: a, args: {ttft: 10ms, tpot: 1ms}}
  - {engine: null, name: b, args: {ttft: 10ms, tpot: 2ms}}
  - {engine: null, name: c, args: {ttft: 10ms, tpot: 3ms}}
workloads:
  - {name: one, concurrency: 1, input_tokens: 8, output_tokens: 40}
  - {name: four, concurrency: 4, input_tokens: 8, output_tokens: 40}
measure: {instances: 3, trials: 6}
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
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive, f"left over: {[process.cmdline() for process in alive if process.is_running()]}"


def test_twenty_kills(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    folder = StudyFolder(tmp_path / "out")
    command = [*BITBENCH, "run", "study.yaml", "--into", "out"]
    rng = random.Random(20)
    ended: set[str] = set()
    killed_while_running = 0
    for number in range(KILLS):
        run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # The first runs are killed while they begin (imports, lock file), the others in the middle of trials.
        time.sleep(rng.uniform(0.2, 4.0))
        if run.poll() is None:
            killed_while_running += 1
            kill_and_check(run)
        now = {trial.id for trial in folder.trials()}
        assert ended <= now, f"kill {number} lost {ended - now}"
        ended = now
    assert killed_while_running >= KILLS * 3 // 4, "the study was over too soon for this test to mean anything"

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = folder.trials()
    assert ended <= {trial.id for trial in trials}
    assert max(Counter(trial.id for trial in trials).values()) == 1
    for engine in "abc":
        for workload in ("one", "four"):
            for block in range(3):
                outcomes = [
                    trial.outcome
                    for trial in trials
                    if (trial.kind, trial.cell.name, trial.block) == ("measured", f"{engine} · {workload}", block)
                ]
                late = outcomes.count(Outcome.CLIENT_BOUND)  # on a busy machine; repeated, but not for ever
                assert outcomes.count(Outcome.OK) == 6 or late > CLIENT_BOUND_REPEATS, (
                    engine,
                    workload,
                    block,
                    outcomes,
                )
                assert len(outcomes) <= 6 + CLIENT_BOUND_REPEATS + 1
    assert {path.name for path in folder.requests.iterdir()} == {
        f"{trial.id}.parquet" for trial in trials if trial.requests_file
    }
    report = (folder.report / "report.md").read_text()
    assert all(name in report for name in ("one", "four", "a", "b", "c"))
