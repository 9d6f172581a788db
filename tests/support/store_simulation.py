"""A simulated lab over a real study folder: trials end, processes die at any byte.

Every step is checked against a model of what had ended. `walk` goes through many studies at random, from a seed; a
failure names the study, its steps, and how to repeat that study alone. `explore` leaves the choice of steps to
hypothesis, which shortens what fails.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import IO, Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from bitbench.analysis import ranking
from bitbench.records import strict_reader as records
from bitbench.records.folder import StudyFolder, Writer
from bitbench.records.request_rows import RequestParts
from bitbench.records.trial import InstanceRecord, Outcome, TrialMetrics, TrialRecord
from bitbench.running.progress import CLIENT_BOUND_REPEATS
from bitbench.study.plan import Plan, Point
from bitbench.study.study import Measure
from bitbench.study.workload import Workload
from tests.in_memory import MEMORY
from tests.support.paper_study import PaperStudy
from tests.support.synthetic import make_instance, make_lock, make_plan, make_trial

STEPS = 60  # of a study: enough for most to reach its end
OUTCOMES = [Outcome.OK] * 8 + [Outcome.CLIENT_BOUND, Outcome.CRASHED, Outcome.UNSUPPORTED]
ROWS = ["none", "partial", "whole"]  # what was written of a trial's rows when its process died
WORKLOADS = [
    Workload(name=f"w{number}", concurrency=1, input_tokens=8, output_tokens=8 + number)
    for number in range(2)
]
PLANS = {
    schedule: make_plan(
        ["a", "b", "c"],
        WORKLOADS,
        Measure.model_validate({"starts": {"min": 2, "max": 3}, "trials": 2, "schedule": schedule}),
    )
    for schedule in ("rounds", "visits")
}
SCHEDULES = sorted(PLANS)
WRITTEN_ROWS: dict[int, bytes] = {}  # by their only number
READ_ROWS: dict[bytes, pa.Table] = {}
# What can happen, how often in a walk, and with which arguments.
KINDS: dict[str, tuple[int, Callable[[Random], tuple[Any, ...]]]] = {
    "end_trial": (5, lambda rng: (rng.choice(OUTCOMES), rng.randrange(6))),
    "die_in_a_trial": (2, lambda rng: (rng.choice(OUTCOMES), rng.random(), rng.choice(ROWS))),
    "die": (1, lambda _: ()),
    "start_instance": (1, lambda rng: (rng.random() < 0.5,)),
}


class SimulatedStore:
    """The folder against `ended`: the trials whose line was complete, in their order. Each step checks both."""

    def __init__(self, schedule: str) -> None:
        self.place = Path(tempfile.mkdtemp(dir=MEMORY))
        self.folder = StudyFolder(self.place / "s")
        self.lines = self.place / "s" / "trials.jsonl"
        self.plan = PLANS[schedule]
        self.ended: list[TrialRecord] = []
        self.started: list[InstanceRecord] = []  # those with a line
        self.instance_ids: set[str] = set()
        self.counts: Counter[tuple[Point, int, Outcome]] = Counter()
        self.clock = 0
        with self.folder.open_writer() as writer:
            writer.write_study("name: made-up\n")
            writer.write_lock(make_lock(self.plan))
        self._open()

    def close(self) -> None:
        self.writer.__exit__(None, None, None)
        shutil.rmtree(self.place)

    def end_trial(self, outcome: Outcome, choice: int) -> None:
        if not (points := self._wanted()):
            return
        draft = self._draft(points[choice % len(points)], outcome)
        record = self.writer.append_trial(draft, RequestParts.of(self._rows()))
        assert self.folder.requests_of(record, ["request"])["request"].to_pylist() == [self.clock]
        self.ended.append(record)
        self.counts[record.point, record.block, outcome] += 1
        self._check_records()
        self._add(self.ended[-1])
        self._check_counts()

    def die_in_a_trial(self, outcome: Outcome, share: float, rows: str) -> None:
        """Its rows are not begun, half written or complete, and that share of its line's bytes is on the disk."""
        if not (points := self._wanted()):
            return
        before = self.lines.stat().st_size if self.lines.exists() else 0
        record = self.writer.append_trial(
            self._draft(points[0], outcome), RequestParts.of(self._rows())
        )
        path = self.folder.requests / f"{record.id}.parquet"
        written = int(share * (self.lines.stat().st_size - before)) if rows == "whole" else 0
        with self.lines.open("r+b") as file:
            file.truncate(before + written)
        if rows == "partial":
            path.with_name(f"{path.name}.{'0' * 16}.partial").write_bytes(path.read_bytes()[:10])
        if rows != "whole":
            path.unlink()
        self.die()

    def die(self) -> None:
        """What is next follows from the records alone: the next process, which knows nothing else, does what this one
        would have done."""
        would_have_done = self.study.next_group() if self.has_added else self.group
        self.writer.__exit__(None, None, None)
        self._open()
        assert self.group == would_have_done

    def start_instance(self, has_its_line: bool) -> None:
        """Or die between its log and its line: its id is not given again."""
        instance_id, log = self.writer.new_instance()
        assert instance_id not in self.instance_ids
        self.instance_ids.add(instance_id)
        if not has_its_line:
            self.die()
            return
        record = make_instance(self.plan.configs[0], 0, id=instance_id, log_file=f"logs/{log.name}")
        self.writer.append_instance(record)
        self.started.append(record)
        self._check_records()
        self._add(self.started[-1])
        self._check_counts()

    def _open(self) -> None:
        """A new process: all that it knows are the records."""
        self.writer: Writer = self.folder.open_writer().__enter__()
        self._check_records()
        self.study = PaperStudy(self.plan, available_bytes=2**40)
        for record in (*self.ended, *self.started):
            self._add(record)
        self.has_added = False
        self.group = self.study.next_group()
        self._check_counts()

    def _add(self, record: TrialRecord | InstanceRecord) -> None:
        """To what this process knows."""
        self.study.add([record])
        self.has_added = True

    def _wanted(self) -> list[Point]:
        """What the group that runs now still lacks; a new group is asked for where there is none."""
        for _ in range(2):
            if self.group is None:
                self.group = self.study.next_group()
            if self.group is None:
                return []
            points = [
                Point(config=member.config, workload=workload.name)
                for member in self.group.members
                for workload in member.workloads
            ]
            if left := [
                point
                for point in points
                if self.study.progress.is_trial_due(point, self.group.block)
            ]:
                return left
            self.group = None
        return []

    def _draft(self, point: Point, outcome: Outcome) -> TrialRecord:
        assert self.group is not None
        self.clock += 1
        index = len(self.study.progress.get_trials(point, self.group.block))
        metrics = (
            TrialMetrics(output_throughput=100.0 + self.clock % 7)
            if outcome is Outcome.OK
            else TrialMetrics()
        )
        started_at = f"2026-11-02T{self.clock // 3600:02d}:{self.clock // 60 % 60:02d}:{self.clock % 60:02d}+00:00"
        return make_trial(
            point, self.group.block, index, started_at=started_at, outcome=outcome, metrics=metrics
        )

    def _rows(self) -> pa.Table:
        return pa.table({"request": pa.array([self.clock], pa.int32())})

    def _check_records(self) -> None:
        """Nothing is lost or doubled, and rows are those of the trials."""
        trials, instances = self.folder.trials(), self.folder.instances()
        assert trials == self.ended
        assert instances == self.started
        self.ended, self.started = (
            trials,
            instances,
        )  # equal, and the same objects when they are read again
        files = {path.name for path in self.folder.requests.iterdir()}
        assert files == {f"{trial.id}.parquet" for trial in trials}

    def _check_counts(self) -> None:
        """No point has more than it needs."""
        for (_, block, outcome), count in self.counts.items():
            most = {
                Outcome.OK: self.study.rounds(block),
                Outcome.CLIENT_BOUND: CLIENT_BOUND_REPEATS + 1,
            }
            assert count <= most.get(outcome, 1)


