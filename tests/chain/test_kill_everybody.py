"""`kill -9` of whoever takes part in a study, one or several at once, and the same command again: nothing that had
ended is lost or counted twice, and after the next command no process is left."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from bitbench.records.folder import StudyFolder
from bitbench.records.trial import NOT_THE_ENGINES, Outcome
from tests.busy_machine import wait_for
from tests.chain.conftest import BITBENCH
from tests.left_behind import alive_in, marked
from tests.length import by_length

KILLS = by_length(5, 100)
BLOCKS, TRIALS = by_length((3, 2), (4, 3))
STUDY = f"""
name: killed
engines:
  - {{engine: null, name: a, args: {{ttft: 100ms, tpot: 10ms, children: 1}}}}
  - {{engine: null, name: b, args: {{ttft: 120ms, tpot: 10ms, children: 1}}}}
workloads:
  - {{name: one, concurrency: 1, input_tokens: 8, output_tokens: 20}}
measure: {{starts: {BLOCKS}, trials: {TRIALS}}}
"""
ROLES = ("driver", "guardians", "engine", "child", "all guardians", "driver and all guardians")


def tree(driver: int) -> dict[str, list[int]]:
    """By role."""
    found: dict[str, list[int]] = {"driver": [driver], "guardians": [], "engine": [], "child": []}
    with suppress(psutil.Error):
        for process in psutil.Process(driver).children(recursive=True):
            with suppress(psutil.Error, IndexError):
                words = process.cmdline()
                if _is_guardian(words):
                    found["guardians"].append(process.pid)
                elif any(word.endswith("null_server") for word in words):
                    is_child = not any(
                        _is_guardian(parent.cmdline()) for parent in process.parents()[:1]
                    )
                    found["child" if is_child else "engine"].append(process.pid)
    found["all guardians"] = found["guardians"]
    found["driver and all guardians"] = [driver, *found["guardians"]]
    return found


def _is_guardian(words: list[str]) -> bool:
    return any(word.endswith("guardian.py") for word in words)


def test_kills_of_everybody(tmp_path: Path) -> None:
    rng = random.Random(7)
    (tmp_path / "study.yaml").write_text(STUDY)
    killed, completed = Counter[str](), 0
    folder, ended = StudyFolder(tmp_path / "out0"), set[str]()
    while killed.total() < KILLS:
        run = start(tmp_path, folder)
        assert wait_for(partial(has_begun, run), timeout_s=120)
        while run.poll() is None and killed.total() < KILLS:
            time.sleep(rng.uniform(0.1, 2.0))
            there = tree(run.pid)
            role = rng.choice([role for role in ROLES if there[role]])
            kill(
                there[role] if role.startswith(("all", "driver and")) else [rng.choice(there[role])]
            )
            killed[role] += 1
        code = run.wait(timeout=180)
        now = {trial.id for trial in folder.trials()}
        assert ended <= now, f"after {killed} {ended - now} are lost"
        ended = now
        if code == 0:
            check_complete(folder)
            completed += 1
            folder, ended = StudyFolder(tmp_path / f"out{completed}"), set()
        subprocess.run([*BITBENCH, "env", "list"], cwd=tmp_path, check=True, capture_output=True)
        assert wait_for(lambda: not alive_in(tmp_path)), f"after {killed}: {alive_in(tmp_path)}"
    assert start(tmp_path, folder).wait(timeout=180) == 0
    check_complete(folder)
    print(dict(killed), completed)


def has_begun(run: "subprocess.Popen[bytes]") -> bool:
    return bool(tree(run.pid)["engine"]) or run.poll() is not None


def kill(pids: list[int]) -> None:
    for number in (signal.SIGSTOP, signal.SIGKILL):  # as if at one moment
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def start(place: Path, folder: StudyFolder) -> subprocess.Popen[bytes]:
    command = [*BITBENCH, "run", "study.yaml", "--into", folder.path.name]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=place, env=marked(place), **streams)


def check_complete(folder: StudyFolder) -> None:
    """Each point has its trials in each block, once, and nobody blames an engine. The baseline (a) has more where b was
    started again: a trial beside it each time."""
    trials = folder.trials()
    assert len(trials) == len({trial.id for trial in trials})
    assert {trial.outcome for trial in trials} <= {Outcome.OK, *NOT_THE_ENGINES}, [
        trial.cause for trial in trials
    ]
    counted = Counter((trial.point.name, trial.block) for trial in trials if trial.counts)
    rejected = Counter(
        (trial.point.name, trial.block) for trial in trials if trial.outcome in NOT_THE_ENGINES
    )
    starts = Counter((instance.config.engine, instance.block) for instance in folder.instances())
    for block in range(BLOCKS):
        assert counted["b · one", block] == TRIALS or rejected["b · one", block], (
            block,
            counted,
            rejected,
        )
        most = TRIALS * max(starts["a", block], 1)
        assert TRIALS <= counted["a · one", block] <= most or rejected["a · one", block], (
            block,
            counted,
            starts,
        )
    assert {path.name for path in folder.requests.iterdir()} == {
        f"{trial.id}.parquet" for trial in trials if trial.requests_file
    }
