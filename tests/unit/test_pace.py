"""A budget plans blocks and rounds; a block that is complete stays so, whatever later trials take."""

from bitbench.analysis.elapsed import collect_block_ends
from bitbench.analysis.sequential import collect_trials_by_turn
from bitbench.engines.null import NullEngine
from bitbench.planning.estimate import Estimator
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, Outcome, TrialMetrics, TrialRecord
from bitbench.running.progress import CLIENT_BOUND_REPEATS, list_repeatable_rejections
from bitbench.study.plan import Point
from bitbench.study.study import Measure
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.support.paper_study import PaperStudy
from tests.support.synthetic import make_instance, make_plan, make_trial, summarize

WORKLOAD = BUILT_IN_WORKLOADS["interactive"]


def planned(names: str = "ab", **measure: object) -> PaperStudy:
    return PaperStudy(make_plan(list(names), [WORKLOAD], Measure.model_validate(measure)))


def at(second: int) -> str:
    return f"2026-11-02T10:{second // 60:02d}:{second % 60:02d}.000+00:00"


def trial(point: Point, block: int, index: int, second: int, took_s: float) -> TrialRecord:
    speed = {"a": 100.0, "b": 101.0 + index, "c": 90.0 - index}[point.config.engine]
    fields = {"started_at": at(second), "duration_s": took_s, "round": index}
    return make_trial(point, block, index, metrics=TrialMetrics(output_throughput=speed), **fields)


def run_block(study: PaperStudy, block: int, second: int, *, took_s: float) -> int:
    """All that the next group asks for, each trial taking so long. Returns when it ended."""
    group = study.next_group()
    assert group is not None
    assert group.block == block
    for member in group.members:
        study.measure(make_instance(member.config, block, started_at=at(second), ready_s=1.0))
    index = 0
    while wanted := [
        point for point in study.plan.points if study.progress.is_trial_due(point, block)
    ]:
        for point in wanted:
            study.measure(trial(point, block, index, second, took_s))
            second += int(took_s)
        index += 1
    return second


def test_a_complete_block_is_not_opened_again_by_quicker_trials() -> None:
    study = planned(budget="10m")
    second = run_block(study, 0, 0, took_s=60.0)
    assert study.rounds(0) == 1
    run_block(study, 1, second, took_s=2.0)
    group = study.next_group()
    assert group is None or group.block == 2


def test_it_ends_when_the_budget_is_spent() -> None:
    study = planned(budget="3m")
    second, blocks = 0, 0
    while study.next_group() is not None:
        second = run_block(study, blocks, second, took_s=10.0)
        blocks += 1
    assert blocks >= 2
    assert second <= 3 * 60 + 40


def test_two_blocks_decide_nothing_so_that_a_third_follows() -> None:
    """However clear they are."""
    made = planned(budget="10m")
    second = run_block(made, 0, 0, took_s=4.0)
    run_block(made, 1, second, took_s=4.0)
    group = made.next_group()
    assert group is not None
    assert group.block == 2
    assert len(group.members) == 2


def test_a_third_block_that_would_not_fit_is_not_begun() -> None:
    """Unless the study asks for a number of starts."""

    def blocks(**measure: object) -> int:
        made = planned(budget="10m", **measure)
        second, count = 0, 0
        while made.next_group() is not None:
            second = run_block(made, count, second, took_s=120.0)
            count += 1
        return count

    assert blocks() == 2
    assert blocks(starts={"min": 3, "max": 4}) == 3


def test_a_start_for_quality_alone_after_all_blocks_is_in_none_of_them() -> None:
    made = planned(budget="10m")
    plan = made.plan
    second = run_block(made, 0, 0, took_s=30.0)
    second = run_block(made, 1, second, took_s=30.0)
    trials = [
        one
        for point in plan.points
        for block in (0, 1)
        for one in made.progress.get_trials(point, block)
    ]
    before = collect_block_ends(trials, [])
    assert before[0] < before[1]
    late = make_instance(plan.configs[0], 0, started_at=at(second), ready_s=10.0)
    assert collect_block_ends(trials, [late]) == before


def test_a_start_that_failed_takes_of_the_budget() -> None:
    plan = planned(budget="10m").plan
    point = plan.points[0]
    failed = make_instance(point.config, 0, started_at=at(0), ready_s=None, outcome=Outcome.TIMEOUT)
    never = {"started_at": at(600), "duration_s": 0.0, "outcome": Outcome.TIMEOUT}
    assert collect_block_ends([make_trial(point, 0, 0, **never)], [failed]) == {0: 600.0}


