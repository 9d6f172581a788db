"""A budget plans blocks and rounds; a block that is complete stays so, whatever later trials take."""

from collections.abc import Iterable
from random import Random

from bitbench.analysis.elapsed import block_ends
from bitbench.analysis.sequential import sequential_turns
from bitbench.engines.null import NullEngine
from bitbench.measure.budget import StudyPace
from bitbench.measure.estimate import Estimator
from bitbench.measure.progress import CLIENT_BOUND_REPEATS, Progress, progress_excuses
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, Outcome, TrialMetrics, TrialRecord
from bitbench.study.plan import Plan, Point
from bitbench.study.study import Measure
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.support.synthetic import make_instance, make_plan, make_trial, summarize

WORKLOAD = BUILT_IN_WORKLOADS["interactive"]


def planned(names: str = "ab", **measure: object) -> tuple[Plan, StudyPace, Progress]:
    plan = make_plan(list(names), [WORKLOAD], Measure.model_validate(measure))
    engines = {"null": NullEngine()}
    pace = StudyPace(plan, engines, Estimator(plan, engines), available_bytes=2**34, on_device=False)
    return plan, pace, Progress(plan, pace)


def at(second: int) -> str:
    return f"2026-11-02T10:{second // 60:02d}:{second % 60:02d}.000+00:00"


def trial(point: Point, block: int, index: int, second: int, took_s: float) -> TrialRecord:
    speed = {"a": 100.0, "b": 101.0 + index, "c": 90.0 - index}[point.config.engine]
    fields = {"started_at": at(second), "duration_s": took_s, "round": index}
    return make_trial(point, block, index, metrics=TrialMetrics(output_throughput=speed), **fields)


def run_block(made: tuple[Plan, StudyPace, Progress], block: int, second: int, *, took_s: float) -> int:
    """All that the next group asks for, each trial taking so long. Returns when it ended."""
    plan, pace, progress = made
    group = progress.next_group()
    assert group is not None
    assert group.block == block
    for member in group.members:
        pace.add(make_instance(member.config, block, started_at=at(second), ready_s=1.0))
    index = 0
    while wanted := [point for point in plan.points if progress.wants_trial(point, block)]:
        for point in wanted:
            record = trial(point, block, index, second, took_s)
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


def test_two_blocks_decide_nothing_so_that_a_third_follows() -> None:
    """However clear they are."""
    made = planned(budget="10m")
    second = run_block(made, 0, 0, took_s=4.0)
    run_block(made, 1, second, took_s=4.0)
    group = made[2].next_group()
    assert group is not None
    assert group.block == 2
    assert len(group.members) == 2


def test_a_third_block_that_would_not_fit_is_not_begun() -> None:
    """Unless the study asks for a number of starts."""

    def blocks(**measure: object) -> int:
        made = planned(budget="10m", **measure)
        second, count = 0, 0
        while made[2].next_group() is not None:
            second = run_block(made, count, second, took_s=120.0)
            count += 1
        return count

    assert blocks() == 2
    assert blocks(starts={"min": 3, "max": 4}) == 3


def test_a_start_for_quality_alone_after_all_blocks_is_in_none_of_them() -> None:
    plan, _, progress = made = planned(budget="10m")
    second = run_block(made, 0, 0, took_s=30.0)
    second = run_block(made, 1, second, took_s=30.0)
    trials = [one for point in plan.points for block in (0, 1) for one in progress.trials_of(point, block)]
    before = block_ends(trials, [])
    assert before[0] < before[1]
    late = make_instance(plan.configs[0], 0, started_at=at(second), ready_s=10.0)
    assert block_ends(trials, [late]) == before


def test_a_start_that_failed_takes_of_the_budget() -> None:
    plan, _, _ = planned(budget="10m")
    point = plan.points[0]
    failed = make_instance(point.config, 0, started_at=at(0), ready_s=None, outcome=Outcome.TIMEOUT)
    never = {"started_at": at(600), "duration_s": 0.0, "outcome": Outcome.TIMEOUT}
    assert block_ends([make_trial(point, 0, 0, **never)], [failed]) == {0: 600.0}


