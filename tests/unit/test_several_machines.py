"""What the schedule and the records know of several machines: blocks at once, machines that went away or differ."""

from pathlib import Path

import pytest

from bitbench.measure.progress import LOST_REPEATS, Progress, progress_excuses
from bitbench.measure.runner import run_pace
from bitbench.measure.workplace import Workplace
from bitbench.records.folder import StudyFolder
from bitbench.records.lock import HostFacts, Lock
from bitbench.records.trial import NOT_THE_ENGINES, Outcome, TrialMetrics, mark_lost_trial_outcomes
from bitbench.util.errors import NotComparableError
from tests.support.synthetic import make_instance, make_trial
from tests.unit.test_pace import planned
from tests.unit.test_schedule import FixedPace, plan_of, trial


def test_blocks_that_are_run_in_any_case_run_at_once() -> None:
    plan, _, _ = planned(starts={"min": 3, "max": 8}, trials=1)
    pace = run_pace(plan, Workplace(), at_once=4)
    progress = Progress(plan, pace)
    assert [progress.next_block(set(range(taken))) for taken in range(4)] == [0, 1, 2, None]
    for block in range(3):
        for point in plan.points:
            speed = 100.0 if point.config.engine == "a" else (90.0, 112.0, 97.0)[block]
            record = make_trial(point, block, 0, metrics=TrialMetrics(output_throughput=speed))
            progress.add([record])
            pace.add(record)
    assert pace.basis(3) == pace.basis(6) == 3  # decided at once for as many as there are machines
    assert pace.basis(7) == 7
    assert progress.next_block() == 3
    assert progress.next_block({3, 4, 5, 6}) is None


def test_one_machine_decides_after_each_block() -> None:
    _, pace, _ = planned(starts={"min": 2, "max": 8}, trials=1)
    assert [pace.basis(block) for block in range(5)] == [0, 0, 2, 3, 4]


def test_a_lost_machine_is_not_the_engines_fault() -> None:
    assert Outcome.LOST in NOT_THE_ENGINES
    plan = plan_of()
    progress, point = Progress(plan, FixedPace()), plan.points[0]  # type: ignore[arg-type]
    lost = make_instance(point.config, 0, outcome=Outcome.LOST)
    for _ in range(LOST_REPEATS):
        progress.add([lost, trial(point, 0, Outcome.LOST)])
        assert progress.wants_trial(point, 0)
    progress.add([lost])
    assert not progress.accepts_trial(point, 0)  # whatever is wrong there, it is not chance
    assert progress.accepts_trial(point, 1)
    later = Progress(plan, FixedPace(), excused=progress_excuses([lost]))  # type: ignore[arg-type]
    later.add([lost] * (LOST_REPEATS + 1))
    assert later.accepts_trial(point, 0)  # another call, with other machines


def test_what_a_lost_block_had_before_does_not_count() -> None:
    point = plan_of().points[0]
    before, after = (make_trial(point, 0, index, instance_id=name) for index, name in enumerate(["before", "after"]))
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
    with folder.writing() as writer:
        writer.write_lock(Lock(plan=plan, host=HOST, hosts={"a": HOST, "b": HOST.model_copy(update={"cores": 2})}))
    with pytest.raises(NotComparableError, match="b differs in cores"):
        folder.read()