def test_quality_is_beside_the_budget_however_short() -> None:
    plan = planned(budget="10m").plan
    trials = [trial(plan.points[0], block, 0, 100 * block, 50.0) for block in range(2)]
    scored = QualityRecord(
        id="q0001", config=plan.configs[0], instance_id="i0001", started_at=at(50), duration_s=45.0,
        outcome=Outcome.OK,
    )  # fmt: skip
    assert collect_block_ends(trials, []) == {0: 50.0, 1: 150.0}
    assert collect_block_ends(trials, [scored]) == {0: 50.0, 1: 105.0}


def test_a_trial_that_never_ran_says_nothing_of_how_long_trials_take() -> None:
    plan = planned().plan
    estimator = Estimator(plan, {"null": NullEngine()})
    guess_s = estimator.trial_s(plan.points[0])
    estimator.add(make_trial(plan.points[0], 0, 0, duration_s=0.0, outcome=Outcome.CRASHED))
    assert estimator.trial_s(plan.points[0]) == guess_s


def test_what_is_measured_again_of_an_earlier_block_is_beside_the_budget() -> None:
    plan = planned(budget="10m").plan
    trials = [
        trial(point, block, 0, 100 * block, 50.0) for block in range(3) for point in plan.points[:1]
    ]
    before = collect_block_ends(trials, [])
    again = [trial(plan.points[1], block, 0, 1000 + 100 * block, 50.0) for block in range(2)]
    assert collect_block_ends([*trials, *again], []) == before
    new = trial(plan.points[0], 3, 0, 1300, 50.0)
    assert collect_block_ends([*trials, *again, new], [])[3] == before[2] + 50.0


def test_a_fixed_number_of_starts_is_kept() -> None:
    study = planned(starts=3, trials=2)
    second = 0
    for block in range(3):
        second = run_block(study, block, second, took_s=1.0)
    assert study.next_group() is None
    assert {
        len(study.progress.get_trials(point, block))
        for point in study.plan.points
        for block in range(3)
    } == {2}


def test_configs_that_do_not_fit_together_run_one_after_the_other() -> None:
    study = planned(starts=2)
    both, alone = [study.plan.configs], [(config,) for config in study.plan.configs]
    assert study.residence.chunks(study.plan.points) == both
    small = PaperStudy(study.plan, available_bytes=2**20)
    assert small.residence.chunks(study.plan.points) == alone
    visits = planned(starts=2, schedule="visits")
    assert visits.residence.chunks(visits.plan.points) == alone


def test_trials_of_the_first_block_may_only_shorten_it() -> None:
    """Starts take longer than guessed, some trials longer, some less."""
    study = planned("abc", budget="5m", schedule="visits")
    study.next_group()
    asked = [study.rounds(0)]
    for place, point in enumerate(study.plan.points):
        second = 60 * place
        study.measure(
            make_instance(point.config, 0, started_at=at(second), ready_s=1.0 + 4.0 * place)
        )
        study.measure(trial(point, 0, 9, second + 12, 20.0).model_copy(update={"kind": "warmup"}))
        took = ((9.0, 0.2, 1.7), (0.1, 0.1, 0.1), (3.0, 6.0, 0.2))[place]
        for index in range(3):
            one = trial(point, 0, index, second + 34 + 9 * index, took[index])
            study.measure(one.model_copy(update={"round": None}))
            asked.append(study.rounds(0))
    assert asked == sorted(asked, reverse=True)
    assert 1 <= asked[-1] < asked[0]


def test_a_block_is_as_long_for_a_later_call_of_the_same_command() -> None:
    """A complete study has nothing left to do, whatever its trials took."""
    measure = {"budget": "2m", "starts": 2}
    for took_s in (1.0, 6.0):
        made = planned(**measure)
        second = run_block(made, 0, 0, took_s=4.0)
        wanted = made.rounds(1)
        run_block(made, 1, second, took_s=took_s)
        records: list[TrialRecord | InstanceRecord] = [
            make_instance(one, block, started_at=at(began), ready_s=1.0)
            for block, began in enumerate((0, second))
            for one in made.plan.configs
        ]
        for point in made.plan.points:
            records += [one for block in range(2) for one in made.progress.get_trials(point, block)]
        found = made.rounds(1)
        assert (found > wanted) is (took_s < 4.0)
        assert (found < wanted) is (took_s > 4.0)
        assert made.next_group() is None
        later = PaperStudy(made.plan, tasks=made.tasks)
        later.add(records)
        assert later.next_group() is None