def test_quality_is_beside_the_budget_however_short() -> None:
    plan, _, _ = planned(budget="10m")
    trials = [trial(plan.points[0], block, 0, 100 * block, 50.0) for block in range(2)]
    scored = QualityRecord(
        id="q0001", config=plan.configs[0], instance_id="i0001", started_at=at(50), duration_s=45.0,
        outcome=Outcome.OK,
    )  # fmt: skip
    assert block_ends(trials, []) == {0: 50.0, 1: 150.0}
    assert block_ends(trials, [scored]) == {0: 50.0, 1: 105.0}


def test_a_trial_that_never_ran_says_nothing_of_how_long_trials_take() -> None:
    plan, _, _ = planned()
    estimator = Estimator(plan, {"null": NullEngine()})
    guess_s = estimator.trial_s(plan.points[0])
    estimator.add(make_trial(plan.points[0], 0, 0, duration_s=0.0, outcome=Outcome.CRASHED))
    assert estimator.trial_s(plan.points[0]) == guess_s


def test_what_is_measured_again_of_an_earlier_block_is_beside_the_budget() -> None:
    plan, _, _ = planned(budget="10m")
    trials = [trial(point, block, 0, 100 * block, 50.0) for block in range(3) for point in plan.points[:1]]
    before = block_ends(trials, [])
    again = [trial(plan.points[1], block, 0, 1000 + 100 * block, 50.0) for block in range(2)]
    assert block_ends([*trials, *again], []) == before
    new = trial(plan.points[0], 3, 0, 1300, 50.0)
    assert block_ends([*trials, *again, new], [])[3] == before[2] + 50.0


def test_a_fixed_number_of_starts_is_kept() -> None:
    plan, pace, progress = planned(starts=3, trials=2)
    second = 0
    for block in range(3):
        second = run_block((plan, pace, progress), block, second, took_s=1.0)
    assert progress.next_group() is None
    assert {len(progress.trials_of(point, block)) for point in plan.points for block in range(3)} == {2}


def test_configs_that_do_not_fit_together_run_one_after_the_other() -> None:
    plan, pace, _ = planned(starts=2)
    assert pace.fit_together(plan.configs)
    engines = {"null": NullEngine()}
    small = StudyPace(plan, engines, Estimator(plan, engines), available_bytes=2**20, on_device=False)
    assert not small.fit_together(plan.configs)
    visits = planned(starts=2, schedule="visits")
    assert not visits[1].fit_together(plan.configs)


def test_the_rounds_of_the_first_block_follow_from_its_records_however_they_are_read() -> None:
    """A run that goes on reads all trials, then all instances, and asks once; the first one asked after each record."""
    plan, first, _ = planned("abc", budget="5m")
    records: list[TrialRecord | InstanceRecord] = []
    for place, point in enumerate(plan.points):  # starts take longer than guessed, some trials longer, some less
        second = 60 * place
        records.append(make_instance(point.config, 0, started_at=at(second), ready_s=1.0 + 4.0 * place))
        records.append(trial(point, 0, 9, second + 12, 20.0).model_copy(update={"kind": "warmup"}))
        took = ((9.0, 0.2, 1.7), (0.1, 0.1, 0.1), (3.0, 6.0, 0.2))[place]
        records += [trial(point, 0, index, second + 34 + 9 * index, took[index]) for index in range(3)]
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


def resumed(names: str, records: Iterable[TrialRecord | InstanceRecord], **measure: object) -> StudyPace:
    """As a later call of the same command knows it."""
    _, pace, _ = planned(names, **measure)
    for record in records:
        pace.add(record)
    return pace


def test_a_block_is_as_long_for_a_later_call_of_the_same_command() -> None:
    """A complete study has nothing left to do, whatever its trials took."""
    for took_s, measure in ((1.0, {"budget": "2m", "starts": 2}), (6.0, {"budget": "2m", "starts": 2})):
        plan, pace, progress = made = planned(**measure)
        second = run_block(made, 0, 0, took_s=4.0)
        wanted = pace.rounds(1)
        run_block(made, 1, second, took_s=took_s)
        records: list[TrialRecord | InstanceRecord] = [
            make_instance(one, block, started_at=at(began), ready_s=1.0)
            for block, began in enumerate((0, second))
            for one in plan.configs
        ]
        records += [one for point in plan.points for block in range(2) for one in progress.trials_of(point, block)]
        found = pace.rounds(1)
        assert (found > wanted) is (took_s < 4.0)
        assert (found < wanted) is (took_s > 4.0)
        assert resumed("ab", records, **measure).rounds(1) == found
        assert progress.next_group() is None


