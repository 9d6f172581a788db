"""The order of a study, and that it resumes from records alone."""

from bitbench.engines.null import NullEngine
from bitbench.records.trial import Memory, Outcome, TrialMetrics, TrialRecord
from bitbench.running.progress import (
    CLIENT_BOUND_REPEATS,
    DISTURBED_REPEATS,
    list_repeatable_rejections,
)
from bitbench.running.residence import RESIDENT_SHARE, Residence
from bitbench.study.plan import Config, Group, Member, Plan, Point
from bitbench.study.study import Study
from bitbench.study.variant import Variant
from tests.support.paper_study import ENGINES, FixedPlanner, FixedResidence, PaperStudy


def plan_of(engines: int = 3, workloads: int = 2, **measure: object) -> Plan:
    study = Study.model_validate(
        {
            "name": "s",
            "engines": [{"engine": "null", "name": f"e{i}"} for i in range(engines)],
            "workloads": [
                {"name": f"w{i}", "concurrency": 1, "input_tokens": 1, "output_tokens": 2}
                for i in range(workloads)
            ],
            "measure": {"starts": 2, "trials": {"min": 2, "max": 4}, **measure},
        }
    )
    points = tuple(
        Point(config=Config(variant="none", engine=setup.name), workload=workload.name)
        for setup in study.engines
        for workload in study.workloads
    )
    return Plan(
        study=study, variants=(Variant(name="none", model="none", recipe="none"),), points=points
    )


def trial(
    point: Point,
    block: int,
    outcome: Outcome = Outcome.OK,
    value: float = 1.0,
    duration: float = 1.0,
) -> TrialRecord:
    return TrialRecord(
        id="t", point=point, block=block, index=0, instance_id="i", started_at="", duration_s=duration, outcome=outcome,
        metrics=TrialMetrics(output_throughput=value),
    )  # fmt: skip


def turn(point: Point, number: int) -> TrialRecord:
    return trial(point, 0).model_copy(update={"round": number})


def study_of(
    plan: Plan,
    *,
    blocks: int = 2,
    trials: int = 2,
    together: bool = False,
    most: int = 1,
    closed: tuple[Point, ...] = (),
    repeatable: frozenset[str] = frozenset(),
) -> PaperStudy:
    planner, residence = (
        FixedPlanner(plan, blocks, trials, closed),
        FixedResidence(plan, together, most),
    )
    return PaperStudy(plan, planner, residence, repeatable=repeatable)


def run_to_the_end(study: PaperStudy, outcomes: dict[Point, Outcome] | None = None) -> list[Group]:
    groups = []
    while (group := study.next_group()) is not None:
        groups.append(group)
        for member in group.members:
            for workload in member.workloads:
                point = Point(config=member.config, workload=workload.name)
                while study.progress.is_trial_due(point, group.block):
                    study.measure(
                        trial(point, group.block, (outcomes or {}).get(point, Outcome.OK))
                    )
        assert len(groups) < 100
    return groups


def names(group: Group) -> list[str]:
    return [member.config.engine for member in group.members]


def test_every_block_starts_every_config_once_in_an_order_of_its_own() -> None:
    plan = plan_of(engines=6)
    groups = run_to_the_end(study_of(plan))
    assert len(groups) == 12
    orders = [
        [name for group in groups if group.block == block for name in names(group)]
        for block in (0, 1)
    ]
    assert sorted(orders[0]) == sorted(orders[1]) == [f"e{number}" for number in range(6)]
    assert orders[0] != orders[1]


def test_configs_that_fit_together_are_one_group() -> None:
    plan = plan_of(engines=6)
    groups = run_to_the_end(study_of(plan, together=True))
    assert [(group.block, len(group.members), group.rounds) for group in groups] == [
        (0, 6, 2),
        (1, 6, 2),
    ]
    assert names(groups[0]) != names(groups[1])


def test_the_order_follows_from_the_seed() -> None:
    plan = plan_of(engines=6)
    assert run_to_the_end(study_of(plan)) == run_to_the_end(study_of(plan))
    other = plan.model_copy(update={"study": plan.study.model_copy(update={"seed": 9})})
    assert run_to_the_end(study_of(other)) != run_to_the_end(study_of(plan))


def test_a_config_without_an_open_question_is_not_started_again() -> None:
    plan = plan_of()
    decided = tuple(point for point in plan.points if point.config.engine == "e1")
    groups = run_to_the_end(study_of(plan, together=True, closed=decided))
    assert [len(group.members) for group in groups] == [3, 2]
    assert "e1" not in names(groups[1])


