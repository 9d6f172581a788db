"""The parts of a fleet: orders, messages, a node program that is asked twice, which blocks may run at once."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bitbench import __version__
from bitbench.engines import registry
from bitbench.features.fleet.channel import (
    MOST_WAITING,
    Channel,
    ChannelClosed,
    Message,
    PipeChannel,
    RunLost,
    channel_message,
    decode_channel_message,
    encode_channel_message,
)
from bitbench.features.fleet.driver import StudyDriver, refuse_driving_mixed_machines, refuse_what_one_machine_does
from bitbench.features.fleet.incoming import BlockResults
from bitbench.features.fleet.machines import ENDED, MOST_LOSSES, QUARANTINE_S, Fleet, Machine, Station
from bitbench.features.fleet.orders import BlockOrder, fleet_order_differences, make_order
from bitbench.features.fleet.roster import FixedRoster, roster_of
from bitbench.features.fleet.serving import MachineBusy, fleet_serving_lock
from bitbench.measure.loop import Schedule
from bitbench.measure.offers import LogObserver
from bitbench.measure.plan import plan_study
from bitbench.measure.progress import progress_excuses
from bitbench.measure.quality import QualityDraft, new_quality_record
from bitbench.measure.runner import run_pace
from bitbench.measure.trial import TrialDraft
from bitbench.measure.workplace import Workplace
from bitbench.records.folder import StudyFolder
from bitbench.records.lock import HostFacts, Lock
from bitbench.records.trial import Memory, Outcome
from bitbench.study.study import Study
from bitbench.util.errors import FleetError, NotComparableError, UsageError
from tests.unit.synthetic import make_trial
from tests.unit.test_pace import planned
from tests.unit.test_schedule import plan_of

pytestmark = pytest.mark.usefixtures("only_nodes")

LONG_S = 3600.0
STUDY = {
    "name": "fleet",
    "engines": [
        {"engine": "null", "name": "a", "args": {"ttft": "5ms", "tpot": "1ms"}},
        {"engine": "null", "name": "b", "args": {"ttft": "5ms", "tpot": "1ms"}},
    ],
    "workloads": [{"name": "w", "concurrency": 1, "input_tokens": 4, "output_tokens": 8}],
    "measure": {"starts": 2, "trials": 1},
}


def order_of(folder: Path, order_id: str = "o1", **changes: object) -> BlockOrder:
    plan = plan_study(Study.model_validate(STUDY), Workplace())
    order = make_order(
        order_id, Lock(plan=plan), str(folder), run_pace(plan, Workplace()), [], block=0, rounds=1, quality=()
    )
    return order.model_copy(update=changes)


class Driver:
    """One node program, asked by hand."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def ask(self, kind: str, *wanted: str, **fields: object) -> Message:
        self.channel.send(channel_message(kind, **fields))  # type: ignore[arg-type]
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            arrived = self.channel.receive()
            if arrived is not None and arrived.header.kind in wanted:
                return arrived
            time.sleep(0.01)
        raise AssertionError(f"no {wanted} after {kind}")

    def start(self, order: BlockOrder) -> Message:
        return self.ask("start", "started", "refused", order=order.id, record=order.model_dump_json())

    def next(self, order: BlockOrder, seq: int) -> Message:
        return self.ask("next", "draft", "end", "failed", order=order.id, seq=seq)


@pytest.fixture
def driver() -> Iterator[Driver]:
    channel = roster_of("local:1").seats()[0].connect(lambda: None)
    yield Driver(channel)
    channel.close()


def test_messages_come_out_as_they_went_in() -> None:
    sent = channel_message(
        "draft", b"rows", b"", b"log", draft="trial", seq=3, record="{}", has_rows=True, logs=("i1", "i2")
    )
    got = decode_channel_message(encode_channel_message(sent))
    assert got.parts == (b"rows", b"", b"log")
    assert (got.header.seq, got.header.logs) == (3, ("i1", "i2"))


@pytest.mark.parametrize(
    "frame", [b"", b"\x01", b"\x05\0\0\0hello", encode_channel_message(channel_message("ping", b"x")) + b"y"]
)
def test_what_is_no_message_is_said(frame: bytes) -> None:
    with pytest.raises(FleetError):
        decode_channel_message(frame)


