"""A visit that has nothing left to do does nothing."""

import os
from pathlib import Path

import pytest

from bitbench.core.ports import Endpoint, Launch, LoadJob, LoadResult
from bitbench.core.recorded.trial import Failure, InstanceFacts, InstanceRecord
from bitbench.lab.bench import Bench
from bitbench.lab.visit import VisitRunner
from bitbench.planning.schedule import Progress
from tests.unit.test_schedule import plan_of, progress_of


class SlowStart:
    """An engine and its instance in one: while it starts, the study's budget runs out."""

    name, environment, needs_model, start_s = "null", None, False, 0.0
    pid = os.getpid()

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.stopped = False

    def refuse(self, *_: object) -> None:
        return None

    def start(self, launch: Launch) -> "SlowStart":
        return self

    def wait_ready(self, timeout_s: float) -> Endpoint:
        self._progress.spent_s = 1e9
        return Endpoint("http://127.0.0.1:1", "model", "key")

    def facts(self) -> InstanceFacts:
        return InstanceFacts()

    def failure(self) -> Failure | None:
        return None

    def stop(self) -> None:
        self.stopped = True


class NoLoad:
    def run(self, job: LoadJob) -> LoadResult:
        pytest.fail("nothing was left to be measured")


class Silent:
    def __getattr__(self, name: str) -> object:
        return lambda *_, **__: None


def test_a_budget_that_runs_out_while_an_instance_starts_ends_the_visit(tmp_path: Path) -> None:
    plan = plan_of(engines=1, instances={"min": 1, "max": 3}, budget="1s")
    progress = progress_of(plan, narrow_after_instances=3)
    first = progress.next_visit()
    assert first is not None
    later = first.model_copy(update={"block": 1})  # beyond the minimum
    engine = SlowStart(progress)
    bench = Bench({"null": engine}, lambda _: tmp_path, NoLoad())
    runner = VisitRunner(later, plan, bench, progress, Silent(), "i0001", tmp_path / "log")  # type: ignore[arg-type]
    (ready,) = runner.run()
    assert isinstance(ready, InstanceRecord)
    assert engine.stopped