def test_what_cannot_work_is_tried_once_and_bad_luck_twice() -> None:
    plan = plan_of()
    unsupported, crashing = plan.points[0], plan.points[2]
    study = study_of(plan, blocks=4)
    progress = study.progress
    run_to_the_end(study, {unsupported: Outcome.UNSUPPORTED, crashing: Outcome.CRASHED})
    assert [len(progress.get_trials(unsupported, block)) for block in range(4)] == [1, 0, 0, 0]
    assert [len(progress.get_trials(crashing, block)) for block in range(4)] == [1, 1, 0, 0]


def test_a_client_bound_trial_is_repeated_but_not_for_ever() -> None:
    plan = plan_of(engines=1, workloads=1)
    study = study_of(plan, blocks=1)
    study.next_group()
    study.add([trial(plan.points[0], 0, Outcome.CLIENT_BOUND)])
    assert study.progress.is_trial_due(plan.points[0], 0)
    run_to_the_end(study, {plan.points[0]: Outcome.CLIENT_BOUND})
    assert len(study.progress.get_trials(plan.points[0], 0)) == CLIENT_BOUND_REPEATS + 1


def test_a_disturbed_trial_is_repeated_once_per_block_and_never_given_up() -> None:
    plan = plan_of(engines=1, workloads=1)
    study = study_of(plan, blocks=4)
    run_to_the_end(study, {plan.points[0]: Outcome.DISTURBED})
    assert [len(study.progress.get_trials(plan.points[0], block)) for block in range(4)] == [
        DISTURBED_REPEATS + 1
    ] * 4


def spoiled(point: Point, block: int, outcome: Outcome, count: int) -> list[TrialRecord]:
    """Of an earlier call, in the first round."""
    found = [trial(point, block, outcome) for _ in range(count)]
    return [
        one.model_copy(update={"id": f"{outcome}-{block}-{place}"})
        for place, one in enumerate(found)
    ]


def test_what_an_earlier_call_rejected_does_not_count_against_this_one() -> None:
    plan = plan_of(engines=1, workloads=1)
    (point,) = plan.points
    late = spoiled(point, 0, Outcome.CLIENT_BOUND, CLIENT_BOUND_REPEATS + 1)
    disturbed = spoiled(point, 1, Outcome.DISTURBED, DISTURBED_REPEATS + 1)
    study = study_of(plan, repeatable=list_repeatable_rejections([*late, *disturbed]))
    study.add([*late, *disturbed])
    progress = study.progress
    assert len(progress.get_trials(point, 0)) == len(late)  # the next has another number
    groups = run_to_the_end(study, {point: Outcome.CLIENT_BOUND})
    assert [group.block for group in groups] == [0, 1]
    assert len(progress.get_trials(point, 0)) == 2 * len(late)  # and again not for ever
    assert len(progress.get_trials(point, 1)) == len(disturbed) + len(late)


def test_what_an_earlier_call_gave_up_is_measured_beside_the_baseline() -> None:
    plan = plan_of(engines=3, workloads=1)
    given_up = plan.points[2]
    late = [
        one.model_copy(update={"round": 0})
        for one in spoiled(given_up, 0, Outcome.CLIENT_BOUND, CLIENT_BOUND_REPEATS + 1)
    ]
    before = [*(turn(point, number) for point in plan.points[:2] for number in range(2)), *late]
    earlier = study_of(plan, blocks=1, together=True)
    earlier.add(before)
    assert earlier.next_group() is None
    study = study_of(plan, blocks=1, together=True, repeatable=list_repeatable_rejections(before))
    study.add(before)
    group = study.next_group()
    assert group is not None
    assert [member.config for member in group.members] == [given_up.config, BASELINE]
    assert group.baseline == BASELINE
    assert study.progress.count_begun_rounds(0) == 2  # in rounds of their own


def test_what_was_given_up_beside_visits_of_others_stays_so() -> None:
    """It would be compared with what the others were in another hour; not so where none of them has a result."""
    plan = plan_of(engines=2)
    one, alone, other, _ = plan.points
    late = spoiled(one, 0, Outcome.CLIENT_BOUND, 1)
    lonely = trial(alone, 0, Outcome.CLIENT_BOUND).model_copy(update={"id": "lonely"})
    assert list_repeatable_rejections([*late, lonely, trial(other, 0)]) == {"lonely"}
    assert list_repeatable_rejections([*late, trial(one, 0), trial(other, 1)]) == {late[0].id}
    assert list_repeatable_rejections([*late, turn(other, 0)]) == {late[0].id}


