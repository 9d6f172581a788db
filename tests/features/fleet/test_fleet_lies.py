"""A machine of a fleet that says what cannot be: it is named, its block is repeated elsewhere, the study goes on."""

import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bitbench.analysis.trial import metrics_of_trial
from bitbench.features.fleet import load_fleet
from bitbench.features.fleet.channel import Message, channel_message, encode_channel_message
from bitbench.features.fleet.driver import StudyDriver
from bitbench.features.fleet.load_fleet import LoadFleet
from bitbench.features.fleet.machines import Fleet
from bitbench.features.fleet.orders import pack_fleet_order_result
from bitbench.features.fleet.roster import FixedRoster
from bitbench.loadgen.client import WorkerPart
from bitbench.loadgen.workers import WorkerTask
from bitbench.measure.loop import Schedule
from bitbench.measure.offers import LogObserver
from bitbench.measure.plan import plan_study
from bitbench.measure.runner import run_pace
from bitbench.measure.trial import TrialDraft
from bitbench.measure.workplace import Workplace, default_home
from bitbench.ports import Endpoint, LoadJob, LoadLost, Vocabulary
from bitbench.records.folder import StudyFolder
from bitbench.records.lock import Lock
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.reports.write import StudyReport
from bitbench.study.study import Study
from bitbench.study.study_file import study_file_text
from bitbench.study.workload import Workload
from bitbench.util.errors import FleetError
from tests.features.fleet.scripted_nodes import HOST, Lie, load_results, rows_of, seat

BLOCKS, TRIALS = 2, 2
STUDY = Study.model_validate(
    {
        "name": "lies",
        "engines": [{"engine": "null", "name": "a"}, {"engine": "null", "name": "b"}],
        "workloads": [{"name": "w", "concurrency": 2, "input_tokens": 4, "output_tokens": 12}],
        "measure": {"starts": BLOCKS, "trials": TRIALS},
    }
)


class Warnings(LogObserver):
    def __init__(self) -> None:
        self.said: list[str] = []

    def warn(self, message: str) -> None:
        self.said.append(message)


def run_on(folder: StudyFolder, *lies: Lie) -> list[str]:
    """The study on a machine for each lie, which tells it once, and on one that tells none. What was warned of."""
    at, observer = Workplace(), Warnings()
    plan = plan_study(STUDY, at)
    seats = (*(seat(f"liar-{place}", lie) for place, lie in enumerate(lies, start=1)), seat("honest"))
    with folder.writing() as writer, closing(Fleet(FixedRoster(seats), writer, observer)) as fleet:
        lock = Lock(plan=plan, hosts=fleet.hosts(), host=HOST)
        writer.write_study(study_file_text(STUDY))
        writer.write_lock(lock)
        schedule = Schedule(plan, lambda: run_pace(plan, at, fleet.size), folder)
        StudyDriver(
            lock, folder=str(folder.path), writer=writer, observer=observer, fleet=fleet, schedule=schedule
        ).run()
    return observer.said


def check_whole(folder: StudyFolder) -> None:
    """Each point has its trials in each block, once, and all of them are an honest machine's; it can be reported."""
    hosts = {one.id: one.host for one in folder.instances()}
    measured = [trial for trial in folder.trials() if trial.kind == "measured"]
    counted = Counter((trial.point.name, trial.block) for trial in measured if trial.counts)
    assert counted == {(name, block): TRIALS for name in ("a · w", "b · w") for block in range(BLOCKS)}
    assert max(Counter((one.point.name, one.block, one.index) for one in measured).values()) == 1
    assert {hosts[trial.instance_id] for trial in measured if trial.counts} <= {"honest", "liar-1"}
    for trial in measured:
        if trial.counts:
            assert trial.metrics == metrics_of_trial(folder.requests_of(trial))
    assert StudyReport(folder, default_home()).summary.rankings


def of_trial(change: Callable[[dict[str, Any]], object], kind: str = "trial") -> Lie:
    """Its record, as JSON."""

    def lie(one: Message) -> bytes | None:
        if one.header.draft != kind:
            return None
        record = json.loads(one.header.record)
        change(record)
        return encode_channel_message(replace(one, header=one.header.model_copy(update={"record": json.dumps(record)})))

    return lie