@contextmanager
def computed_once() -> Iterator[None]:
    """What the same bytes or the same records gave before in a study, and is asked for again after every step: each
    file and line is parsed once, each claim computed once. Rows are the same in every study."""
    files: dict[tuple[bytes, type], list[Any]] = {}
    lines: dict[tuple[bytes, type], Any] = {}
    standings: dict[tuple[int, ...], Any] = {}
    read_lines, parse, standing = (
        records.read_lines,
        records.parse_record,
        ranking.make_sequential_analysis,
    )
    read_table, write_table = pq.read_table, pq.write_table

    def read_lines_once(path: Path, kind: type, newest: int) -> list[Any]:
        key = path.read_bytes() if path.exists() else b"", kind
        if key not in files:
            files[key] = read_lines(path, kind, newest)
        return list(files[key])

    def parse_once(raw: bytes, kind: type, *others: Any) -> Any:
        if (raw, kind) not in lines:
            lines[raw, kind] = parse(raw, kind, *others)
        return lines[raw, kind]

    def standing_once(
        plan: Plan, trials: list[TrialRecord], instances: list[InstanceRecord], *others: Any
    ) -> Any:
        key = (
            *map(id, trials),
            0,
            *map(id, instances),
        )  # the records live in `lines` as long as this
        if key not in standings:
            standings[key] = standing(plan, trials, instances, *others)
        return standings[key]

    def read_table_once(file: IO[bytes], columns: list[str] | None) -> pa.Table:
        if (content := file.read()) not in READ_ROWS:
            READ_ROWS[content] = read_table(pa.BufferReader(content), columns=columns)
        return READ_ROWS[content]

    def write_table_once(rows: pa.Table, file: IO[bytes], **options: Any) -> None:
        if (number := rows["request"][0].as_py()) not in WRITTEN_ROWS:
            write_table(rows, content := pa.BufferOutputStream(), **options)
            WRITTEN_ROWS[number] = content.getvalue().to_pybytes()
        file.write(WRITTEN_ROWS[number])

    with (
        patch("bitbench.records.folder.read_lines", read_lines_once),
        patch.object(records, "parse_record", parse_once),
        patch.object(ranking, "make_sequential_analysis", standing_once),
        patch.object(pq, "read_table", read_table_once),
        patch.object(pq, "write_table", write_table_once),
    ):
        yield


