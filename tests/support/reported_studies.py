"""Studies as formats of a report get them: an ordinary one, and one whose names try to break out."""

from collections.abc import Sequence
from pathlib import Path

from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.trial import InstanceRecord, Outcome, TrialRecord
from bitbench.reports.write import StudyReport
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import EngineSetup
from bitbench.study.workload import Workload
from tests.support.synthetic import (
    demo_study,
    make_lock,
    make_plan,
    make_trial,
    speed_metrics,
    summarize,
)

HOSTILE = [
    '<script>alert("x")</script>',
    "a|b",
    "`tick`",
    "*star*",
    "under_",
    "\u202eright",
    "=1+1",
    "x" * 10_000,
    "::",
]


def reported(
    plan: Plan, trials: list[TrialRecord], instances: Sequence[InstanceRecord] = ()
) -> StudyReport:
    report = StudyReport(StudyFolder(Path("made-up")), Path("home"))
    report.records = StudyRecords("made-up", make_lock(plan), trials, instances)
    report.summary = summarize(plan, trials, instances)
    return report


def demo_report() -> StudyReport:
    plan, trials, instances, _ = demo_study()
    return reported(plan, trials, instances)


def hostile_report() -> StudyReport:
    """Names and causes that try to break out."""
    workload = Workload(name="shape", concurrency=1, input_tokens=16, output_tokens=8)
    engines = tuple(
        EngineSetup(name=name, engine=name, args={"flag": name, "api-key": "hidden"})
        for name in HOSTILE
    )
    plan = make_plan(["one"], [workload])
    configs = [Config(variant=f"m/{name}", engine=name) for name in HOSTILE]
    points = tuple(Point(config=one, workload="shape") for one in configs)
    plan = plan.model_copy(
        update={"study": plan.study.model_copy(update={"engines": engines}), "points": points}
    )
    trials = [
        make_trial(point, 0, number, metrics=speed_metrics(workload, 100.0 + number))
        if number % 2
        else make_trial(point, 0, number, outcome=Outcome.CRASHED, cause=point.config.engine)
        for number, point in enumerate(points)
    ]
    return reported(plan, trials)
