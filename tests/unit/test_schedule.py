"""The order of a study, and that it resumes from records alone."""

from collections.abc import Iterable
from dataclasses import dataclass

from bitbench.measure.progress import (
    CLIENT_BOUND_REPEATS,
    DISTURBED_REPEATS,
    Progress,
    Shifts,
    progress_excuses,
    shifts_beside,
)
from bitbench.records.trial import Outcome, TrialMetrics, TrialRecord
from bitbench.study.plan import Config, Group, Member, Plan, Point
from bitbench.study.study import Study
from bitbench.study.variant import Variant


def plan_of(engines: int = 3, workloads: int = 2, **measure: object) -> Plan:
    study = Study.model_validate(
        {
            "name": "s",
            "engines": [{"engine": "null", "name": f"e{i}"} for i in range(engines)],
            "workloads": [
                {"name": f"w{i}", "concurrency": 1, "input_tokens": 1, "output_tokens": 2} for i in range(workloads)
            ],
            "measure": {"starts": 2, "trials": {"min": 2, "max": 4}, **measure},
        }
    )
    points = tuple(
        Point(config=Config(variant="none", engine=setup.name), workload=workload.name)
        for setup in study.engines
        for workload in study.workloads
    )
    return Plan(study=study, variants=(Variant(name="none", model="none", recipe="none"),), points=points)


def trial(
    point: Point, block: int, outcome: Outcome = Outcome.OK, value: float = 1.0, duration: float = 1.0
) -> TrialRecord:
    return TrialRecord(
        id="t", point=point, block=block, index=0, instance_id="i", started_at="", duration_s=duration, outcome=outcome,
        metrics=TrialMetrics(output_throughput=value),
    )  # fmt: skip


def turn(point: Point, number: int) -> TrialRecord:
    return trial(point, 0).model_copy(update={"round": number})


@dataclass(frozen=True)
class FixedPace:
    """So many blocks and rounds; `closed`: points that have nothing left to ask from the second block on."""

    blocks: int = 2
    trials: int = 2
    together: bool = False
    most: int = 0  # configs that fit into memory, where not all do
    closed: tuple[Point, ...] = ()

    def rounds(self, block: int) -> int:
        return self.trials if block < self.blocks else 0

    def is_open(self, point: Point, block: int) -> bool:
        return block == 0 or point not in self.closed

    def fit_together(self, configs: Iterable[Config]) -> bool:
        return self.together or len(list(configs)) <= self.most


def progress_of(plan: Plan, baseline: Config | None = None, **pace: object) -> Progress:
    baselines = dict.fromkeys(plan.configs, baseline) if baseline else {}
    return Progress(plan, FixedPace(**pace), baselines)  # type: ignore[arg-type]


def run_to_the_end(plan: Plan, progress: Progress, outcomes: dict[Point, Outcome] | None = None) -> list[Group]:
    groups = []
    while (group := progress.next_group()) is not None:
        groups.append(group)
        for member in group.members:
            for workload in member.workloads:
                point = Point(config=member.config, workload=workload.name)
                while progress.wants_trial(point, group.block):
                    progress.add([trial(point, group.block, (outcomes or {}).get(point, Outcome.OK))])
        assert len(groups) < 100
    return groups


def names(group: Group) -> list[str]:
    return [member.config.engine for member in group.members]