def walk(number: int, steps: int) -> Counter[str]:
    """At least so many steps from a seed; how many of each kind, and how many studies were begun and completed."""
    counts: Counter[str] = Counter()
    while counts["steps"] < steps:
        counts.update(walk_one(number, counts["studies"]))
    return counts


def walk_one(number: int, study: int) -> Counter[str]:
    """One study of a walk, whatever came before it."""
    rng = Random(f"{number}/{study}")
    schedule = rng.choice(SCHEDULES)
    kinds = rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()], k=STEPS - 1)
    taken: list[tuple[str, tuple[Any, ...]]] = []
    with computed_once():
        store = SimulatedStore(schedule)
        try:
            for kind in (*kinds, "die"):
                taken.append((kind, KINDS[kind][1](rng)))
                getattr(store, kind)(*taken[-1][1])
        except BaseException as error:
            steps = "".join(f"\n  {kind}{arguments}" for kind, arguments in taken)
            error.add_note(
                f"Study {study} of seed {number}, schedule {schedule}, failed at the last of these steps:{steps}\n"
                f"Repeat it: python -c 'from {__name__} import walk_one; walk_one({number}, {study})'"
            )
            raise
        finally:
            store.close()
    return Counter(kind for kind, _ in taken) + Counter(
        steps=STEPS, studies=1, completed=int(store.group is None)
    )


class StoreMachine(RuleBasedStateMachine):
    """The same steps, chosen by hypothesis."""

    steps = 0

    @initialize(schedule=st.sampled_from(SCHEDULES))
    def begin(self, schedule: str) -> None:
        self.store = SimulatedStore(schedule)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()

    @rule(outcome=st.sampled_from(OUTCOMES), choice=st.integers(0, 5))
    def end_trial(self, outcome: Outcome, choice: int) -> None:
        self.step("end_trial", outcome, choice)

    @rule(
        outcome=st.sampled_from(OUTCOMES),
        share=st.floats(0, 1, exclude_max=True),
        rows=st.sampled_from(ROWS),
    )
    def die_in_a_trial(self, outcome: Outcome, share: float, rows: str) -> None:
        self.step("die_in_a_trial", outcome, share, rows)

    @rule()
    def die(self) -> None:
        self.step("die")

    @rule(has_its_line=st.booleans())
    def start_instance(self, has_its_line: bool) -> None:
        self.step("start_instance", has_its_line)

    def step(self, kind: str, *arguments: object) -> None:
        StoreMachine.steps += 1
        getattr(self.store, kind)(*arguments)


def explore(number: int, examples: int) -> int:
    """Run so many examples of hypothesis from a seed; how many steps they had."""
    StoreMachine.steps = 0
    chosen = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    with computed_once():
        run_state_machine_as_test(seed(number)(StoreMachine), settings=chosen)
    return StoreMachine.steps