def test_an_interrupted_group_resumes_with_what_is_missing() -> None:
    plan = plan_of(engines=2)
    first = study_of(plan).next_group()
    assert first is not None
    (member,) = first.members
    points = [Point(config=member.config, workload=workload.name) for workload in member.workloads]
    study = study_of(plan)
    study.add([trial(points[0], 0), trial(points[0], 0), trial(points[1], 0)])
    again = study.next_group()
    left = Member(config=member.config, workloads=(member.workloads[1],))
    assert again == Group(block=0, members=(left,), rounds=2)


BASELINE = Config(variant="none", engine="e0")


def sized_residence(
    plan: Plan, fitting: float, weights: dict[str, float] | None = None
) -> Residence:
    """For so many configs at once; `weights`: how many others one counts for."""
    available_bytes = int(fitting * NullEngine.overhead_bytes / RESIDENT_SHARE) + 1
    residence = Residence(plan, ENGINES, available_bytes=available_bytes, on_device=False)
    for point in plan.points:
        peak_bytes = int((weights or {}).get(point.config.engine, 1.0) * NullEngine.overhead_bytes)
        residence.add(trial(point, 0).model_copy(update={"memory": Memory(peak_bytes=peak_bytes)}))
    return residence


def chunks(plan: Plan, fitting: float, weights: dict[str, float] | None = None) -> list[str]:
    found = sized_residence(plan, fitting, weights).chunks(plan.points)
    return [" ".join(config.engine for config in chunk) for chunk in found]


def test_a_block_is_cut_into_chunks_that_fit_beside_the_baseline() -> None:
    plan = plan_of(engines=6)
    assert chunks(plan, 6) == ["e0 e1 e2 e3 e4 e5"]
    assert chunks(plan, 5) == ["e0 e1 e2 e3 e4", "e0 e5"]
    assert chunks(plan, 3) == ["e0 e1 e2", "e0 e3 e4", "e0 e5"]
    assert chunks(plan, 1) == ["e0", "e1", "e2", "e3", "e4", "e5"]


def test_a_baseline_without_others_is_a_chunk_of_its_own() -> None:
    plan = plan_of(engines=1)
    assert chunks(plan, 2) == chunks(plan, 0.5) == ["e0"]


def test_one_that_does_not_fit_beside_the_baseline_lets_all_come_one_after_the_other() -> None:
    plan = plan_of(engines=5)
    sizes = {"e0": 4, "e1": 3, "e2": 5, "e3": 2, "e4": 1}
    assert chunks(plan, 9, sizes) == ["e0 e1", "e0 e2", "e0 e3 e4"]
    assert chunks(plan, 8, sizes) == ["e0", "e1", "e2", "e3", "e4"]


def test_each_chunk_has_a_start_of_the_baseline() -> None:
    plan = plan_of(engines=6)
    groups = run_to_the_end(study_of(plan, most=3))
    assert len(groups) == 6
    for group in groups:
        assert group.baseline == BASELINE
        (baseline,) = [member for member in group.members if member.config == BASELINE]
        assert {workload.name for workload in baseline.workloads} == {"w0", "w1"}
    orders = [[names(group) for group in groups if group.block == block] for block in (0, 1)]
    assert orders[0] != orders[1]


def test_an_interrupted_chunk_goes_on_beside_the_baseline_that_has_its_rounds() -> None:
    plan = plan_of(engines=5, workloads=1)
    study = study_of(plan, most=3)
    group = study.next_group()
    assert group is not None
    done = [member.config for member in group.members]
    study.add(turn(Point(config=one, workload="w0"), number) for number in range(2) for one in done)
    left = [config for config in plan.configs if config not in done]
    study.add(
        [turn(plan.points[0], 2), turn(Point(config=left[0], workload="w0"), 2)]
    )  # and here it was killed
    assert not study.progress.is_trial_due(plan.points[0], 0)
    again = study.next_group()
    assert again is not None
    assert again.block == 0
    assert {member.config for member in again.members} == {BASELINE, *left}
    assert study.progress.count_begun_rounds(0) == 3


def test_a_block_goes_on_without_a_baseline_that_failed() -> None:
    plan = plan_of(engines=5, workloads=1)
    study = study_of(plan, most=2)
    study.add([trial(plan.points[0], 0, Outcome.CRASHED)])
    groups = [group for group in run_to_the_end(study) if group.block == 0]
    assert sorted(names(group)[0] for group in groups) == ["e1", "e2", "e3", "e4"]
    assert {len(group.members) for group in groups} == {1}
