"""The order of a study, how it adapts, and that it goes on from records alone."""

from collections import Counter
from collections.abc import Sequence

from bitbench.core.asked.study import Measure, Study
from bitbench.core.cell import Cell, Contender, Plan, Visit
from bitbench.core.recorded.trial import Outcome, TrialMetrics, TrialRecord
from bitbench.core.recorded.variant import Variant
from bitbench.planning.schedule import CLIENT_BOUND_REPEATS, Progress


def plan_of(engines: int = 3, workloads: int = 2, **measure: object) -> Plan:
    study = Study.model_validate(
        {
            "name": "s",
            "engines": [{"engine": "null", "name": f"e{i}"} for i in range(engines)],
            "workloads": [
                {"name": f"w{i}", "concurrency": 1, "input_tokens": 1, "output_tokens": 2} for i in range(workloads)
            ],
            "measure": {"instances": 2, "trials": {"min": 2, "max": 4}, **measure},
        }
    )
    cells = tuple(
        Cell(contender=Contender(variant="none", engine=setup.name), workload=workload.name)
        for setup in study.engines
        for workload in study.workloads
    )
    return Plan(study=study, variants=(Variant(name="none", model="none", recipe="none"),), cells=cells)


def trial(
    cell: Cell, block: int, outcome: Outcome = Outcome.OK, value: float = 1.0, duration: float = 1.0
) -> TrialRecord:
    return TrialRecord(
        id="t", cell=cell, block=block, index=0, instance_id="i", started_at="", duration_s=duration, outcome=outcome,
        metrics=TrialMetrics(output_throughput=value),
    )  # fmt: skip


def progress_of(plan: Plan, *, narrow_after_trials: int = 2, narrow_after_instances: int = 2) -> Progress:
    def enough_trials(values: Sequence[float], measure: Measure) -> bool:
        return len(values) >= min(narrow_after_trials, measure.trials.max)

    def enough_instances(groups: Sequence[Sequence[float]], measure: Measure) -> bool:
        return len(groups) >= narrow_after_instances

    return Progress(
        plan,
        headline=lambda record: record.metrics.output_throughput,
        enough_trials=enough_trials,
        enough_instances=enough_instances,
    )


def run_to_the_end(plan: Plan, progress: Progress, outcomes: dict[Cell, Outcome] | None = None) -> list[Visit]:
    visits = []
    while (visit := progress.next_visit()) is not None:
        visits.append(visit)
        for workload in visit.workloads:
            cell = Cell(contender=visit.contender, workload=workload.name)
            while progress.wants_trial(cell, visit.block):
                progress.add([trial(cell, visit.block, (outcomes or {}).get(cell, Outcome.OK))])
        assert len(visits) < 100
    return visits


def test_every_block_visits_every_contender_once_in_an_order_of_its_own() -> None:
    plan = plan_of(engines=6)
    visits = run_to_the_end(plan, progress_of(plan))
    assert Counter((visit.block, visit.contender) for visit in visits).most_common(1)[0][1] == 1
    assert len(visits) == 12
    orders = [[visit.contender.engine for visit in visits if visit.block == block] for block in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]


def test_the_order_follows_from_the_seed() -> None:
    plan = plan_of(engines=6)
    assert run_to_the_end(plan, progress_of(plan)) == run_to_the_end(plan, progress_of(plan))
    other = plan.model_copy(update={"study": plan.study.model_copy(update={"seed": 9})})
    assert run_to_the_end(other, progress_of(other)) != run_to_the_end(plan, progress_of(plan))


def test_more_instances_only_for_cells_whose_interval_is_wide() -> None:
    plan = plan_of(instances={"min": 2, "max": 5})
    assert {visit.block for visit in run_to_the_end(plan, progress_of(plan, narrow_after_instances=4))} == {0, 1, 2, 3}
    assert {visit.block for visit in run_to_the_end(plan, progress_of(plan))} == {0, 1}


def test_a_spent_budget_still_allows_the_minimum() -> None:
    plan = plan_of(instances={"min": 2, "max": 5}, budget="3s")
    progress = progress_of(plan, narrow_after_trials=4, narrow_after_instances=5)
    visits = run_to_the_end(plan, progress)
    assert {visit.block for visit in visits} == {0, 1}
    assert {len(progress.trials_of(cell, 1)) for cell in plan.cells} == {plan.study.measure.trials.min}


def test_what_cannot_work_is_tried_once_and_bad_luck_twice() -> None:
    plan = plan_of(instances=4)
    unsupported, crashing = plan.cells[0], plan.cells[2]
    progress = progress_of(plan)
    run_to_the_end(plan, progress, {unsupported: Outcome.UNSUPPORTED, crashing: Outcome.CRASHED})
    assert [len(progress.trials_of(unsupported, block)) for block in range(4)] == [1, 0, 0, 0]
    assert [len(progress.trials_of(crashing, block)) for block in range(4)] == [1, 1, 0, 0]


def test_a_client_bound_trial_is_repeated_but_not_for_ever() -> None:
    plan = plan_of(engines=1, workloads=1, instances=1)
    progress = progress_of(plan)
    progress.add([trial(plan.cells[0], 0, Outcome.CLIENT_BOUND)])
    assert progress.wants_trial(plan.cells[0], 0)
    run_to_the_end(plan, progress, {plan.cells[0]: Outcome.CLIENT_BOUND})
    assert len(progress.trials_of(plan.cells[0], 0)) == CLIENT_BOUND_REPEATS + 1


def test_an_interrupted_visit_goes_on_with_what_is_missing() -> None:
    plan = plan_of(engines=2)
    first = progress_of(plan).next_visit()
    assert first is not None
    cells = [Cell(contender=first.contender, workload=workload.name) for workload in first.workloads]
    progress = progress_of(plan)
    progress.add([trial(cells[0], 0), trial(cells[0], 0), trial(cells[1], 0)])
    again = progress.next_visit()
    assert again == Visit(block=0, contender=first.contender, workloads=(first.workloads[1],))
