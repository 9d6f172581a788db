"""A simulated lab over a real study folder: trials end, processes die at any byte, lines are doubled.

Every step is checked against a model of what had ended. A failure prints the steps that lead to it, and the same seed
gives the same steps: `simulate(seed, examples)`.
"""

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bitbench.core.asked.study import Measure
from bitbench.core.asked.workload import Workload
from bitbench.core.cell import Cell, Group
from bitbench.core.recorded.trial import InstanceRecord, Outcome, TrialMetrics, TrialRecord
from bitbench.engines.null import NullEngine
from bitbench.lab.pace import StudyPace
from bitbench.planning.estimate import Estimator
from bitbench.planning.schedule import CLIENT_BOUND_REPEATS, Progress
from bitbench.store.folder import StudyFolder, Writer
from tests.unit.synthetic import make_instance, make_lock, make_plan, make_trial

STEPS = 60  # of an example: enough for most to reach the end of the study
MEMORY = Path("/dev/shm")  # a sync costs nothing there
OUTCOMES = st.sampled_from([Outcome.OK] * 8 + [Outcome.CLIENT_BOUND, Outcome.CRASHED, Outcome.UNSUPPORTED])
WORKLOADS = [
    Workload(name=f"w{number}", concurrency=1, input_tokens=8, output_tokens=8 + number) for number in range(2)
]
PLANS = {
    schedule: make_plan(
        ["a", "b", "c"],
        WORKLOADS,
        Measure.model_validate({"instances": {"min": 2, "max": 3}, "trials": 2, "schedule": schedule}),
    )
    for schedule in ("rounds", "visits")
}
TORN = st.floats(0, 1, exclude_max=True)  # which share of a line reached the disk