def test_a_budget_is_planned_for_the_starts_that_are_asked_for() -> None:
    many_rounds = {"min": 1, "max": 100}
    few = planned(budget="2m", starts=2, trials=many_rounds)
    made = planned(budget="2m", starts=6, trials=many_rounds)
    assert few.rounds(0) > made.rounds(0) > 1
    second, block = 0, 0
    while made.next_group() is not None:
        second = run_block(made, block, second, took_s=2.0)
        block += 1
    assert block == 6
    assert second <= 2 * 60


def test_a_study_that_has_the_most_starts_is_not_unfinished() -> None:
    """Though its budget has time left, and its question is open."""
    study = planned(budget="10m", starts=2)
    plan = study.plan
    records = [
        trial(point, block, index, 100 * block + 10 * index, 5.0).model_copy(
            update={"metrics": TrialMetrics(output_throughput=100.0 + (block + place) % 2)}
        )
        for block in range(2)
        for index in range(study.rounds(0))
        for place, point in enumerate(plan.points)
    ]
    study.add(records)
    assert study.next_group() is None
    assert not any(point.is_unfinished for point in summarize(plan, records, []).points)


def test_a_block_that_was_resumed_in_another_way_loses_no_trial() -> None:
    """In turns at first, then alone, where a round is a place."""
    plan = planned().plan
    point = plan.points[0]
    in_turns = [make_trial(point, 0, index, round=number) for index, number in enumerate((0, 2))]
    alone = [make_trial(point, 0, index) for index in (2, 3)]
    assert [turn.round for turn in collect_trials_by_turn([*in_turns, *alone])] == [0, 2, 1, 3]
    assert [turn.round for turn in collect_trials_by_turn([*alone, *in_turns])] == [1, 3, 0, 2]
    assert [turn.round for turn in collect_trials_by_turn(alone)] == [0, 1]


def test_a_figure_that_is_not_defined_ends_no_study() -> None:
    """One config, by the time per further token of answers of one token."""
    study = planned("a", starts={"min": 2, "max": 3}, metric="tpot")
    for block in range(2):
        for index in range(3):
            metrics = TrialMetrics(output_throughput=1.0)
            study.add([make_trial(study.plan.points[0], block, index, metrics=metrics)])
    assert study.next_group() is None


def test_a_point_that_an_earlier_call_gave_up_is_measured_in_all_blocks_of_a_budget() -> None:
    """Beside the budget: the looks at the others stay where they were."""
    made = planned("abc", budget="5m")
    given_up = next(point for point in made.plan.points if point.config.engine == "c")
    second, block = 0, 0
    while made.next_group() is not None:
        for number in range(CLIENT_BOUND_REPEATS + 1):
            late = trial(given_up, block, number, second, 1.0)
            if made.progress.is_trial_possible(given_up, block):
                made.measure(late.model_copy(update={"outcome": Outcome.CLIENT_BOUND}))
                second += 1
        second = (
            run_block(made, block, second, took_s=4.0) if made.next_group() is not None else second
        )
        block += 1
    records = [
        one
        for point in made.plan.points
        for number in range(block)
        for one in _trials(made, point, number)
    ]
    assert not any(one.counts for one in records if one.point == given_up)
    before = collect_block_ends(records, [])
    again = PaperStudy(made.plan, tasks=made.tasks, repeatable=list_repeatable_rejections(records))
    again.add(records)
    blocks = []
    while (group := again.next_group()) is not None:
        blocks.append(group.block)
        second = run_block(again, group.block, second + 100, took_s=4.0)
    assert blocks[:2] == [0, 1]
    assert blocks == sorted(set(blocks))
    records = [
        one
        for point in made.plan.points
        for number in range(64)
        for one in _trials(again, point, number)
    ]
    after = collect_block_ends(records, [])
    complete = range(max(before))  # the newest block is still under way
    assert [after[number] for number in complete] == [before[number] for number in complete]


def _trials(study: PaperStudy, point: Point, block: int) -> list[TrialRecord]:
    return list(study.progress.get_trials(point, block))
