"""A study that runs into an object store, is killed, and is continued from another machine."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bitbench.lab.places import pull_study
from bitbench.store.objects import ObjectStore
from tests.unit.object_servers import BUCKET, serving, why_not

STUDY = """
name: stored
engines:
  - {engine: null, name: slow, args: {ttft: 20ms, tpot: 2ms, vary: 0.01, vary_instance: 0.01}}
  - {engine: null, name: fast, args: {ttft: 10ms, tpot: 1ms, vary: 0.01, vary_instance: 0.01}}
workloads:
  - {name: single, concurrency: 1, input_tokens: 8, output_tokens: 8}
measure: {instances: 2, trials: 3, schedule: visits}
baseline: slow
"""
BITBENCH = [sys.executable, "-c", "from bitbench.cli import main; main()"]


@pytest.mark.skipif(why_not("moto") is not None, reason=why_not("moto") or "")
def test_a_killed_run_continues_from_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stored.yaml").write_text(STUDY)
    url = f"s3://{BUCKET}/stored"
    command = [*BITBENCH, "run", str(tmp_path / "stored.yaml"), "--into", url]
    with serving("moto", tmp_path) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        store = ObjectStore(url)
        first = subprocess.Popen(command, env=environment(tmp_path / "one"), stdout=subprocess.DEVNULL)
        while len(store.list("trials")) < 3:
            assert first.poll() is None
        first.send_signal(signal.SIGKILL)
        first.wait()
        killed_at = len(store.list("trials"))
        done = subprocess.run(command, env=environment(tmp_path / "two"), check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        folder = pull_study(url, tmp_path / "pulled")
    trials = folder.trials()
    assert killed_at < len(trials)
    assert [one.id for one in trials] == [f"t{number:05d}" for number in range(1, len(trials) + 1)]
    measured = [(one.cell.name, one.block, one.index) for one in trials if one.counts]
    assert len(measured) == len(set(measured)) == 2 * 2 * 3
    assert all(folder.requests_of(one).num_rows for one in trials if one.counts)


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "BITBENCH_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
