"""Planning and scheduling stay quick in the largest study: twice the points cost twice the time, not four times."""

from pathlib import Path

import pytest

from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import plan_study
from bitbench.records.trial import Memory, TrialMetrics
from bitbench.study.plan import Plan, Point
from bitbench.study.study import Study
from tests.command_line import Answer, bitbench
from tests.growth import null_study, processor_s, write_null_study
from tests.support.paper_study import PaperStudy
from tests.support.synthetic import make_instance, make_trial

NOISE = 3.0  # a ratio of processor times may be off by so much on a shared machine; a square would make it 4
SLOWEST = 2.0  # of a processor that is older and shared with other work, to one of a server of 2023 at rest
PLAN_S = SLOWEST * 0.8  # of two thousand points
NEXT_S = SLOWEST * 0.05  # until it is known what follows a trial of seconds
PLANNED = [(40, 50), (200, 10), (10, 200)]
BUDGET = {"budget": "100h", "starts": 2, "trials": 2}


def plan_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engines: int, workloads: int
) -> float:
    study = write_null_study(tmp_path / "study.yaml", engines, workloads)
    said: list[Answer] = []
    took_s = processor_s(lambda: said.append(bitbench(capsys, "plan", str(study))))
    assert f"{engines * workloads:,} points" in said[0].out
    return took_s


@pytest.mark.parametrize(("engines", "workloads"), PLANNED)
def test_two_thousand_points_are_planned_within_seconds(
    engines: int, workloads: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_s(tmp_path, capsys, 2, 2)  # what is imported once
    took_s = plan_s(tmp_path, capsys, engines, workloads)
    print(f"{engines} × {workloads}: {took_s:.2f} s")
    assert took_s < PLAN_S


def test_planning_grows_with_the_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_s(tmp_path, capsys, 2, 2)
    fewer_s, more_s = (plan_s(tmp_path, capsys, size, size) for size in (22, 44))
    assert more_s < 4 * NOISE * fewer_s


def run_on_paper(study: Study, most: int) -> int:
    """The groups of a study and so many of their trials, without an engine. How many trials."""
    plan: Plan = plan_study(study, Workplace())
    paper, count = PaperStudy(plan, available_bytes=2**30), 0
    progress = paper.progress
    while count < most and (group := paper.next_group()) is not None:
        paper.planner.remaining_s()
        for member in group.members:
            paper.measure(make_instance(member.config, group.block, started_at=None))
        for member in group.members:
            for workload in member.workloads:
                point = Point(config=member.config, workload=workload.name)
                while progress.is_trial_due(point, group.block):
                    index = len(progress.get_trials(point, group.block))
                    metrics, memory = (
                        TrialMetrics(output_throughput=100.0 + index),
                        Memory(peak_bytes=2**29),
                    )
                    record = make_trial(
                        point, group.block, index, started_at=None, metrics=metrics, memory=memory
                    )
                    paper.measure(record)
                    count += 1
    return count


@pytest.mark.parametrize(
    "measure", [{"starts": 2, "trials": 2}, BUDGET], ids=["a number", "a budget"]
)
@pytest.mark.parametrize(("engines", "workloads"), PLANNED)
def test_what_is_next_in_the_largest_study_is_known_at_once(
    engines: int, workloads: int, measure: dict[str, object]
) -> None:
    """The time of a trial on paper, where configs come one after the other."""
    run_on_paper(null_study(3, 3, measure), 100)
    study = null_study(engines, workloads, {**measure, "schedule": "visits"})
    trials: list[int] = []
    took_s = processor_s(lambda: trials.append(run_on_paper(study, 200)))
    print(f"{1e3 * took_s / trials[0]:.1f} ms")
    assert took_s / trials[0] < NEXT_S