def test_every_block_starts_every_config_once_in_an_order_of_its_own() -> None:
    plan = plan_of(engines=6)
    groups = run_to_the_end(plan, progress_of(plan))
    assert len(groups) == 12
    orders = [[name for group in groups if group.block == block for name in names(group)] for block in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == [f"e{number}" for number in range(6)]
    assert orders[0] != orders[1]


def test_configs_that_fit_together_are_one_group() -> None:
    plan = plan_of(engines=6)
    groups = run_to_the_end(plan, progress_of(plan, together=True))
    assert [(group.block, len(group.members), group.rounds) for group in groups] == [(0, 6, 2), (1, 6, 2)]
    assert names(groups[0]) != names(groups[1])


def test_the_order_follows_from_the_seed() -> None:
    plan = plan_of(engines=6)
    assert run_to_the_end(plan, progress_of(plan)) == run_to_the_end(plan, progress_of(plan))
    other = plan.model_copy(update={"study": plan.study.model_copy(update={"seed": 9})})
    assert run_to_the_end(other, progress_of(other)) != run_to_the_end(plan, progress_of(plan))


def test_a_config_without_an_open_question_is_not_started_again() -> None:
    plan = plan_of()
    decided = tuple(point for point in plan.points if point.config.engine == "e1")
    groups = run_to_the_end(plan, progress_of(plan, together=True, closed=decided))
    assert [len(group.members) for group in groups] == [3, 2]
    assert "e1" not in names(groups[1])


def test_what_cannot_work_is_tried_once_and_bad_luck_twice() -> None:
    plan = plan_of()
    unsupported, crashing = plan.points[0], plan.points[2]
    progress = progress_of(plan, blocks=4)
    run_to_the_end(plan, progress, {unsupported: Outcome.UNSUPPORTED, crashing: Outcome.CRASHED})
    assert [len(progress.trials_of(unsupported, block)) for block in range(4)] == [1, 0, 0, 0]
    assert [len(progress.trials_of(crashing, block)) for block in range(4)] == [1, 1, 0, 0]


def test_a_client_bound_trial_is_repeated_but_not_for_ever() -> None:
    plan = plan_of(engines=1, workloads=1)
    progress = progress_of(plan, blocks=1)
    progress.add([trial(plan.points[0], 0, Outcome.CLIENT_BOUND)])
    assert progress.wants_trial(plan.points[0], 0)
    run_to_the_end(plan, progress, {plan.points[0]: Outcome.CLIENT_BOUND})
    assert len(progress.trials_of(plan.points[0], 0)) == CLIENT_BOUND_REPEATS + 1


def test_a_disturbed_trial_is_repeated_once_per_block_and_never_given_up() -> None:
    plan = plan_of(engines=1, workloads=1)
    progress = progress_of(plan, blocks=4)
    run_to_the_end(plan, progress, {plan.points[0]: Outcome.DISTURBED})
    assert [len(progress.trials_of(plan.points[0], block)) for block in range(4)] == [DISTURBED_REPEATS + 1] * 4


def spoiled(point: Point, block: int, outcome: Outcome, count: int) -> list[TrialRecord]:
    """Of an earlier call, in the first round."""
    found = [trial(point, block, outcome) for _ in range(count)]
    return [one.model_copy(update={"id": f"{outcome}-{block}-{place}"}) for place, one in enumerate(found)]


def test_what_an_earlier_call_rejected_does_not_count_against_this_one() -> None:
    plan = plan_of(engines=1, workloads=1)
    (point,) = plan.points
    late = spoiled(point, 0, Outcome.CLIENT_BOUND, CLIENT_BOUND_REPEATS + 1)
    disturbed = spoiled(point, 1, Outcome.DISTURBED, DISTURBED_REPEATS + 1)
    progress = Progress(plan, FixedPace(), excused=progress_excuses([*late, *disturbed]))  # type: ignore[arg-type]
    progress.add([*late, *disturbed])
    assert len(progress.trials_of(point, 0)) == len(late)  # the next has another number
    groups = run_to_the_end(plan, progress, {point: Outcome.CLIENT_BOUND})
    assert [group.block for group in groups] == [0, 1]
    assert len(progress.trials_of(point, 0)) == 2 * len(late)  # and again not for ever
    assert len(progress.trials_of(point, 1)) == len(disturbed) + len(late)


def test_what_an_earlier_call_gave_up_is_measured_beside_the_baseline() -> None:
    plan = plan_of(engines=3, workloads=1)
    given_up = plan.points[2]
    late = [
        one.model_copy(update={"round": 0})
        for one in spoiled(given_up, 0, Outcome.CLIENT_BOUND, CLIENT_BOUND_REPEATS + 1)
    ]
    before = [*(turn(point, number) for point in plan.points[:2] for number in range(2)), *late]
    pace = FixedPace(blocks=1, together=True)
    earlier = Progress(plan, pace, dict.fromkeys(plan.configs, BASELINE))  # type: ignore[arg-type]
    earlier.add(before)
    assert earlier.next_group() is None
    progress = Progress(plan, pace, dict.fromkeys(plan.configs, BASELINE), excused=progress_excuses(before))  # type: ignore[arg-type]
    progress.add(before)
    group = progress.next_group()
    assert group is not None
    assert group.stays is not None
    assert (group.stays.config, group.shifts) == (BASELINE, ((given_up.config,),))
    assert progress.rounds_begun(0) == 2  # in rounds of their own


def test_what_was_given_up_beside_visits_of_others_stays_so() -> None:
    """It would be compared with what the others were in another hour; not so where none of them has a result."""
    plan = plan_of(engines=2)
    one, alone, other, _ = plan.points
    late = spoiled(one, 0, Outcome.CLIENT_BOUND, 1)
    lonely = trial(alone, 0, Outcome.CLIENT_BOUND).model_copy(update={"id": "lonely"})
    assert progress_excuses([*late, lonely, trial(other, 0)]) == {"lonely"}
    assert progress_excuses([*late, trial(one, 0), trial(other, 1)]) == {late[0].id}
    assert progress_excuses([*late, turn(other, 0)]) == {late[0].id}


def test_an_interrupted_group_resumes_with_what_is_missing() -> None:
    plan = plan_of(engines=2)
    first = progress_of(plan).next_group()
    assert first is not None
    (member,) = first.members
    points = [Point(config=member.config, workload=workload.name) for workload in member.workloads]
    progress = progress_of(plan)
    progress.add([trial(points[0], 0), trial(points[0], 0), trial(points[1], 0)])
    again = progress.next_group()
    left = Member(config=member.config, workloads=(member.workloads[1],))
    assert again == Group(block=0, members=(left,), rounds=2)


BASELINE = Config(variant="none", engine="e0")


def shifts(group: Group) -> list[set[str]]:
    return [{config.engine for config in shift} for shift in group.shifts]


def test_what_does_not_fit_comes_in_shifts_beside_the_baseline() -> None:
    plan = plan_of(engines=6)
    first, second = run_to_the_end(plan, progress_of(plan, BASELINE, most=3))
    for group in (first, second):
        assert sorted(map(sorted, shifts(group))) == [["e1", "e2"], ["e3", "e4"], ["e5"]]  # the same in every block
        assert group.stays is not None
        assert group.stays.config == BASELINE
        assert {workload.name for workload in group.stays.workloads} == {"w0", "w1"}
    assert first.shifts != second.shifts  # in another order


def test_shifts_of_several_models_are_beside_the_baseline_of_each() -> None:
    plan = plan_of(engines=6, workloads=1)
    first, second = plan.configs[:3], plan.configs[3:]
    baselines = {**dict.fromkeys(first, first[0]), **dict.fromkeys(second, second[0])}
    groups = run_to_the_end(plan, Progress(plan, FixedPace(most=2), baselines))
    for block in (0, 1):
        found = {group.stays.config: shifts(group) for group in groups if group.block == block and group.stays}
        assert {stays: sorted(map(sorted, own)) for stays, own in found.items()} == {
            first[0]: [["e1"], ["e2"]],
            second[0]: [["e4"], ["e5"]],
        }


def test_shifts_are_none_where_one_does_not_fit_beside_the_baseline() -> None:
    baseline, *others = [Config(variant="none", engine=f"e{number}") for number in range(5)]
    size = dict(zip([baseline, *others], (4, 3, 5, 2, 1), strict=True))

    def beside(memory: int) -> Shifts | None:
        return shifts_beside(baseline, others, lambda chosen: sum(size[one] for one in chosen) <= memory)

    one, large, two, three = others
    assert beside(9) == ((one, two), (large,), (three,))
    assert beside(13) == ((one, large, three), (two,))
    assert beside(8) is None


def test_an_interrupted_shift_goes_on_beside_the_baseline_that_has_its_rounds() -> None:
    plan = plan_of(engines=5, workloads=1)
    progress = progress_of(plan, BASELINE, most=3)
    group = progress.next_group()
    assert group is not None
    done, cut = group.shifts
    baseline, *_ = plan.points
    progress.add(turn(Point(config=one, workload="w0"), number) for number in range(2) for one in (BASELINE, *done))
    progress.add([turn(baseline, 2), turn(Point(config=cut[0], workload="w0"), 2)])  # and here it was killed
    assert not progress.wants_trial(baseline, 0)
    again = progress.next_group()
    assert again is not None
    assert again.block == 0
    assert [set(shift) for shift in again.shifts] == [set(cut)]
    assert again.stays is not None
    assert again.stays.config == BASELINE
    assert progress.rounds_begun(0) == 3


def test_without_its_baseline_a_block_goes_on_one_after_the_other() -> None:
    plan = plan_of(engines=5, workloads=1)
    progress = progress_of(plan, BASELINE, most=2)
    progress.add([trial(plan.points[0], 0, Outcome.CRASHED)])
    group = progress.next_group()
    assert group is not None
    assert (len(group.members), group.shifts) == (1, ())