class StoreMachine(RuleBasedStateMachine):
    """The folder against `ended`: the trials whose line was complete, in their order."""

    steps: ClassVar[Counter[str]] = Counter()

    @initialize(schedule=st.sampled_from(sorted(PLANS)))
    def begin(self, schedule: str) -> None:
        self.place = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.folder = StudyFolder(self.place / "s")
        self.plan = PLANS[schedule]
        self.ended: list[TrialRecord] = []
        self.started: list[InstanceRecord] = []
        self.clock = 0
        self.group: Group | None = None
        with self.folder.writing() as writer:
            writer.write_study("name: made-up\n")
            writer.write_lock(make_lock(self.plan))
        self.open()

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.writer.__exit__(None, None, None)
            shutil.rmtree(self.place)

    def open(self) -> None:
        """A new process: all that it knows are the records."""
        self.writer: Writer = self.folder.writing().__enter__()
        self.progress, self.pace = self.fresh(self.folder.trials(), self.folder.instances())
        self.group = None

    def fresh(self, trials: list[TrialRecord], instances: list[InstanceRecord]) -> tuple[Progress, StudyPace]:
        engines = {"null": NullEngine()}
        pace = StudyPace(self.plan, engines, Estimator(self.plan, engines), available_bytes=2**40, on_device=False)
        progress = Progress(self.plan, pace)
        for record in (*trials, *instances):
            pace.add(record)
            progress.add([record])
        return progress, pace

    def wanted(self) -> list[Cell]:
        """What the group that runs now still lacks; a new group is asked for where there is none."""
        for _ in range(2):
            if self.group is None:
                self.group = self.progress.next_group()
            if self.group is None:
                return []
            cells = [
                Cell(contender=member.contender, workload=workload.name)
                for member in self.group.members
                for workload in member.workloads
            ]
            if left := [cell for cell in cells if self.progress.wants_trial(cell, self.group.block)]:
                return left
            self.group = None
        return []

    def draft(self, cell: Cell, outcome: Outcome) -> TrialRecord:
        assert self.group is not None
        self.clock += 1
        index = len(self.progress.trials_of(cell, self.group.block))
        metrics = TrialMetrics(output_throughput=100.0 + self.clock % 7) if outcome is Outcome.OK else TrialMetrics()
        started_at = f"2026-11-02T{self.clock // 3600:02d}:{self.clock // 60 % 60:02d}:{self.clock % 60:02d}+00:00"
        return make_trial(cell, self.group.block, index, started_at=started_at, outcome=outcome, metrics=metrics)

    @rule(outcome=OUTCOMES, choice=st.integers(0, 5))
    def end_trial(self, outcome: Outcome, choice: int) -> None:
        if not (cells := self.wanted()):
            return
        draft = self.draft(cells[choice % len(cells)], outcome)
        record = self.writer.append_trial(draft, pa.table({"request": pa.array([self.clock], pa.int32())}))
        assert self.folder.requests_of(record)["request"].to_pylist() == [self.clock]
        self.ended.append(record)
        self.progress.add([record])
        self.pace.add(record)

    @rule(outcome=OUTCOMES, share=TORN, rows=st.sampled_from(["none", "partial", "whole"]))
    def die_in_a_trial(self, outcome: Outcome, share: float, rows: str) -> None:
        """Its rows are not begun, half written or complete, and so many bytes of its line are there."""
        if not (cells := self.wanted()):
            return
        lines = self.place / "s" / "trials.jsonl"
        before = lines.stat().st_size if lines.exists() else 0
        record = self.writer.append_trial(
            self.draft(cells[0], outcome), pa.table({"request": pa.array([self.clock], pa.int32())})
        )
        path = self.folder.requests / f"{record.id}.parquet"
        written = int(share * (lines.stat().st_size - before)) if rows == "whole" else 0
        with lines.open("r+b") as file:
            file.truncate(before + written)
        if rows == "partial":
            path.with_name(f"{path.name}.{'0' * 16}.partial").write_bytes(path.read_bytes()[:10])
        if rows != "whole":
            path.unlink()
        self.die()

    @rule()
    def die(self) -> None:
        self.writer.__exit__(None, None, None)
        self.open()

    @rule(has_its_line=st.booleans())
    def start_instance(self, has_its_line: bool) -> None:
        """Or die between its log and its line: its id is not given again."""
        instance_id, log = self.writer.new_instance()
        assert instance_id not in {record.id for record in self.started}
        record = make_instance(self.plan.contenders[0], 0, id=instance_id, log_file=f"logs/{log.name}")
        self.started.append(record)
        if has_its_line:
            self.writer.append_instance(record)
            self.pace.add(record)
        else:
            self.started[-1] = record.model_copy(update={"outcome": Outcome.CRASHED})
            self.die()

    @precondition(lambda self: self.ended)
    @rule(number=st.integers(0, 99))
    def double_a_line(self, number: int) -> None:
        """As a copy that was interrupted and repeated, or a merge of two folders, leaves it."""
        lines = self.place / "s" / "trials.jsonl"
        known = lines.read_bytes().splitlines(keepends=True)
        with lines.open("ab") as file:
            file.write(known[number % len(known)])

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        if not hasattr(self, "place"):
            return
        StoreMachine.steps["all"] += 1
        assert self.folder.trials() == self.ended
        alive = [record for record in self.started if record.outcome is Outcome.OK]
        assert self.folder.instances() == alive

    @invariant()
    def rows_are_those_of_the_trials(self) -> None:
        if not hasattr(self, "place"):
            return
        files = {path.name for path in self.folder.requests.iterdir()}
        assert files == {f"{trial.id}.parquet" for trial in self.ended}

    @invariant()
    def what_is_next_follows_from_the_records_alone(self) -> None:
        if hasattr(self, "place"):
            fresh, _ = self.fresh(self.ended, [one for one in self.started if one.outcome is Outcome.OK])
            assert self.progress.next_group() == fresh.next_group()

    @invariant()
    def no_cell_has_more_than_it_needs(self) -> None:
        if not hasattr(self, "place"):
            return
        counts = Counter((trial.cell, trial.block, trial.outcome) for trial in self.ended)
        for (_, block, outcome), count in counts.items():
            most = {Outcome.OK: self.pace.rounds(block), Outcome.CLIENT_BOUND: CLIENT_BOUND_REPEATS + 1}
            assert count <= most.get(outcome, 1)


def simulate(number: int, examples: int) -> int:
    """Run so many examples from a seed; how many steps they had."""
    StoreMachine.steps.clear()
    chosen = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(number)(StoreMachine), settings=chosen)
    return StoreMachine.steps["all"]