def test_a_budget_is_planned_for_the_starts_that_are_asked_for() -> None:
    many_rounds = {"min": 1, "max": 100}
    _, few, _ = planned(budget="2m", starts=2, trials=many_rounds)
    _, many, _ = made = planned(budget="2m", starts=6, trials=many_rounds)
    assert few.rounds(0) > many.rounds(0) > 1
    second, block = 0, 0
    while made[2].next_group() is not None:
        second = run_block(made, block, second, took_s=2.0)
        block += 1
    assert block == 6
    assert second <= 2 * 60


def test_a_study_that_has_the_most_starts_is_not_unfinished() -> None:
    """Though its budget has time left, and its question is open."""
    plan, pace, progress = planned(budget="10m", starts=2)
    records = [
        trial(point, block, index, 100 * block + 10 * index, 5.0).model_copy(
            update={"metrics": TrialMetrics(output_throughput=100.0 + (block + place) % 2)}
        )
        for block in range(2)
        for index in range(pace.rounds(block))
        for place, point in enumerate(plan.points)
    ]
    for record in records:
        pace.add(record)
        progress.add([record])
    assert progress.next_group() is None
    assert not any(point.is_unfinished for point in summarize(plan, records, []).points)


def test_a_block_that_was_resumed_in_another_way_loses_no_trial() -> None:
    """In turns at first, then alone, where a round is a place."""
    plan, _, _ = planned()
    point = plan.points[0]
    in_turns = [make_trial(point, 0, index, round=number) for index, number in enumerate((0, 2))]
    alone = [make_trial(point, 0, index) for index in (2, 3)]
    assert [turn.round for turn in sequential_turns([*in_turns, *alone])] == [0, 2, 1, 3]
    assert [turn.round for turn in sequential_turns([*alone, *in_turns])] == [1, 3, 0, 2]
    assert [turn.round for turn in sequential_turns(alone)] == [0, 1]


def test_a_figure_that_is_not_defined_ends_no_study() -> None:
    """One config, by the time per further token of answers of one token."""
    plan, pace, progress = planned("a", starts={"min": 2, "max": 3}, metric="tpot")
    for block in range(2):
        for index in range(3):
            record = make_trial(plan.points[0], block, index, metrics=TrialMetrics(output_throughput=1.0))
            pace.add(record)
            progress.add([record])
    assert progress.next_group() is None


def test_a_point_that_an_earlier_call_gave_up_is_measured_in_all_blocks_of_a_budget() -> None:
    """Beside the budget: the looks at the others stay where they were."""
    plan, _, progress = made = planned("abc", budget="5m")
    given_up = next(point for point in plan.points if point.config.engine == "c")
    second, block = 0, 0
    while progress.next_group() is not None:
        for number in range(CLIENT_BOUND_REPEATS + 1):
            late = trial(given_up, block, number, second, 1.0)
            late = late.model_copy(update={"outcome": Outcome.CLIENT_BOUND})
            if progress.accepts_trial(given_up, block):
                made[1].add(late)
                progress.add([late])
                second += 1
        second = run_block(made, block, second, took_s=4.0) if progress.next_group() is not None else second
        block += 1
    records = [one for point in plan.points for number in range(block) for one in progress.trials_of(point, number)]
    assert not any(one.counts for one in records if one.point == given_up)
    before = block_ends(records, [])
    pace = resumed("abc", records, budget="5m")
    again = Progress(plan, pace, excused=progress_excuses(records))
    again.add(records)
    blocks = []
    while (group := again.next_group()) is not None:
        blocks.append(group.block)
        second = run_block((plan, pace, again), group.block, second + 100, took_s=4.0)
    assert blocks[:2] == [0, 1]
    assert blocks == sorted(set(blocks))
    records = [one for point in plan.points for number in range(64) for one in again.trials_of(point, number)]
    after = block_ends(records, [])
    complete = range(max(before))  # the newest block is still under way
    assert [after[number] for number in complete] == [before[number] for number in complete]