def test_an_order_has_some_kilobytes_and_no_figures(tmp_path: Path) -> None:
    order = order_of(tmp_path)
    assert len(order.model_dump_json()) < 12_000
    assert BlockOrder.model_validate_json(order.model_dump_json()) == order
    plan, pace, _ = planned(starts=2, trials=2)
    point, other = plan.points[0], plan.points[1]
    trials = [
        make_trial(point, 0, 0, memory=Memory(peak_bytes=7)),
        make_trial(point, 1, 0, memory=Memory(peak_bytes=5)),
        make_trial(other, 0, 0, outcome=Outcome.OOM),
        make_trial(other, 0, 1, memory=Memory(peak_bytes=3)),
        make_trial(other, 0, 2),
    ]
    sent = make_order("o1", Lock(plan=plan), "/", pace, trials, block=1, rounds=2, quality=()).history
    assert [(one.block, one.index, one.outcome) for one in sent] == [
        (0, 0, Outcome.OK),  # it needed most memory
        (1, 0, Outcome.OK),
        (0, 0, Outcome.OOM),
        (0, 1, Outcome.OK),
    ]


def test_an_order_says_what_an_earlier_call_rejected() -> None:
    plan, pace, _ = planned(starts=2, trials=2)
    late = [make_trial(plan.points[0], block, 0, outcome=Outcome.CLIENT_BOUND) for block in range(2)]
    counted = make_trial(plan.points[1], 1, 0)
    order = make_order(
        "o1",
        Lock(plan=plan),
        "/",
        pace,
        [*late, counted],
        excused=progress_excuses(late),
        block=1,
        rounds=2,
        quality=(),
    )
    assert [one.id for one in order.history] == [late[1].id, counted.id]
    assert order.excused == (late[1].id,)


def test_a_node_says_what_it_is_and_works_step_by_step(driver: Driver, tmp_path: Path) -> None:
    hello = driver.ask("hello", "hello")
    assert hello.header.bitbench == __version__
    assert hello.header.host is not None
    order = order_of(tmp_path)
    assert driver.start(order).header.kind == "started"
    assert driver.start(order).header.kind == "started"  # the same again changes nothing
    kinds, seq, trials, results = [], 0, [], BlockResults(order, {})
    while (result := driver.next(order, seq)).header.kind == "draft":
        assert result == driver.next(order, seq)  # asked for twice, it comes twice and is not run twice
        draft, _ = results.take(result, LONG_S)
        kinds.append(result.header.draft)
        if isinstance(draft, TrialDraft):
            trials.append((draft.record.point.name, draft.record.kind, draft.record.index))
            assert draft.requests is not None
            assert draft.requests.num_rows == draft.record.requests
        seq += 1
    assert result.header.kind == "end"
    assert driver.next(order, seq) == result
    assert kinds.count("instance") == 2
    assert {name for name, kind, _ in trials if kind == "measured"} == {"a · w", "b · w"}
    assert len(trials) == len(set(trials))
    assert driver.start(order_of(tmp_path, "o2")).header.kind == "started"  # it takes the next one