def of_rows(change: Callable[[pa.Table], pa.Table], *, measured_again: bool = False) -> Lie:
    """Its rows, and its figures as well where they are `measured_again`."""

    def lie(one: Message) -> bytes | None:
        if one.header.draft != "trial":
            return None
        record = TrialRecord.model_validate_json(one.header.record)
        workload = STUDY.workloads[0] if record.kind == "measured" else STUDY.workloads[0].warm_up
        job = LoadJob(Endpoint("http://h:1", "m"), workload, Vocabulary(100), (1,), 1.0, 1.0)
        rows = change(rows_of(job, speed=1.0 + record.index))
        if measured_again:
            record = record.model_copy(update={"metrics": metrics_of_trial(rows), "requests": rows.num_rows})
        return encode_channel_message(
            pack_fleet_order_result(TrialDraft(record, rows), one.header.order, one.header.seq, {})
        )

    return lie


def of_frame(change: Callable[[Message], Message], kind: str) -> Lie:
    return lambda one: encode_channel_message(change(one)) if kind in (one.header.kind, one.header.draft) else None


def headed(**fields: object) -> Callable[[Message], Message]:
    return lambda one: replace(one, header=one.header.model_copy(update=fields))


def damaged(one: Message) -> Message:
    rows = bytearray(one.parts[0])
    rows[len(rows) // 3 : len(rows) // 3 + 40] = b"\xff" * 40
    return replace(one, parts=(bytes(rows),))


def times(factor: float) -> Callable[[pa.Table], pa.Table]:
    """Every time of every request, so much longer."""

    def change(rows: pa.Table) -> pa.Table:
        for place, field in enumerate(rows.schema):
            column = rows[field.name]
            if field.name == "chunk_s":
                column = pa.chunked_array([[[at * factor for at in chunks] for chunks in column.to_pylist()]])
            elif pa.types.is_float64(field.type):
                column = pc.multiply(column, factor)
            rows = rows.set_column(place, field, column)
        return rows

    return change


def fewer_tokens(rows: pa.Table) -> pa.Table:
    ones = pa.array([1] * rows.num_rows, pa.int32())
    for name in ("asked_output_tokens", "output_tokens"):
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), ones)
    first = rows["first_token_s"]
    rows = rows.set_column(rows.schema.get_field_index("last_token_s"), rows.schema.field("last_token_s"), first)
    chunks = pa.array([[at] for at in first.to_pylist()])
    return rows.set_column(rows.schema.get_field_index("chunk_s"), rows.schema.field("chunk_s"), chunks)


def ten_times(record: dict[str, Any]) -> None:
    record["metrics"] = {name: value and value * 10 for name, value in record["metrics"].items()}


