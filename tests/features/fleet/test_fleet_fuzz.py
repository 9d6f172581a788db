"""Mutated messages of a node program: each is refused in a sentence or is no other result, and none is a Python error.

A block's messages are tried one after the other against a run that waits for them; what is refused leaves it as it was.
A load's are tried with whole trials of two machines, one of which lies.
"""

import io
import json
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bitbench import __version__
from bitbench.analysis.summarize import summarize
from bitbench.analysis.trial import metrics_of_trial
from bitbench.features.fleet import load_fleet, machines
from bitbench.features.fleet.channel import Message, RunLost, RunRefused, channel_message, encode_channel_message
from bitbench.features.fleet.load_fleet import LoadFleet
from bitbench.features.fleet.machines import RemoteRun, Station
from bitbench.features.fleet.orders import BlockOrder
from bitbench.features.fleet.roster import FixedRoster
from bitbench.measure.group import Draft
from bitbench.measure.quality import QualityDraft
from bitbench.measure.trial import TrialDraft
from bitbench.ports import Endpoint, LoadJob, LoadLost, Vocabulary
from bitbench.records.folder import Writer
from bitbench.records.lock import HostFacts
from bitbench.records.quality import QualityRecord
from bitbench.records.strict_reader import checked_record
from bitbench.records.trial import InstanceRecord, LoadProgress, TrialRecord
from bitbench.reports.document.markdown import markdown
from bitbench.reports.study import study_document
from bitbench.study.quality import Quality
from bitbench.study.workload import Workload
from bitbench.util.errors import FleetError, LoadError
from tests.features.fleet.scripted_nodes import HOST, MATERIAL, Lie, ScriptedNode, block_results, seat
from tests.length import by_length
from tests.unit.mutations import KINDS, changed
from tests.unit.synthetic import make_plan, make_records

pytestmark = pytest.mark.timeout(by_length(600, 3600))
BLOCK_MESSAGES = by_length(2_000, 75_000)
LOAD_MESSAGES = by_length(400, 20_000)
GREETINGS = by_length(400, 5_000)
REPORTED_EACH = 100  # of what was believed though it had been changed
SEED = 5
POINT_LIES = [
    None,
    float("nan"),
    float("inf"),
    -1,
    0,
    1,
    2**31 - 1,
    1e-9,
    0.005,
    1e308,
    "",
    "ok",
    "x" * 20_000,
    [],
    [0.1],
]
WORKLOADS = (
    Workload(name="w", concurrency=2, input_tokens=4, output_tokens=12),
    Workload(name="v", input_tokens=4, output_tokens=12, requests=5, arrival={"kind": "poisson", "rate": 500.0}),
)


def order() -> BlockOrder:
    plan = make_plan(["a"], WORKLOADS, quality=Quality(windows=2, window_tokens=8, top_tokens=2))
    quality = plan.configs[:1]
    plan = plan.model_copy(update={"quality": quality})
    return BlockOrder(
        id="o1", bitbench="", plan=plan, folder="/", block=1, rounds=1, open_points=(0, 1), quality=quality
    )


class Folder:
    def material(self, model: str) -> object:
        return MATERIAL


class Memory(Writer):
    """A writer that writes nothing."""

    def __init__(self) -> None:
        self.folder = Folder()  # type: ignore[assignment]
        self._count = 0

    def new_instance(self) -> tuple[str, Path]:
        self._count += 1
        return f"i{self._count:04d}", Path()

    def append_log(self, instance_id: str, content: bytes) -> None: ...


class Waiting(ScriptedNode):
    """Says nothing by itself but `hello` and `started`."""

    def put(self, frame: bytes) -> None:
        self._empty = 0
        self._sent.append(frame)

    def send(self, one: Message) -> None:
        if one.header.kind == "hello":
            super().send(one)
        elif one.header.kind == "start":
            self._say(channel_message("started", order=one.header.order))


@dataclass
class Scene:
    """A run that waits for the message of this number, and the drafts that led there."""

    seq: int
    channel: Waiting = field(init=False)
    station: Station = field(init=False)
    run: RemoteRun = field(init=False)
    drafts: list[Draft] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.channel = Waiting(lambda: None)
        self.station = Station(replace(seat("m"), connect=lambda _: self.channel), lambda: None)
        self.station.greet()
        self.station.listen()
        self.run = RemoteRun(self.station, ORDER, Memory())
        for _ in range(2):
            assert self.run.next(0) is None
        for number, one in enumerate(HONEST[: self.seq]):
            self.drafts.append(self.take(encode_channel_message(one), number))
        assert self.run.next(self.seq) is None  # it is asked for

    def take(self, frame: bytes, seq: int) -> Any:
        if self.run.next(seq) is None:
            self.channel.put(frame)
        return self.run.next(seq)


ORDER = order()
HONEST = [
    replace(one, header=one.header.model_copy(update={"seq": seq}))
    for seq, one in enumerate(block_results(ORDER, {"none": MATERIAL}))
]


