"""Two searches against each other; and a search on a busy machine ends."""

from dataclasses import replace
from pathlib import Path

import pytest

from bitbench.analysis.rate_search import find_next_rate, list_rate_trials
from bitbench.analysis.results.comparison import Comparison
from bitbench.analysis.study_comparison import compare_studies
from bitbench.endpoint.endpoint_run import EndpointRun, make_workload_at_rate
from bitbench.loadgen.workers import LoadWorkers
from bitbench.records.folder import StudyRecords
from bitbench.records.trial import (
    InstanceFacts,
    ObjectiveResult,
    Outcome,
    TrialMetrics,
    TrialRecord,
)
from bitbench.running.trial import RunContext
from bitbench.study.objective import SearchLimits
from bitbench.study.plan import Plan, Point
from bitbench.study.study import EngineSetup
from bitbench.study.study_file import parse_objectives
from bitbench.study.workload import Constant, Workload
from bitbench.util.errors import CannotCompareError
from tests.support.synthetic import LOCK, make_instance, make_plan, make_records, make_trial

LIMITS = SearchLimits(start=5, lowest=0.1, highest=1000)
SLO = "ttft_p99=200ms"


def open_loop(rate: float, output_tokens: int = 8) -> Workload:
    return Workload(
        name=f"rate-{rate:g}",
        arrival=Constant(rate=rate),
        duration=10.0,
        input_tokens=16,
        output_tokens=output_tokens,
        concurrency=1,
    )


def searched(
    name: str, edge: float, *, url: str = "http://127.0.0.1:1", output_tokens: int = 8
) -> StudyRecords:
    """A server that meets its objectives up to `edge`."""
    workloads, trials = [open_loop(LIMITS.start, output_tokens)], list[TrialRecord]()

    def plan() -> Plan:
        made = make_plan(["server"], workloads, objectives=parse_objectives(SLO))
        setup = EngineSetup(name="server", engine="endpoint", args={"url": url, "model": "m"})
        return made.model_copy(
            update={"study": made.study.model_copy(update={"engines": (setup,)})}
        )

    while (wanted := find_next_rate(list_rate_trials(plan().study, trials), LIMITS)) is not None:
        rate = wanted.rate
        workload = make_workload_at_rate(workloads[0], wanted, LIMITS)
        if workload.name not in {one.name for one in workloads}:
            workloads.append(workload)
        point = Point(config=plan().configs[0], workload=workload.name)
        holds = ObjectiveResult(holds=rate <= edge)
        metrics = TrialMetrics(achieved_rate=min(rate, edge))
        trials.append(
            make_trial(
                point, 0, len(trials), requests=workload.requests, objectives=holds, metrics=metrics
            )
        )
    instance = make_instance(
        plan().configs[0], 0, facts=InstanceFacts(engine_version="1.0", was_running=True)
    )
    lock = {**LOCK, "search": LIMITS.model_dump()}
    return make_records(plan(), trials, [instance], name=name, lock=lock)


def against(before: StudyRecords, after: StudyRecords) -> Comparison:
    return compare_studies(before, after, conditions=(), allowed=())


def test_two_searches_are_compared_by_the_rates_that_both_tried() -> None:
    with pytest.raises(CannotCompareError, match="output_tokens 8 and 9"):
        against(searched("a", 40.0), searched("b", 40.0, output_tokens=9))


def test_another_port_is_no_other_server() -> None:
    blue, green = (
        searched(name, 40.0, url=f"http://127.0.0.1:{port}")
        for name, port in (("blue", 1), ("green", 2))
    )
    assert not against(blue, green).differences


class _Told:
    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.notes: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def note(self, message: str) -> None:
        self.notes.append(message)


def test_a_busy_machine_is_said_once_and_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends the first trials on time, of which one is met and one is not, and none after them."""
    plan, told, trials = (
        make_plan(["server"], [open_loop(5)], objectives=parse_objectives(SLO)),
        _Told(),
        [],
    )

    def trial(run: EndpointRun, workload: Workload, _: object) -> TrialRecord:
        late = (
            {} if len(trials) < 2 else {"outcome": Outcome.CLIENT_BOUND, "cause": "client too slow"}
        )
        holds = ObjectiveResult(holds=not trials)
        point = Point(config=plan.configs[0], workload=workload.name)
        made = make_trial(point, 0, len(trials), objectives=holds, **late)
        trials.append(made)
        assert len(trials) < 50, "it goes on and on"
        return made

    run = EndpointRun.__new__(EndpointRun)
    nothing = LoadWorkers.__new__(LoadWorkers)
    run._run = RunContext(plan, {}, Path, nothing, told)
    run._trials = trials

    def added(run: EndpointRun, workload: Workload) -> Workload:
        study = run._plan.study
        if workload.name not in {one.name for one in study.workloads}:
            more = study.model_copy(update={"workloads": (*study.workloads, workload)})
            run._run = replace(run._run, plan=run._plan.model_copy(update={"study": more}))
        return workload

    monkeypatch.setattr(EndpointRun, "_begin", lambda _: None)
    monkeypatch.setattr(EndpointRun, "_update_lock", lambda _, **__: None)
    monkeypatch.setattr(EndpointRun, "_added", added)
    monkeypatch.setattr(EndpointRun, "_trial", trial)
    run.search(LIMITS)
    first, second = told.warnings
    assert first.endswith("higher rates are skipped")
    assert "the search stopped" in second
    (cost,) = told.notes
    assert "more trials" in cost
    assert "--into" in second
