"""The loop of a study on one machine, with engines that only take notes: resumed after any result, it repeats none."""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from bitbench.ports import LoadJob, LoadResult
from bitbench.records.block_lines import BlockLines
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Outcome
from bitbench.running.loop import THIS_HOST, Schedule, run_study
from bitbench.running.trial import TOUCH, RunContext
from bitbench.study.plan import Plan
from bitbench.util.errors import BusyMachineError, ExitCode, StoreError
from tests.support.paper_study import FixedPlanner, FixedResidence
from tests.support.synthetic import load_result, make_lock, request_rows
from tests.unit.test_group import Engine, Load, Silent, Tape
from tests.unit.test_schedule import plan_of


class Killed(Exception):
    pass


@dataclass
class Watch:
    """An observer that stops the run after so many results."""

    left: int = 10_000
    groups: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(Silent(), name)

    def group_started(self, group: object, remaining_s: float) -> None:
        self.groups.append(str(remaining_s))

    def trial_finished(self, record: object) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


def run(folder: StudyFolder, plan: Plan, results: int = 10_000, load: Load | None = None) -> None:
    client = load or Load(Tape())
    context = RunContext(plan, {"null": Engine(Tape())}, lambda _: Path(), client, Watch(results))  # type: ignore[dict-item,arg-type]
    with folder.open_writer() as writer:
        writer.write_lock(make_lock(plan))
        schedule = Schedule(
            plan, lambda _: FixedPlanner(plan), FixedResidence(plan, together=True), folder
        )  # type: ignore[arg-type]
        run_study(context, schedule, writer)


@pytest.mark.parametrize("results", [1, 3, 7, 12, 23])
def test_what_was_recorded_before_an_end_is_not_measured_again(
    results: int, tmp_path: Path
) -> None:
    plan, folder = plan_of(engines=2, workloads=2), StudyFolder(tmp_path / "s")
    with pytest.raises(Killed):
        run(folder, plan, results)
    assert len(folder.trials()) == results  # each is on disk before the observer hears of it
    run(folder, plan)
    run(folder, plan)  # nothing is left
    measured = [trial for trial in folder.trials() if trial.kind == "measured"]
    counts = Counter((trial.point, trial.block) for trial in measured if trial.turn == 0)
    assert set(counts) == {(point, block) for point in plan.points for block in (0, 1)}
    baseline = plan.configs[0]
    assert {count for (point, _), count in counts.items() if point.config != baseline} == {2}
    # The baseline is once more beside what an interrupted round had left.
    assert {count for (point, _), count in counts.items() if point.config == baseline} <= {2, 3}
    assert Counter((trial.point.config, trial.block) for trial in measured if trial.turn) == {
        (config, block): 1 for config in plan.configs for block in (0, 1)
    }
    assert {trial.outcome for trial in measured} == {Outcome.OK}
    assert {instance.host for instance in folder.instances()} == {THIS_HOST}


@dataclass
class Overslept(Load):
    """Sends everything half a second late, but for so many trials at first."""

    in_time: int = 0

    def run(self, job: LoadJob, on_progress: object = None) -> LoadResult:
        result = super().run(job, on_progress)
        if job.workload == TOUCH or sum(self.counts.values()) <= self.in_time:
            return result
        row = {
            "planned_s": 0.0,
            "sent_s": 0.5,
            "chunk_s": [0.6, 0.7],
            "asked_input_tokens": 1,
            "input_tokens": 1,
        }
        return replace(load_result(request_rows(row)), health=result.health)


@pytest.mark.parametrize("engines", [1, 2, 4])
def test_a_run_stops_where_all_of_a_block_is_rejected_and_resumes(
    engines: int, tmp_path: Path
) -> None:
    plan, folder = plan_of(engines=engines, workloads=2), StudyFolder(tmp_path / "s")
    with pytest.raises(BusyMachineError, match="then resume with --into") as stopped:
        run(folder, plan, load=Overslept(Tape()))
    assert stopped.value.exit_code is ExitCode.UNAVAILABLE
    rejected = [trial for trial in folder.trials() if trial.kind == "measured"]
    assert {trial.outcome for trial in rejected} == {Outcome.CLIENT_BOUND}
    assert len(rejected) == max(6, 2 * engines)
    run(folder, plan)
    counted = Counter((trial.point, trial.block) for trial in folder.trials() if trial.counts)
    assert counted == {(point, block): 2 for point in plan.points for block in (0, 1)}


def test_a_block_with_a_result_goes_on_however_many_trials_are_rejected_after_it(
    tmp_path: Path,
) -> None:
    plan, folder = plan_of(engines=1, workloads=1), StudyFolder(tmp_path / "s")
    with pytest.raises(BusyMachineError):  # in the second block, which has no result
        run(folder, plan, load=Overslept(Tape(), in_time=2))  # a warm-up and a trial
    outcomes = Counter(
        (trial.block, trial.outcome) for trial in folder.trials() if trial.kind == "measured"
    )
    assert outcomes[0, Outcome.OK] == 1
    assert outcomes[0, Outcome.CLIENT_BOUND] == outcomes[1, Outcome.CLIENT_BOUND] == 6


def test_a_block_of_another_machine_is_not_taken_over(tmp_path: Path) -> None:
    plan, folder = plan_of(engines=1, workloads=1), StudyFolder(tmp_path / "s")
    with folder.open_writer() as writer:
        writer.write_lock(make_lock(plan))
        BlockLines(folder).begin(0, "node-2", 2, ())
    with pytest.raises(StoreError, match="block 0 was begun on node-2"):
        run(folder, plan)
