"""Addresses, block lines, paces and clocks: what several machines need and no cluster is needed to test."""

import time
from pathlib import Path

import pytest

from bitbench.features.fleet.cluster import (
    ClusterAddress,
    connect_cluster,
    list_places,
    parse_cluster_address,
)
from bitbench.features.fleet.computing import summarize_fleet_speeds
from bitbench.features.fleet.load import ClockComparison
from bitbench.features.fleet.pace import ClusterPlanner, TimedBlock
from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import make_estimator
from bitbench.records.block_lines import BlockLines
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.lock import Lock
from bitbench.records.trial import TrialMetrics
from bitbench.running.progress import BlockTask
from bitbench.running.runner import make_residence
from bitbench.util.errors import FleetError, StoreError, UsageError
from tests.support.synthetic import make_instance, make_trial
from tests.unit.test_pace import planned


def test_addresses() -> None:
    assert parse_cluster_address("gpus") == ClusterAddress(None, per_gpu=True)
    assert parse_cluster_address("ray://h:1") == ClusterAddress("h:1")
    assert parse_cluster_address("ray://h:1?resource=a&per=gpu") == ClusterAddress("h:1", "a", True)
    assert parse_cluster_address("ray://h:1?resource=a100").resource == "a100"
    for wrong in ("ray://", "ray://h:1?per=cow", "ray://h:1?x=1", "gpus:2"):
        with pytest.raises(UsageError, match="--on"):
            parse_cluster_address(wrong)


class FakeRay:
    """Two nodes, one of them with two GPUs, and the head without processors."""

    def nodes(self) -> list[dict[str, object]]:
        def node(name: str, **resources: float) -> dict[str, object]:
            return {"NodeName": name, "NodeID": name, "Alive": True, "Resources": resources}

        return [node("head"), node("n0", CPU=8), node("n1", CPU=8, GPU=2)]


def test_places_take_whole_nodes_or_a_gpu_each() -> None:
    by_node = list_places(FakeRay(), ClusterAddress("h:1"))
    assert [(place.name, place.cpus, place.gpus) for place in by_node] == [
        ("n0", 8, 0),
        ("n1", 8, 2),
    ]
    by_gpu = list_places(FakeRay(), ClusterAddress("h:1", per_gpu=True))
    assert [(place.name, place.cpus, place.gpus) for place in by_gpu] == [
        ("n1:0", 4, 1),
        ("n1:1", 4, 1),
    ]
    assert [
        place.name for place in list_places(FakeRay(), ClusterAddress("h:1", resource="GPU"))
    ] == ["n1"]


def test_an_open_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with (
        pytest.raises(FleetError, match="RAY_AUTH_MODE=disabled"),
        connect_cluster(ClusterAddress("127.0.0.1:1")),
    ):
        pass


def test_block_lines_survive_a_kill(tmp_path: Path) -> None:
    lines = BlockLines(StudyFolder(tmp_path))
    lines.mark_void(lines.begin(0, "n0", 3, ()), "n0 was lost")
    second = lines.begin(0, "n1", 3, ())
    lines.end(lines.begin(1, "n0", 3, ()), 2, 1.5)
    with (tmp_path / "blocks.jsonl").open("ab") as file:
        file.write(b'{"block": 2, "att')  # nobody acted on it
    again = BlockLines(StudyFolder(tmp_path)).newest
    assert again[0] == second
    assert second.attempt == 2
    assert (again[1].event, again[1].rounds, again[1].seconds) == ("ended", 2, 1.5)
    assert set(again) == {0, 1}
    (tmp_path / "blocks.jsonl").write_text("{}\n")
    with pytest.raises(StoreError, match=r"blocks\.jsonl:1"):
        BlockLines(StudyFolder(tmp_path))


def test_a_budget_keeps_all_nodes_busy_and_ends(tmp_path: Path) -> None:
    plan = planned(budget="100s", starts={"min": 2, "max": 12}, trials={"min": 1, "max": 20}).plan
    lines = BlockLines(StudyFolder(tmp_path))
    estimator, residence = make_estimator(plan, Workplace()), make_residence(plan, Workplace())
    planner = ClusterPlanner(plan, estimator, residence, 4, lines)
    tasks = [planner.decide(block) for block in range(8)]
    assert [task.rounds for task in tasks if task] == [20] * 8  # four nodes, two blocks each
    assert planner.seconds() == pytest.approx(50, abs=1)
    for block in range(8):
        lines.end(lines.begin(block, "n", 20, ()), 7, 49.0)
    assert (
        ClusterPlanner(plan, estimator, residence, 4, lines).decide(8) is None
    )  # 2 s are left, and a block took 49


def test_a_block_ends_when_its_share_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(starts=2, trials={"min": 1, "max": 20}, budget="100s").plan
    moment = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: moment)
    timed = TimedBlock(BlockTask(0, 20, frozenset(plan.points)), 30.0)
    rounds = 0
    while timed.task.rounds > rounds:
        for point in plan.points:
            moment += 2.0
            timed.add(make_trial(point, 0, rounds, duration_s=2.0))
        rounds += 1
    assert 30.0 - 2 * 2.0 * len(plan.points) <= rounds * 2.0 * len(plan.points) <= 30.0


def test_a_clock_is_bounded_whatever_the_way_takes() -> None:
    ahead_ns, comparison = 5_000_000_000, ClockComparison()
    for there_ns, back_ns in ((900_000, 100_000), (200_000, 700_000), (300_000, 300_000)):
        asked_ns = 1_000
        comparison.add(asked_ns, asked_ns + there_ns + ahead_ns, asked_ns + there_ns + back_ns)
    assert comparison.least_ns <= ahead_ns <= comparison.most_ns
    assert abs(comparison.offset_ns - ahead_ns) <= comparison.bound_s * 1e9 <= 150_000


def test_a_machine_that_is_faster_is_so_over_all_points() -> None:
    plan = planned(starts=4, trials=1).plan
    instances = [
        make_instance(plan.configs[0], block, id=f"i{block}", host="nm"[block % 2])
        for block in range(4)
    ]
    trials = []
    for block in range(4):
        for number, point in enumerate(plan.points):
            metrics = TrialMetrics(
                output_throughput=100.0 * (1 + number) * (1.21 if block % 2 else 1.0)
            )
            trials.append(make_trial(point, block, 0, instance_id=f"i{block}", metrics=metrics))
    records = StudyRecords("x", Lock(plan=plan), trials=trials, instances=instances)
    found = summarize_fleet_speeds(records)
    assert found is not None
    speeds = {machine.name: machine.speed for machine in found.machines}
    assert speeds == {"n": pytest.approx(1 / 1.1), "m": pytest.approx(1.1)}
    assert [machine.blocks for machine in found.machines] == [2, 2]
    alone = [instance.model_copy(update={"host": "n"}) for instance in instances]
    assert (
        summarize_fleet_speeds(StudyRecords("x", Lock(plan=plan), trials=trials, instances=alone))
        is None
    )
