"""A budget plans blocks and rounds; a block that is complete stays so, whatever later trials take."""

from random import Random

from bitbench.core.asked.study import Measure
from bitbench.core.asked.workload import BUILT_IN_WORKLOADS
from bitbench.core.cell import Cell, Plan, Purpose
from bitbench.core.recorded.trial import InstanceRecord, TrialMetrics, TrialRecord
from bitbench.engines.null import NullEngine
from bitbench.lab.pace import StudyPace
from bitbench.planning.estimate import Estimator
from bitbench.planning.schedule import Progress
from tests.unit.synthetic import make_instance, make_plan, make_trial

WORKLOAD = BUILT_IN_WORKLOADS["interactive"]


def planned(names: str = "ab", **measure: object) -> tuple[Plan, StudyPace, Progress]:
    plan = make_plan(list(names), [WORKLOAD], Measure.model_validate(measure))
    engines = {"null": NullEngine()}
    pace = StudyPace(plan, engines, Estimator(plan, engines), available_bytes=2**34, on_device=False)
    return plan, pace, Progress(plan, pace)


def at(second: int) -> str:
    return f"2026-11-02T10:{second // 60:02d}:{second % 60:02d}.000+00:00"


def trial(cell: Cell, block: int, index: int, second: int, took_s: float) -> TrialRecord:
    speed = {"a": 100.0, "b": 101.0 + index, "c": 90.0 - index}[cell.contender.engine]
    fields = {"started_at": at(second), "duration_s": took_s, "round": index}
    return make_trial(cell, block, index, metrics=TrialMetrics(output_throughput=speed), **fields)


def run_block(made: tuple[Plan, StudyPace, Progress], block: int, second: int, *, took_s: float) -> int:
    """All that the next group asks for, each trial taking so long. Returns when it ended."""
    plan, pace, progress = made
    group = progress.next_group()
    assert group is not None
    assert group.block == block
    for member in group.members:
        pace.add(make_instance(member.contender, block, started_at=at(second), ready_s=1.0))
    index = 0
    while wanted := [cell for cell in plan.cells if progress.wants_trial(cell, block)]:
        for cell in wanted:
            record = trial(cell, block, index, second, took_s).model_copy(update={"purpose": group.purpose})
            pace.add(record)
            progress.add([record])
            second += int(took_s)
        index += 1
    return second


def test_a_complete_block_is_not_opened_again_by_quicker_trials() -> None:
    plan, pace, progress = planned(budget="10m")
    second = run_block((plan, pace, progress), 0, 0, took_s=60.0)
    assert pace.rounds(0) == 1
    second = run_block((plan, pace, progress), 1, second, took_s=2.0)
    group = progress.next_group()
    assert group is None or group.block == 2


def test_it_ends_when_the_budget_is_spent() -> None:
    plan, pace, progress = planned(budget="3m")
    second, blocks = 0, 0
    while progress.next_group() is not None:
        second = run_block((plan, pace, progress), blocks, second, took_s=10.0)
        blocks += 1
    assert blocks >= 2
    assert second <= 3 * 60 + 40


def test_a_fixed_number_of_starts_is_kept() -> None:
    plan, pace, progress = planned(instances=3, trials=2)
    second = 0
    for block in range(3):
        second = run_block((plan, pace, progress), block, second, took_s=1.0)
    assert progress.next_group() is None
    assert {len(progress.trials_of(cell, block)) for cell in plan.cells for block in range(3)} == {2}


def test_contenders_that_do_not_fit_together_run_one_after_the_other() -> None:
    plan, pace, _ = planned(instances=2)
    assert pace.fit_together(plan.contenders)
    engines = {"null": NullEngine()}
    small = StudyPace(plan, engines, Estimator(plan, engines), available_bytes=2**20, on_device=False)
    assert not small.fit_together(plan.contenders)
    visits = planned(instances=2, schedule="visits")
    assert not visits[1].fit_together(plan.contenders)


def run_to_the_confirmation(made: tuple[Plan, StudyPace, Progress]) -> tuple[int, int]:
    """Trials of a few seconds, until a block is for confirming. Which one, and when it begins."""
    second, block = 0, 0
    while made[1].purpose(block) is Purpose.SELECTION:
        second = run_block(made, block, second, took_s=4.0)
        block += 1
        assert block < 20
    return block, second


def test_the_chosen_one_is_confirmed_within_the_budget() -> None:
    _, _, progress = made = planned("abc", budget="5m")
    block, second = run_to_the_confirmation(made)
    group = progress.next_group()
    assert group is not None
    assert (group.block, group.purpose) == (block, Purpose.CONFIRMATION)
    assert {member.contender.engine for member in group.members} == {"a", "b"}  # the baseline, and the fastest
    second = run_block(made, block, second, took_s=4.0)
    assert progress.next_group() is None
    assert second <= 5 * 60


def test_an_interrupted_confirmation_goes_on() -> None:
    plan, _, progress = made = planned("abc", budget="5m")
    block, second = run_to_the_confirmation(made)
    cell = next(cell for cell in plan.cells if cell.contender.engine == "b")
    first = trial(cell, block, 0, second, 4.0).model_copy(update={"purpose": Purpose.CONFIRMATION})
    records = [one for cell in plan.cells for number in range(block) for one in progress.trials_of(cell, number)]
    _, resumed, rest = planned("abc", budget="5m")
    for record in [*records, first]:
        resumed.add(record)
        rest.add([record])
    group = rest.next_group()
    assert group is not None
    assert (group.block, group.purpose) == (block, Purpose.CONFIRMATION)
    assert {member.contender.engine for member in group.members} <= {"a", "b"}


def test_two_contenders_need_no_confirmation() -> None:
    _, pace, progress = made = planned(budget="5m")
    second, block = 0, 0
    while progress.next_group() is not None:
        second = run_block(made, block, second, took_s=4.0)
        block += 1
    assert {pace.purpose(number) for number in range(block)} == {Purpose.SELECTION}


def test_the_rounds_of_the_first_block_follow_from_its_records_however_they_are_read() -> None:
    """A run that goes on reads all trials, then all instances, and asks once; the first one asked after each record."""
    plan, first, _ = planned("abc", budget="5m")
    records: list[TrialRecord | InstanceRecord] = []
    for place, cell in enumerate(plan.cells):  # starts take longer than guessed, some trials longer, some less
        second = 60 * place
        records.append(make_instance(cell.contender, 0, started_at=at(second), ready_s=1.0 + 4.0 * place))
        records.append(trial(cell, 0, 9, second + 12, 20.0).model_copy(update={"kind": "warmup"}))
        took = ((9.0, 0.2, 1.7), (0.1, 0.1, 0.1), (3.0, 6.0, 0.2))[place]
        records += [trial(cell, 0, index, second + 34 + 9 * index, took[index]) for index in range(3)]
    asked = [first.rounds(0)]
    for record in records:
        first.add(record)
        asked.append(first.rounds(0))
    assert asked == sorted(asked, reverse=True)  # it only becomes shorter
    assert 1 <= asked[-1] < asked[0]
    for seed in range(10):
        _, resumed, _ = planned("abc", budget="5m")
        order = list(records)
        Random(seed).shuffle(order)
        for record in order:
            resumed.add(record)
            if seed % 2:
                resumed.rounds(0)
        assert resumed.rounds(0) == asked[-1]