def test_a_node_ends_with_its_driver(tmp_path: Path) -> None:
    channel = roster_of("local:1").seats()[0].connect(lambda: None)
    driver, order = Driver(channel), order_of(tmp_path)
    driver.start(order)
    driver.next(order, 0)
    channel.close()  # waits for its end
    with pytest.raises(ChannelClosed):
        channel.send(channel_message("ping"))
    with fleet_serving_lock("local-1"):  # and nobody holds the machine any more
        pass


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"bitbench": "0.0.1"}, "bitbench"),
        ({"environments": {"vllm": "abc"}}, "environment vllm is missing"),
        ({"files": {"prompts.txt": "abc"}}, "file prompts.txt is missing"),
        ({"format": 99}, "format"),
    ],
)
def test_a_node_that_is_set_up_otherwise_refuses(
    driver: Driver, tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    refused = driver.start(order_of(tmp_path, **changes))
    assert refused.header.kind == "refused"
    assert why in refused.header.said
    assert not refused.header.is_passing


def test_one_block_per_machine(driver: Driver, tmp_path: Path) -> None:
    with fleet_serving_lock("local-1"):
        with pytest.raises(MachineBusy), fleet_serving_lock("local-1"):
            pass
        refused = driver.start(order_of(tmp_path))
        assert refused.header.kind == "refused"
        assert refused.header.is_passing
    assert driver.start(order_of(tmp_path)).header.kind == "started"


HOST = HostFacts(cpu_model="X", cores=4, threads=8, memory_bytes=64 * 2**30)


def test_machines_of_one_class_only() -> None:
    alike = HOST.model_copy(update={"memory_bytes": int(63.9 * 2**30), "kernel": "6.9"})
    refuse_driving_mixed_machines({"one": HOST, "two": alike})
    other = HOST.model_copy(update={"cpu_model": "Y"})
    with pytest.raises(NotComparableError, match=r"one and two are machines of different classes.*cpu_model: X and Y"):
        refuse_driving_mixed_machines({"one": HOST, "two": other})


class SilentChannel:
    def send(self, one: Message) -> None:
        """Swallowed, as by a cut cable."""

    def receive(self) -> Message | None:
        return None

    def close(self) -> None: ...


def test_a_machine_that_is_silent_or_lost_is_left_alone_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("bitbench.features.fleet.machines.time.monotonic", lambda: clock[0])
    seat = replace(roster_of("local:1").seats()[0], connect=lambda _: SilentChannel())
    station = Station(seat, lambda: None)
    for losses in range(1, MOST_LOSSES + 1):
        station.greet()
        assert station.state == "connecting"
        station.lose("cable")
        assert station.is_out
        clock[0] += QUARANTINE_S * 2 ** (losses - 1) + 1
        assert station.is_out == (losses == MOST_LOSSES)
    assert station.is_out_for_good
    assert station.state == "out for good: cable"


def test_a_machine_that_completes_a_block_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("bitbench.features.fleet.machines.time.monotonic", lambda: clock[0])
    station = Station(replace(roster_of("local:1").seats()[0], connect=lambda _: SilentChannel()), lambda: None)
    for _ in range(2 * MOST_LOSSES):
        station.greet()
        station.lose("cable")
        station.succeed()
        clock[0] += QUARANTINE_S + 1
        assert not station.is_out


class UnreachableChannel(SilentChannel):
    def __init__(self) -> None:
        self.is_mended, self.is_closed = threading.Event(), False

    def close(self) -> None:
        self.is_closed = self.is_mended.wait(60)


def test_nobody_waits_for_the_end_of_a_machine_that_is_out_of_reach() -> None:
    channel = UnreachableChannel()
    station = Station(replace(roster_of("local:1").seats()[0], connect=lambda _: channel), lambda: None)
    station.greet()
    station.lose("cable")
    assert not channel.is_closed
    channel.is_mended.set()
    station.end()
    assert channel.is_closed


IMPATIENT = "from bitbench.features.fleet import node, serving; serving.SILENCE_S = 1.0; node.main()"


@pytest.mark.parametrize("sent", [b"", encode_channel_message(channel_message("ping"))])
def test_a_node_ends_without_a_driver_that_listens(sent: bytes) -> None:
    """Also where it cannot get rid of its answers, as behind a cut cable."""
    command = [sys.executable, "-c", IMPATIENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as node:
        assert node.stdin is not None
        os.set_blocking(node.stdin.fileno(), False)
        while sent and node.stdin.write(len(sent).to_bytes(8, "little") + sent) is not None:
            pass  # until it is full
        assert node.wait(60) is not None


FLOOD = """
import sys
from bitbench.features.fleet.channel import channel_message, encode_channel_message
from bitbench.util.child_processes import write_child_frame
while True:
    write_child_frame(sys.stdout.buffer, encode_channel_message(channel_message("pong", b"x" * 100)))
"""


def test_a_node_that_says_more_than_it_is_asked_is_not_listened_to() -> None:
    channel = PipeChannel([sys.executable, "-c", FLOOD], os.environ, lambda: None)
    channel._reader.join(60)
    for _ in range(MOST_WAITING):
        assert channel.receive() is not None
    with pytest.raises(ChannelClosed, match="more than it is asked for"):
        channel.receive()
    channel._process.kill()
    channel.close()


class QualityThenGone:
    """A fleet whose machine measures quality, says so and goes away before the end; the next one ends at once."""

    def __init__(self, draft: QualityDraft) -> None:
        self._results: list[QualityDraft | RunLost] = [draft, RunLost("cable")]

    def machines(self) -> list[Machine]:
        return [Machine("m", HOST)]

    def start(self, order: BlockOrder, machine: Machine) -> "QualityThenGone":
        return self

    def next(self, seq: int) -> object:
        found = self._results.pop(0) if self._results else ENDED
        if isinstance(found, RunLost):
            raise found
        return found

    def knows(self, host: str) -> bool:
        return True

    def lost(self, machine: Machine, cause: str) -> None: ...
    def stop(self) -> None: ...
    def wait(self) -> None: ...


def test_quality_that_came_before_its_machine_was_lost_is_kept(tmp_path: Path) -> None:
    plan = plan_of()
    plan = plan.model_copy(update={"points": (), "quality": plan.configs[:1]})
    measured = QualityDraft(new_quality_record(plan.quality[0], "i0001", "2026-11-02T10:00:00.000+00:00"))
    folder = StudyFolder(tmp_path)
    with folder.writing() as writer:
        writer.write_lock(Lock(plan=plan))
        schedule = Schedule(plan, lambda: run_pace(plan, Workplace()), folder)
        fleet = QualityThenGone(measured)
        StudyDriver(
            Lock(plan=plan),
            folder="/",
            writer=writer,
            observer=LogObserver(),
            fleet=fleet,  # type: ignore[arg-type]
            schedule=schedule,
        ).run()
    assert [record.outcome for record in folder.quality_records()] == [Outcome.OK]


def test_without_machines_it_says_why(tmp_path: Path) -> None:
    seat = replace(
        roster_of("local:1").seats()[0], connect=lambda _: (_ for _ in ()).throw(ChannelClosed("no such host"))
    )
    with StudyFolder(tmp_path).writing() as writer:
        fleet = Fleet(FixedRoster((seat,)), writer, LogObserver())
        for station in (fleet.machines(), fleet.stations)[1]:
            station.lose("no such host")
            station.lose("no such host")
        with pytest.raises(FleetError, match="local-1: no such host"):
            fleet.hosts()


@pytest.mark.parametrize("address", ["", "local", "local:0", "local:x", "ssh://", "ssh://-oProxyCommand=x", "http://a"])
def test_where_must_be_one_of_the_forms(address: str) -> None:
    with pytest.raises(UsageError):
        roster_of(address)


def test_hosts_of_ssh() -> None:
    names = [seat.name for seat in roster_of("ssh://a,me@b.example:2222").seats()]
    assert names == ["a", "me@b.example"]
    behind_one = [seat.name for seat in roster_of("ssh://me@a:2201,me@a:2202").seats()]
    assert behind_one == ["me@a:2201", "me@a:2202"]


def test_what_one_machine_has_to_do_alone_is_refused() -> None:
    engines = registry.engines()
    with pytest.raises(UsageError, match="budget"):
        refuse_what_one_machine_does(plan_of(budget="10m"), engines)
    study = Study.model_validate({**STUDY, "engines": [{"engine": "endpoint", "args": {"url": "http://127.0.0.1:1"}}]})
    with pytest.raises(UsageError, match="runs elsewhere"):
        refuse_what_one_machine_does(plan_of().model_copy(update={"study": study}), engines)


def test_differences_are_named(tmp_path: Path) -> None:
    order = order_of(tmp_path, variants={"m/q": "1"}, files={"f": "2"})
    found = Lock(plan=order.plan, bitbench=__version__, variants={"m/q": "other"})
    assert fleet_order_differences(order, found, order.plan) == ["variant m/q differs", "file f is missing"]


class AuthenticationError(Exception):
    """Named as Ray's, which is not installed here."""


class WithAnotherToken:
    def init(self, **_: object) -> None:
        try:
            raise AuthenticationError("RPC error: InvalidAuthToken")
        except AuthenticationError as error:
            raise ConnectionError("Failed to connect to Ray cluster at head:6379") from error


def test_a_token_that_ray_refuses_is_said_to_be_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setattr("bitbench.features.fleet.roster._ray", WithAnotherToken)
    with pytest.raises(FleetError, match="head:6379 cannot be reached: it refuses the token; RAY_AUTH_TOKEN_PATH must"):
        roster_of("ray://head:6379")


class NotingTheFolder:
    def init(self, **_: object) -> None:
        raise ConnectionError(f"started in {Path.cwd()}")


def test_workers_of_ray_do_not_import_from_the_folder_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray puts the folder that it is started in first on the path of its workers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setattr("bitbench.features.fleet.roster._ray", NotingTheFolder)
    with pytest.raises(FleetError, match=r"started in /$"):
        roster_of("ray://head:6379")
    assert Path.cwd() == tmp_path