def mutated(one: Message, source: random.Random) -> bytes:
    """The frame, its header, its record or one of its parts, changed in one to three places; or a value of its rows."""
    what = source.choice(("frame", "header", "record", "record", "part", "rows", "rows"))
    if what == "frame":
        return _spoiled(encode_channel_message(one), source)
    if what == "header":
        text = _spoiled(one.header.model_dump_json(exclude_defaults=True).encode(), source)
        return _framed(text, one.parts)
    if what == "record" or not one.parts:
        record = _spoiled(one.header.record.encode(), source).decode(errors="replace")
        return encode_channel_message(replace(one, header=one.header.model_copy(update={"record": record})))
    if what == "rows" and (rows := _table(one.parts[0])) is not None:
        return encode_channel_message(replace(one, parts=(_file(_other_rows(rows, source)), *one.parts[1:])))
    place = source.randrange(len(one.parts))
    parts = [_spoiled(part, source) if number == place else part for number, part in enumerate(one.parts)]
    return encode_channel_message(replace(one, parts=tuple(parts)))


def _spoiled(content: bytes, source: random.Random) -> bytes:
    share = 2**20
    changes = [
        (source.choice(KINDS), source.randrange(share), source.randrange(share), source.randrange(share))
        for _ in range(source.choice((1, 1, 1, 2, 3)))
    ]
    return changed(content, changes)


def _framed(text: bytes, parts: tuple[bytes, ...]) -> bytes:
    try:
        header = json.loads(text)
        if isinstance(header, dict):
            text = json.dumps({**header, "parts": [len(part) for part in parts]}).encode()
    except (ValueError, RecursionError):
        pass
    return b"".join((len(text).to_bytes(4, "little"), text, *parts))


def _table(content: bytes) -> pa.Table | None:
    try:
        return pq.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError):
        return None


