"""A study on several machines: a block on each, everything once, also where one dies in the middle."""

import json
from pathlib import Path

import pytest

from bitbench.records.trial import Outcome
from tests.features.fleet.fleet_study import FleetRun, check_complete
from tests.length import by_length

pytestmark = pytest.mark.usefixtures("only_nodes")


@pytest.mark.parametrize("victim", by_length(["node"], ["node", "engine"]))
def test_a_machine_that_dies_is_not_the_engines_fault(tmp_path: Path, victim: str) -> None:
    run = FleetRun(tmp_path, "local:2")
    run.wait_for(lambda: len(run.folder.trials()) >= 5)
    run.wait_for(lambda: {one.host for one in run.folder.instances()} == {"local-1", "local-2"})
    run.wait_for(lambda: len(run.servers_of_first()) > 0)
    (run.nodes() if victim == "node" else run.servers_of_first())[0].kill()
    assert run.wait() == 0, run.said
    check_complete(run.folder)
    lost = [instance for instance in run.folder.instances() if instance.outcome is Outcome.LOST]
    if victim == "node":
        assert len(lost) == 1
        assert "Not the engine's doing" in (lost[0].cause or "")
        written = [json.loads(line) for line in (run.folder.path / "trials.jsonl").read_text().splitlines()]
        taken_back = [trial.id for trial in run.folder.trials() if trial.outcome is Outcome.LOST]
        assert {one["outcome"] for one in written if one["id"] in taken_back} <= {"ok", "lost"}
    else:
        assert not lost
    assert not run.left_over()
