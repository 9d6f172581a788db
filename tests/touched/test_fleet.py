"""A study on several machines: speeds that differ, drivers that are killed, a machine that is gone when it resumes."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from bitbench.features.fleet.channel import NODE
from bitbench.features.fleet.computing import MachineFactor
from bitbench.features.fleet.driver import fleet_driver_state
from bitbench.measure.workplace import default_home
from bitbench.records.trial import Outcome
from bitbench.reports.write import StudyReport
from tests.features.fleet.fleet_study import BLOCKS, FleetRun, check_complete


def test_blocks_run_on_two_machines_at_once(tmp_path: Path) -> None:
    run = FleetRun(tmp_path, "local:2")
    assert run.wait() == 0, run.said
    check_complete(run.folder)
    instances, lock = run.folder.instances(), run.folder.lock()
    assert {instance.host for instance in instances} == {"local-1", "local-2"}
    assert lock is not None
    assert set(lock.hosts) == {"local-1", "local-2"}
    assert not run.left_over()
    logs = {path.name: path.stat().st_size for path in run.folder.logs.iterdir()}
    assert set(logs) == {f"{instance.id}.log" for instance in instances}
    report = (run.folder.report / "report.md").read_text()
    assert "local-2" in report
    state = fleet_driver_state(str(run.folder.path))
    assert sum(machine.blocks for machine in state.machines) == BLOCKS


UNEQUAL = """#!/bin/sh
# Stands in for ssh: a machine of its own speed. The last two words are its name and what it runs.
while [ $# -gt 2 ]; do shift; done
[ "$1" = slow ] && export BITBENCH_NULL_SLOWDOWN=1.3
BITBENCH_MACHINE_SLOT="$1" exec sh -c "$2"
"""
EQUAL = """
name: equal
engines:
  - {engine: null, name: a, args: {ttft: 600ms, tpot: 300ms, vary_instance: 1%}}
  - {engine: null, name: b, args: {ttft: 600ms, tpot: 300ms, vary_instance: 1%}}
workloads:
  - {name: one, concurrency: 1, input_tokens: 8, output_tokens: 2}
measure: {starts: 6, trials: 2, metric: latency}
"""


def test_equal_configs_on_machines_that_differ_by_30_percent(tmp_path: Path) -> None:
    stand_in = tmp_path / "bin" / "ssh"
    stand_in.parent.mkdir()
    stand_in.write_text(UNEQUAL)
    stand_in.chmod(0o755)
    environment = {
        "PATH": f"{stand_in.parent}:{os.environ['PATH']}",
        "BITBENCH_SSH_NODE": f"{sys.executable} -P -m {NODE}",
    }
    run = FleetRun(tmp_path, "ssh://quick,slow", EQUAL, environment)
    run.wait()
    summary = StudyReport(run.folder, default_home()).summary
    (ranking,) = summary.rankings
    assert all(len(entry.undecided_with) == 1 for entry in ranking.entries), run.said
    factor = summary.part(MachineFactor)
    assert factor is not None, run.said
    speeds = {machine.name: machine.speed for machine in factor.machines}
    assert speeds["quick"] / speeds["slow"] == pytest.approx(1.3, rel=0.1)
    assert (factor.share or 0) > 0.5


def test_a_killed_driver_resumes_by_the_same_command(tmp_path: Path) -> None:
    rng, ended = random.Random(5), set[str]()
    for _ in range(4):
        run = FleetRun(tmp_path, "local:2")
        time.sleep(rng.uniform(2.0, 6.0))
        if run.process.poll() is None:
            os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        assert not run.left_over()
        now = {trial.id for trial in run.folder.trials()}
        assert ended <= now
        ended = now
    run = FleetRun(tmp_path, "local:2")
    assert run.wait() == 0, run.said
    check_complete(run.folder)
    assert ended <= {trial.id for trial in run.folder.trials()}
    assert not [one for one in run.folder.instances() if one.outcome is Outcome.LOST]


def test_a_block_that_was_begun_elsewhere_is_repeated(tmp_path: Path) -> None:
    """One machine is gone when the study is resumed: its block is not continued on another one."""
    run = FleetRun(tmp_path, "local:2")
    run.wait_for(lambda: {one.host for one in run.folder.instances()} == {"local-1", "local-2"})
    run.wait_for(lambda: sum(trial.counts for trial in run.folder.trials()) >= 3)
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    run.left_over()
    again = FleetRun(tmp_path, "local:1")
    assert again.wait() == 0, again.said
    check_complete(again.folder)  # what counts of a block is of one machine
    assert {one.host for one in again.folder.instances()} == {"local-1", "local-2"}