LIES: dict[str, tuple[Lie, str]] = {
    "damaged rows": (of_frame(damaged, "trial"), "rows|cannot be right"),
    "rows with other columns": (
        of_rows(lambda rows: rows.rename_columns([f"x{n}" for n in range(rows.num_columns)])),
        "columns",
    ),
    "rows with a column more": (of_rows(lambda rows: rows.append_column("more", rows["request"])), "columns"),
    "no rows": (of_frame(lambda one: replace(headed(has_rows=False)(one), parts=()), "trial"), "without rows"),
    "rows twice": (of_rows(lambda rows: pa.concat_tables([rows, rows]), measured_again=True), "more than were asked"),
    "half of the rows": (of_rows(lambda rows: rows.slice(1), measured_again=True), "does not count by its rows"),
    "a part that is missing": (of_frame(lambda one: replace(one, parts=()), "trial"), "parts of it are missing"),
    "a date that is none": (of_trial(lambda record: record.update(started_at="yesterday")), "yesterday"),
    "a date of another year": (of_trial(lambda record: record.update(started_at="9999-12-31T23:59:59Z")), "a day"),
    "a date without a zone": (of_trial(lambda record: record.update(started_at="2026-11-02T10:00:00")), "a day"),
    "infinite time": (of_trial(lambda record: record.update(duration_s=float("inf"))), "not a finite number"),
    "negative time": (of_trial(lambda record: record.update(duration_s=-1.0)), "duration_s is -1.0"),
    "a start before it began": (of_trial(lambda record: record.update(ready_s=-1.0), "instance"), "ready_s is -1.0"),
    "an empty object": (of_trial(lambda record: record.clear()), "Field required"),
    "longer than it can have taken": (of_trial(lambda record: record.update(duration_s=60.0)), "came within"),
    "a start longer than it can have taken": (
        of_trial(lambda one: one.update(ready_s=60.0), "instance"),
        "came within",
    ),
    "ten times too fast by its figures": (of_trial(ten_times), "not those of its rows"),
    "ten times too fast by its rows": (of_rows(times(0.1)), "not those of its rows"),
    "slower than its own duration": (of_rows(times(100), measured_again=True), "not within the 0.02 s"),
    "times that run backwards": (of_rows(times(-1.0), measured_again=True), "is not within the|latency_s is -"),
    "fewer tokens than were asked for": (of_rows(fewer_tokens, measured_again=True), "is not what was asked for"),
    "another block": (of_trial(lambda record: record.update(block=1)), "it is of block 2"),
    "another block's start": (of_trial(lambda record: record.update(block=-1), "instance"), "block is -1"),
    "a point that is not in the study": (of_trial(lambda one: one["point"].update(workload="x")), "not in the study"),
    "another config": (of_trial(lambda one: one["point"]["config"].update(engine="b")), "not started"),
    "an engine that was not started": (of_trial(lambda one: one.update(instance_id="i9")), "not started"),
    "a trial before its turn": (of_trial(lambda record: record.update(index=5)), "its index is 5"),
    "a machine lost": (of_trial(lambda record: record.update(outcome="lost", cause="gone")), "only a driver"),
    "a failure without a cause": (
        of_trial(lambda record: record.update(outcome="crashed")),
        "does not fit its outcome",
    ),
    "a number that no file holds": (of_trial(lambda record: record.update(requests=10**30)), "too large"),
    "a text without end": (
        of_trial(lambda record: record.update(instance_id="x" * 10**6)),
        "char",
    ),
    "a log of nothing": (of_frame(lambda one: replace(headed(logs=("i9",))(one), parts=(b"x",)), "instance"), "log"),
    "the result after the next": (of_frame(headed(seq=3), "trial"), "not asked for"),
    "a result of no kind": (of_frame(headed(draft=None), "trial"), "of no kind"),
    "an end at once": (
        of_frame(lambda one: channel_message("end", order=one.header.order, seq=0), "instance"),
        "no result",
    ),
    "no message": (lambda one: b"\x01" if one.header.kind == "draft" else None, "no message of bitbench"),
    "a message that is cut": (
        lambda one: encode_channel_message(one)[:-9] if one.header.draft == "trial" else None,
        "damaged message",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_a_machine_that_lies_is_named_and_its_block_is_repeated_elsewhere(name: str, tmp_path: Path) -> None:
    lie, why = LIES[name]
    folder = StudyFolder(tmp_path)
    said = run_on(folder, lie)
    (cause,) = {one.cause for one in folder.instances() if one.outcome is Outcome.LOST}
    assert cause is not None
    assert cause.startswith("The machine liar-1 was lost: it ")
    assert re.search(why, cause), cause
    assert cause in said
    check_whole(folder)


def test_a_machine_that_lies_consistently_within_its_time_is_believed(tmp_path: Path) -> None:
    """docs/fleet.md says so: it cannot be told from a quick machine at the end of a slow way."""
    folder = StudyFolder(tmp_path)
    assert run_on(folder, of_rows(times(0.5), measured_again=True)) == []
    assert not [one for one in folder.instances() if one.outcome is Outcome.LOST]
    check_whole(folder)


def test_three_machines_that_lie_at_once_change_nothing(tmp_path: Path) -> None:
    run_on(StudyFolder(tmp_path), *(lie for lie, _ in [*LIES.values()][:3]))
    check_whole(StudyFolder(tmp_path))


WORKLOAD = Workload(name="w", concurrency=4, input_tokens=4, output_tokens=12, requests=8, arrival="closed_loop")
JOB = LoadJob(Endpoint("http://h:1", "m", "a-key-of-mine"), WORKLOAD, Vocabulary(100), (1, 2), 1.0, 1.0)


def once(lie: Lie) -> Lie:
    """Also after the machine was connected again."""
    told: list[bytes] = []

    def maybe(one: Message) -> bytes | None:
        if told or (frame := lie(one)) is None:
            return None
        told.append(frame)
        return frame

    return maybe


def of_part(change: Callable[[dict[str, Any]], object]) -> Lie:
    return of_trial(change, "load")


def of_file(change: Callable[[bytes], bytes]) -> Lie:
    return of_frame(lambda one: replace(one, parts=(change(one.parts[0]),)), "rows")


def reads(*clock_ns: int) -> Lie:
    return of_frame(headed(clock_ns=clock_ns), "clock")


def be_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, value in (("LEAD_S", 0.0), ("EXCHANGES", 3), ("PING_S", 0.05)):
        monkeypatch.setattr(load_fleet, constant, value)


LOAD_LIES: dict[str, tuple[Lie, str]] = {
    "an empty report": (of_part(lambda report: report.clear()), "Field required"),
    "a report that is none": (of_frame(headed(record="[]"), "load"), "not a JSON object"),
    "negative time": (of_part(lambda report: report.update(duration_s=-1.0)), "duration_s is -1.0"),
    "infinite time": (of_part(lambda report: report.update(duration_s=float("inf"))), "not a finite number"),
    "longer than it can have taken": (of_part(lambda report: report.update(duration_s=60.0)), "have not passed"),
    "slower than its own duration": (of_part(lambda report: report.update(duration_s=1e-4)), "not within"),
    "fewer requests": (of_part(lambda report: report.update(requests=1)), "there are 4 of 1"),
    "no workers": (of_part(lambda report: report["health"].update(workers=[])), "did not work"),
    "no sketch": (of_part(lambda report: report["sketches"].pop("ttft")), "other times"),
    "a sketch of nothing": (of_part(lambda report: report["sketches"].update(ttft={})), "not those of its rows"),
    "a bin that is none": (
        of_part(lambda one: one["sketches"].update(ttft={"bins": [10**6], "counts": [1]})),
        "bins of a sketch are damaged",
    ),
    "an end at once": (
        of_frame(lambda one: channel_message("end", order=one.header.order, seq=0), "load"),
        "not valid JSON",
    ),
    "a piece of nothing": (of_frame(lambda one: replace(one, parts=()), "rows"), "pieces of rows"),
    "damaged rows": (of_file(lambda piece: piece[:200] + b"\xff" * 40 + piece[240:]), "request rows"),
    "a file that is cut": (
        of_frame(lambda one: channel_message("end", order=one.header.order, seq=1), "rows"),
        "request rows",
    ),
    "progress that is none": (of_frame(headed(record="{}"), "progress"), "progress of its load"),
    "progress without end": (of_frame(headed(record='{"workers":[{"elapsed_s":1e999}]}'), "progress"), "finite"),
    "a clock of one hand": (reads(5), "its clock"),
    "a clock that runs backwards": (reads(2_000, 1_000), "its clock"),
    "a clock that stands beyond time": (reads(2**61 + 1, 2**61 + 1), "its clock"),
    "a clock that jumps": (reads(2**50, 2**50), "what its clock shows"),
    "facts about itself": (
        of_frame(headed(host=HOST.model_copy(update={"memory_bytes": 10**400})), "hello"),
        "facts about itself",
    ),
}


@pytest.mark.parametrize("name", LOAD_LIES)
def test_a_load_node_that_lies_is_named_and_the_trial_can_be_repeated(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_quick(monkeypatch)
    lie, why = LOAD_LIES[name]
    liar = seat("liar-1", once(lie))
    told = []
    with (
        pytest.raises((LoadLost, FleetError), match=f"liar-1 .*{why}") as lost,
        LoadFleet(FixedRoster((seat("honest"), liar))) as client,
    ):
        client.run(JOB, told.append)
    assert "a-key-of-mine" not in str(lost.value)
    with LoadFleet(FixedRoster((seat("honest"), liar))) as client:
        result = client.run(JOB, told.append)
    assert result.requests["request"].to_pylist() == [*range(8)]
    assert result.sketched["ttft"].count == 8
    assert told[-1].requests == 10


def test_a_node_never_answers_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    be_quick(monkeypatch)
    others = load_results(WorkerTask(JOB, WorkerPart(0, 2), report=False))

    def lie(one: Message) -> bytes | None:
        if one.header.draft not in ("load", "rows"):
            return None
        named = {"order": one.header.order, "seq": one.header.seq}
        return encode_channel_message(headed(**named)(others[one.header.seq]))

    client = LoadFleet(FixedRoster((seat("honest"), seat("liar-1", lie, lies=3))))
    with client, pytest.raises(LoadLost, match=r"liar-1 was lost .*another machine's"):
        client.run(JOB)
