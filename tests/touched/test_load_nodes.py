"""Load from several node programs: what is told of all of them, those that are lost again and again, and clocks that
cannot be read well. The rest is in tests/unit."""

import os
import signal
from pathlib import Path

import pytest

from bitbench.features.fleet import load_fleet
from bitbench.features.fleet.machines import MOST_LOSSES
from bitbench.loadgen.verdict import load_verdict
from bitbench.ports import LoadLost
from bitbench.records.trial import LoadProgress, Outcome
from bitbench.util.errors import FleetError
from tests.features.fleet.test_load_nodes import SERVER, fleet, fleet_with_clocks, job, killing, node_programs
from tests.unit.null_instance import running


def test_how_it_goes_is_told_of_all_nodes_together(tmp_path: Path) -> None:
    told: list[LoadProgress] = []
    with running({"ttft": "100ms", "tpot": "10ms"}, tmp_path) as endpoint, fleet(2) as client:
        client.run(job(endpoint, concurrency=4, output_tokens=40, requests=12), told.append)
    assert len(told) >= 3
    assert {progress.requests for progress in told} == {12}
    assert max(progress.running for progress in told) == 4
    assert (told[-1].succeeded, told[-1].failed) == (12, 0)
    assert told[-1].ttft is not None


def test_a_load_worker_killed_on_a_node_is_said_too(tmp_path: Path) -> None:
    gone: list[int] = []

    def kill_worker(progress: LoadProgress) -> None:
        if not gone and progress.sent:
            gone.append(node_programs()[0].children()[0].pid)
            os.kill(gone[0], signal.SIGKILL)

    with running({"ttft": "300ms", "tpot": "20ms"}, tmp_path) as endpoint, fleet(2) as client:
        with pytest.raises(LoadLost, match=r"local-1 was lost .*load worker was ended by signal 9"):
            client.run(job(endpoint, output_tokens=20), kill_worker)
        assert client.run(job(endpoint, requests=6)).requests.num_rows == 6


def test_a_node_that_is_lost_again_and_again_ends_it(tmp_path: Path) -> None:
    with running({"ttft": "300ms", "tpot": "20ms"}, tmp_path) as endpoint, fleet(2) as client:
        for _ in range(MOST_LOSSES - 1):
            with pytest.raises(LoadLost):
                client.run(job(endpoint, output_tokens=20), killing(0, []))
        with pytest.raises(FleetError, match=r"local-1 was lost 3 times .*--into resumes"):
            client.run(job(endpoint, output_tokens=20), killing(0, []))


def test_a_clock_that_cannot_be_read_well_makes_it_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question takes 15 ms to get there, so nothing is known better than to 7.5 ms."""
    monkeypatch.setattr(load_fleet, "EXCHANGES", 5)
    with running(SERVER, tmp_path) as endpoint:
        asked = job(endpoint, requests=24)
        with fleet_with_clocks(lambda: 0.0, lambda: 0.0, way_s=0.015) as client:
            result = client.run(asked)
    assert all(node.clock_before.bound_s >= 0.0075 for node in result.health.nodes)
    failure = load_verdict(result.requests, asked.workload, result.health)
    assert failure is not None
    assert failure.outcome is Outcome.DISTURBED
