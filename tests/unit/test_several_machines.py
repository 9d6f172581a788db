"""What the schedule and the records know of several machines: blocks at once, machines that went away or differ."""

from pathlib import Path

import pytest

from bitbench.planning.estimate import Estimator
from bitbench.records.folder import StudyFolder
from bitbench.records.lock import HostFacts, Lock
from bitbench.records.trial import NOT_THE_ENGINES, Outcome, mark_lost_trial_outcomes
from bitbench.running.block_planner import BlockPlanner
from bitbench.running.progress import LOST_REPEATS, list_repeatable_rejections
from bitbench.running.residence import Residence
from bitbench.util.errors import NotComparableError
from tests.support.paper_study import ENGINES
from tests.support.synthetic import make_instance, make_trial
from tests.unit.test_pace import planned
from tests.unit.test_schedule import plan_of, study_of, trial


def planner_of(at_once: int, **measure: object) -> BlockPlanner:
    plan = planned(**measure).plan
    residence = Residence(plan, ENGINES, available_bytes=2**34, on_device=False)
    return BlockPlanner(plan, Estimator(plan, ENGINES), residence, at_once=at_once)


def test_blocks_are_decided_for_as_many_machines_as_there_are() -> None:
    planner = planner_of(4, starts={"min": 3, "max": 8}, trials=1)
    assert planner.blocks_in_any_case == 3
    assert [planner.basis(block) for block in range(8)] == [0, 0, 0, 3, 3, 3, 3, 7]


def test_one_machine_decides_after_each_block() -> None:
    planner = planner_of(1, starts={"min": 2, "max": 8}, trials=1)
    assert [planner.basis(block) for block in range(5)] == [0, 0, 2, 3, 4]


def test_a_lost_machine_is_not_the_engines_fault() -> None:
    assert Outcome.LOST in NOT_THE_ENGINES
    plan = plan_of()
    study, point = study_of(plan), plan.points[0]
    study.next_group()
    progress = study.progress
    lost = make_instance(point.config, 0, outcome=Outcome.LOST)
    for _ in range(LOST_REPEATS):
        progress.add([lost, trial(point, 0, Outcome.LOST)])
        assert progress.is_trial_due(point, 0)
    progress.add([lost])
    assert not progress.is_trial_possible(point, 0)  # whatever is wrong there, it is not chance
    assert progress.is_trial_possible(point, 1)
    later = study_of(plan, repeatable=list_repeatable_rejections([lost]))
    later.add([lost] * (LOST_REPEATS + 1))
    assert later.progress.is_trial_possible(point, 0)  # another call, with other machines


def test_what_a_lost_block_had_before_does_not_count() -> None:
    point = plan_of().points[0]
    before, after = (
        make_trial(point, 0, index, instance_id=name)
        for index, name in enumerate(["before", "after"])
    )
    other = make_trial(point, 1, 0, instance_id="other")
    failed = make_trial(point, 0, 2, instance_id="before", outcome=Outcome.CRASHED)
    instances = [
        make_instance(point.config, 0, id="before"),
        make_instance(point.config, 1, id="other"),
        make_instance(point.config, 0, id="lost", outcome=Outcome.LOST),
        make_instance(point.config, 0, id="after"),
    ]
    read = mark_lost_trial_outcomes([before, after, other, failed], instances)
    assert [one.outcome for one in read] == [Outcome.LOST, Outcome.OK, Outcome.OK, Outcome.CRASHED]
    assert mark_lost_trial_outcomes([before], instances[:1]) == [before]


HOST = HostFacts(cpu_model="X", cores=4, threads=8, memory_bytes=64 * 2**30)


def test_a_folder_of_mixed_classes_is_not_read(tmp_path: Path) -> None:
    plan = plan_of()
    folder = StudyFolder(tmp_path)
    with folder.open_writer() as writer:
        writer.write_lock(
            Lock(plan=plan, host=HOST, hosts={"a": HOST, "b": HOST.model_copy(update={"cores": 2})})
        )
    with pytest.raises(NotComparableError, match="b differs in cores"):
        folder.read()
