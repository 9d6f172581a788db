"""Studies that run into an object store: drivers are killed, and others continue as if from another machine."""

import os
import random
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from bitbench.features.objects.remote_folder import pull_remote_study
from bitbench.features.objects.store import ObjectStore, StoredObject
from bitbench.measure.progress import CLIENT_BOUND_REPEATS
from bitbench.records.trial import Outcome
from tests.chain.conftest import BITBENCH
from tests.chain.test_kill import kill_and_check
from tests.features.objects.object_servers import BUCKET, serving, why_not
from tests.length import by_length

KILLS = by_length(8, 100)
BLOCKS, TRIALS = 2, 5
STUDY = f"""
name: stored
engines:
  - {{engine: null, name: slow, args: {{ttft: 20ms, tpot: 2ms, vary: 0.01, vary_instance: 0.01}}}}
  - {{engine: null, name: fast, args: {{ttft: 10ms, tpot: 1ms, vary: 0.01, vary_instance: 0.01}}}}
workloads:
  - {{name: single, concurrency: 1, input_tokens: 8, output_tokens: 8}}
measure: {{starts: {BLOCKS}, trials: {TRIALS}}}
baseline: slow
"""
_TIMEOUT_S = 180.0


def start(place: Path, url: str, home: str) -> subprocess.Popen[bytes]:
    """`home`: where the copy lies; another one is as good as another machine."""
    environment = {**os.environ, "BITBENCH_HOME": str(place / home)}
    with (place / "said.txt").open("ab") as said:
        command = [*BITBENCH, "run", "stored.yaml", "--into", url]
        return subprocess.Popen(command, cwd=place, env=environment, stdout=said, stderr=said)


def wait_for_more(run: subprocess.Popen[bytes], store: ObjectStore, more: int) -> None:
    before, deadline = len(store.list("trials")), time.monotonic() + _TIMEOUT_S
    while run.poll() is None and len(store.list("trials")) < before + more:
        assert time.monotonic() < deadline, "no trial is written"
        time.sleep(0.05)


def kill_drivers(url: str, place: Path, kills: int, rng: random.Random) -> int:
    """Kill a run of the study at a random point, so many times; one that is complete is checked, and a new one begun.

    Returns how many studies were completed, the last one undisturbed.
    """
    (place / "stored.yaml").write_text(STUDY)
    killed, completed, kept = 0, 0, set[StoredObject]()
    while True:
        study = f"{url}/{completed}"
        run = start(place, study, rng.choice(["one", "two"]))
        if killed < kills:
            # Some die while they begin (imports, lease, copy), the others in the middle of trials.
            if rng.random() < 0.7:
                wait_for_more(run, ObjectStore(study), rng.randint(1, 4))
            time.sleep(rng.uniform(0.0, 1.0))
        if killed < kills and run.poll() is None:
            killed += 1
            kill_and_check(run)
        else:
            assert run.wait(_TIMEOUT_S) == 0, (place / "said.txt").read_text()
        now = set(ObjectStore(study).list("trials"))
        assert kept <= now, f"kill {killed} lost or changed {kept - now}"
        kept = now
        if run.returncode == 0:
            check_complete(study, place / f"pulled{completed}")
            completed, kept = completed + 1, set()
            if killed == kills:
                return completed


def check_complete(url: str, into: Path) -> None:
    folder = pull_remote_study(url, into)
    trials = folder.trials()
    assert [one.id for one in trials] == [f"t{number:05d}" for number in range(1, len(trials) + 1)]
    measured = [trial for trial in trials if trial.kind == "measured"]
    numbers = Counter((trial.point.name, trial.block, trial.index) for trial in measured)
    assert max(numbers.values()) == 1, numbers
    for point in ("slow · single", "fast · single"):
        for block in range(BLOCKS):
            of_block = [one for one in measured if (one.point.name, one.block) == (point, block)]
            outcomes = Counter(one.outcome for one in of_block if one.turn == 0)
            late = outcomes[Outcome.CLIENT_BOUND] > CLIENT_BOUND_REPEATS  # on a busy machine
            # The baseline has a turn beside whoever is left of a block, so an interruption gives it more.
            enough = outcomes[Outcome.OK] >= TRIALS if point.startswith("slow") else outcomes[Outcome.OK] == TRIALS
            assert enough or late, (point, block, outcomes)
    assert all(folder.requests_of(one).num_rows for one in measured if one.requests_file)


@pytest.mark.skipif(why_not("seaweedfs") is not None, reason=why_not("seaweedfs") or "")
def test_killed_drivers_lose_nothing_and_double_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("seaweedfs", tmp_path) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert kill_drivers(f"s3://{BUCKET}/killed", tmp_path, KILLS, random.Random(18)) >= 1