def _file(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    return sink.getvalue()


def _other_rows(rows: pa.Table, source: random.Random) -> pa.Table:
    name = source.choice(rows.column_names)
    place = rows.column_names.index(name)
    kind = source.randrange(8)
    if kind == 0:
        return rows.remove_column(place)
    if kind == 1:
        return rows.rename_columns([f"{one}x" if one == name else one for one in rows.column_names])
    if kind == 2:
        return pa.concat_tables([rows, rows.slice(source.randrange(rows.num_rows))])
    if kind == 3:
        return rows.slice(source.randrange(rows.num_rows + 1))
    values = rows[name].to_pylist()
    values[source.randrange(len(values))] = source.choice([*POINT_LIES, *values])
    try:
        return rows.set_column(place, rows.schema.field(name), pa.array(values, rows.schema.field(name).type))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # of another type: the whole column, then
        return rows.set_column(place, name, pa.array([source.choice(["x", True, b"\xff"])] * rows.num_rows))


def facts(draft: Draft) -> dict[str, object]:
    """What of a result this machine knows itself: a message that was changed may change nothing of it."""
    if isinstance(draft, InstanceRecord):
        names = ("config", "block", "host", "outcome", "log_file", "id", "cause")
        return {name: getattr(draft, name) for name in names}
    if isinstance(draft, TrialDraft):
        names = ("kind", "point", "block", "index", "instance_id", "outcome", "cause", "metrics",
                 "objectives", "requests", "failed_requests", "sketched")  # fmt: skip
        assert draft.requests is not None
        tokens = {name: draft.requests[name].to_pylist() for name in ("request", "input_tokens", "output_tokens")}
        return {**{name: getattr(draft.record, name) for name in names}, **tokens}
    names = ("config", "condition", "instance_id", "outcome", "cause", "corpus", "top_tokens", "tokens")
    assert draft.scores is not None
    scored = {name: draft.scores[name].to_pylist() for name in ("window", "position", "token")}
    return {**{name: getattr(draft.record, name) for name in names}, **scored}


def check_kept(draft: Draft) -> None:
    """What would be written can be read again, and its figures follow from its rows."""
    record = draft if isinstance(draft, InstanceRecord) else draft.record
    kind = type(record)
    assert kind in (InstanceRecord, TrialRecord, QualityRecord)
    assert checked_record(record.model_dump_json().encode(), kind, 1) == record
    if isinstance(draft, TrialDraft):
        assert metrics_of_trial(draft.requests, ORDER.plan.study.objectives) == draft.record.metrics


def report(draft: Draft, honest: list[Draft]) -> None:
    """In a study with all that an honest machine sent, this in the place of one."""
    trials, instances, rows = list[TrialRecord](), list[InstanceRecord](), dict[str, pa.Table]()
    for one in honest:
        if isinstance(one, InstanceRecord):
            same = isinstance(draft, InstanceRecord) and draft.id == one.id
            instances.append(draft if same else one)
        elif isinstance(one, TrialDraft):
            same = isinstance(draft, TrialDraft) and facts(draft) == facts(one)
            chosen = draft if same else one
            trials.append(chosen.record.model_copy(update={"id": f"t{len(trials):05d}", "requests_file": "x"}))
            rows[trials[-1].id] = chosen.requests
    records = make_records(ORDER.plan, trials, instances, requests_of=lambda trial, _=None: rows[trial.id])
    markdown(study_document(summarize(records), records.lock, instances=instances))


def test_no_mutated_message_of_a_block_is_believed_or_a_python_error() -> None:
    source, said = random.Random(SEED), Counter[str]()
    whole = Scene(len(HONEST) - 1).drafts
    places = [*range(len(HONEST))]
    share = BLOCK_MESSAGES // len(places)
    for seq in places:
        scene = Scene(seq)
        for _ in range(share):
            frame = mutated(HONEST[seq], source)
            if frame == encode_channel_message(HONEST[seq]):
                continue
            what = _tried(scene, frame, whole, said)
            said[what] += 1
            if what in ("believed", "ended"):
                scene = Scene(seq)
        if seq < len(whole):
            assert facts(scene.take(encode_channel_message(HONEST[seq]), seq)) == facts(
                whole[seq]
            )  # what was refused left no trace
    print(dict(said))
    assert said.keys() <= {"refused", "believed", "ignored", "ended"}
    assert said["refused"] > BLOCK_MESSAGES / 2
    assert said["believed"] > 0  # of what only that machine can know, such as memory


def _tried(scene: Scene, frame: bytes, whole: list[Draft], said: Counter[str]) -> str:
    try:
        draft = scene.take(frame, scene.seq)
    except (RunLost, RunRefused) as lost:
        scene.run._waiting.clear()
        return "refused" if 0 < len(str(lost)) < 600 else "refused without a sentence"
    if draft is None:
        scene.run._waiting.clear()
        return "ignored"
    if not isinstance(draft, InstanceRecord | TrialDraft | QualityDraft):
        assert scene.seq > 0  # an end that comes too early: what is left is ordered again
        return "ended"
    assert facts(draft) == facts(whole[scene.seq])
    check_kept(draft)
    if said["believed"] % REPORTED_EACH == 0:
        report(draft, whole)
    return "believed"


def test_no_mutated_greeting_is_a_python_error() -> None:
    source, said = random.Random(SEED), Counter[str]()
    hello = channel_message("hello", bitbench=__version__, host=HOST)
    for _ in range(GREETINGS):
        channel = Waiting(lambda: None)
        station = Station(replace(seat("m"), connect=lambda _, channel=channel: channel), lambda: None)
        station.greet()
        channel.receive()
        channel.put(mutated(hello, source))
        try:
            station.listen()
        except RunLost:
            said["refused"] += 1
            continue
        said["met" if station.facts else "ignored"] += 1
        if station.facts is not None:
            HOST.differences(station.facts)
            assert checked_record(station.facts.model_dump_json().encode(), HostFacts, 0) == station.facts
    print(dict(said))
    assert said["refused"] > 0.2 * GREETINGS


WORKLOAD = Workload(name="w", concurrency=4, input_tokens=4, output_tokens=12, requests=8, arrival="closed_loop")
JOB = LoadJob(Endpoint("http://h:1", "m"), WORKLOAD, Vocabulary(100), (1, 2), 1.0, 1.0)
SAID_IN_A_LOAD = ("hello", "started", "clock", "progress", "load", "rows", "end")
SAID_TWICE = ("clock", "rows")


def lying(kind: str, skipped: int, source: random.Random) -> Lie:
    """One message of this kind, after some that are left as they are."""
    left = iter([False] * skipped + [True])

    def lie(one: Message) -> bytes | None:
        if kind not in (one.header.kind, one.header.draft) or not next(left, False):
            return None
        return mutated(one, source)

    return lie


def test_no_mutated_message_of_a_load_is_believed_or_a_python_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, constant, value in (
        (load_fleet, "LEAD_S", 0.0),
        (load_fleet, "EXCHANGES", 2),
        (load_fleet, "PING_S", 0.02),
        (load_fleet, "WAIT_S", 0.001),
        (load_fleet, "HELLO_S", 1.0),
        (machines, "PING_S", 0.02),
    ):
        monkeypatch.setattr(module, constant, value)
    source, said = random.Random(SEED), Counter[str]()
    with LoadFleet(FixedRoster((seat("one"), seat("two")))) as client:
        honest = client.run(JOB, lambda _: None)
    for number in range(LOAD_MESSAGES):
        kind = SAID_IN_A_LOAD[number % len(SAID_IN_A_LOAD)]
        liar = seat("liar", lying(kind, source.randrange(2) if kind in SAID_TWICE else 0, source))
        told: list[LoadProgress] = []
        try:
            with LoadFleet(FixedRoster((seat("one"), liar))) as client:
                result = client.run(JOB, told.append)
        except (LoadLost, LoadError, FleetError) as lost:
            said["refused" if "liar" in str(lost) else f"not named: {lost}"] += 1
            continue
        said["believed"] += 1
        assert result.sketched == honest.sketched
        assert metrics_of_trial(result.requests) == metrics_of_trial(honest.requests)
        assert result.requests["request"].to_pylist() == honest.requests["request"].to_pylist()
    print(dict(said))
    assert said.keys() <= {"refused", "believed"}
    assert said["refused"] > LOAD_MESSAGES / 4
