"""Load from several node programs: one plan, clocks that are compared, sketches that merge, machines that go away."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

import bitbench
from bitbench import __version__
from bitbench.features.fleet.channel import NODE, Channel, Message, Seat, channel_message
from bitbench.features.fleet.computing import LoadNodes
from bitbench.features.fleet.jobs import LoadPart
from bitbench.features.fleet.load_fleet import ClockComparison, LoadFleet
from bitbench.features.fleet.orders import SKETCHED, LoadOrder
from bitbench.features.fleet.roster import FixedRoster, roster_of
from bitbench.loadgen.client import WorkerPart, run_job
from bitbench.loadgen.progress import RELATIVE_ERROR
from bitbench.loadgen.verdict import load_verdict
from bitbench.loadgen.workers import LoadWorkers, WorkerTask, decode_task_frame, encode_task_frame
from bitbench.measure.offers import LogObserver, load_client
from bitbench.ports import Endpoint, LoadJob, LoadLost, Vocabulary
from bitbench.records.request_rows import RequestRows, request_rows_statistic
from bitbench.records.trial import ClockReading, LoadProgress, Outcome
from bitbench.study.workload import Workload
from bitbench.util.errors import FleetError, LoadError, UsageError
from tests.length import by_length
from tests.unit.canary import KEY, traces
from tests.unit.null_instance import running

pytestmark = pytest.mark.usefixtures("only_nodes")

SERVER = {"ttft": "30ms", "tpot": "4ms", "vary": "20%"}
PATIENT = 60.0


def job(endpoint: Endpoint, **more: object) -> LoadJob:
    shape = {"name": "w", "concurrency": 6, "input_tokens": 16, "output_tokens": 8, "requests": 60}
    workload = Workload.model_validate({**shape, "arrival": "closed_loop", **more})
    return LoadJob(endpoint, workload, Vocabulary(1_000, excluded=(0,)), (1, 2, 3), PATIENT, PATIENT)


def on_schedule(endpoint: Endpoint, requests: int = 120) -> LoadJob:
    return job(endpoint, requests=requests, concurrency=64, arrival={"kind": "poisson", "rate": 60})


@contextmanager
def fleet(nodes: int) -> Iterator[LoadFleet]:
    with LoadFleet(roster_of(f"local:{nodes}")) as client:
        yield client


def node_programs() -> list[psutil.Process]:
    """Of this process, by the word that names their machine: local-1, local-2, …"""
    children = [child for child in psutil.Process().children() if NODE in child.cmdline()]
    return sorted(children, key=lambda child: child.cmdline()[-1])


@pytest.mark.parametrize("nodes", by_length([2], [2, 4]))
def test_nodes_share_one_plan_and_their_sketches_merge(nodes: int, tmp_path: Path) -> None:
    with running(SERVER, tmp_path) as endpoint:
        asked = on_schedule(endpoint)
        with fleet(nodes) as client:
            result = client.run(asked)
        alone = run_job(asked)
    table = result.requests
    assert table["status"].to_pylist() == ["ok"] * 120
    assert table["request"].to_pylist() == list(range(120))
    planned = np.array(table["planned_s"].to_pylist())
    assert planned == pytest.approx(np.array(alone.requests["planned_s"].to_pylist()), abs=1e-6)  # one seeded plan
    assert [node.requests for node in result.health.nodes] == [120 // nodes] * nodes
    assert [node.name for node in result.health.nodes] == [f"local-{place + 1}" for place in range(nodes)]
    assert len(result.health.workers) == nodes
    assert set(result.sketched) == set(SKETCHED)
    rows = RequestRows(table)
    for name, times in result.sketched.items():
        known = rows.time(name)[~np.isnan(rows.time(name))]
        assert times.count == known.size
        assert times.relative_error == RELATIVE_ERROR == 0.01
        for share, found in (("p50", times.p50_s), ("p90", times.p90_s), ("p99", times.p99_s)):
            assert found == pytest.approx(request_rows_statistic(known, share), rel=RELATIVE_ERROR * 1.0001)  # type: ignore[arg-type]


def test_streams_stay_with_their_node_and_a_node_may_have_none(tmp_path: Path) -> None:
    with running({"ttft": "5ms", "tpot": "1ms"}, tmp_path) as endpoint, fleet(2) as client:
        result = client.run(job(endpoint, concurrency=3, requests=9))
        assert result.requests["request"].to_pylist() == list(range(9))
        assert [node.requests for node in result.health.nodes] == [6, 3]  # streams 0 and 2, and 1
        single = client.run(job(endpoint, concurrency=1, requests=2))  # the same node programs
        assert single.requests["status"].to_pylist() == ["ok"] * 2
        assert [node.requests for node in single.health.nodes] == [2, 0]


def test_a_node_with_several_workers_sends_the_same_part(tmp_path: Path) -> None:
    with running({"ttft": "5ms", "tpot": "1ms"}, tmp_path) as endpoint, LoadWorkers(2) as workers:
        asked = on_schedule(endpoint, 20)
        result = workers.run(asked, part=WorkerPart(1, 3), choose_zero=lambda: time.monotonic() + 0.1)
    assert len(result.health.workers) == 2
    assert result.requests["request"].to_pylist() == [number for number in range(20) if number % 3 == 1]


def killing(place: int, gone: list[psutil.Process]) -> Callable[[LoadProgress], None]:
    """Once, in the middle of a trial: a node program; `gone` are its load workers then."""

    def kill(progress: LoadProgress) -> None:
        if not gone and progress.sent:
            node = node_programs()[place]
            gone.extend(node.children())
            node.kill()

    return kill


def test_a_node_killed_in_the_middle_is_said_and_the_next_trial_has_all(tmp_path: Path) -> None:
    gone: list[psutil.Process] = []
    with running({"ttft": "300ms", "tpot": "20ms"}, tmp_path) as endpoint, fleet(2) as client:
        with pytest.raises(LoadLost, match=r"the load node local-2 was lost .*signal 9"):
            client.run(job(endpoint, output_tokens=20), killing(1, gone))
        assert gone
        _, alive = psutil.wait_procs(gone, timeout=20)
        assert not alive  # nobody goes on sending
        assert client.run(job(endpoint, requests=6)).requests.num_rows == 6
    assert not node_programs()


class Killing(LogObserver):
    """Kills a node in the first trial that runs."""

    def __init__(self) -> None:
        self._kill = killing(0, [])

    def trial_running(self, progress: LoadProgress) -> None:
        self._kill(progress)


def test_a_lost_trial_is_recorded_does_not_count_and_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running({"ttft": "100ms", "tpot": "10ms"}, tmp_path) as endpoint:
        monkeypatch.setenv("LOAD_KEY", endpoint.api_key)
        results = bitbench.load(
            endpoint.url,
            tmp_path / "study",
            rate=[20.0],
            requests=30,
            output_tokens=10,
            trials=1,
            nodes=2,
            api_key_env="LOAD_KEY",
            observer=Killing(),
        )
    first, *others = (*results.excluded_trials, *results.trials)
    assert first.outcome is Outcome.LOST
    assert first.cause is not None
    assert "local-1 was lost" in first.cause
    assert first.requests_file is None
    assert not first.counts
    counted = [trial for trial in others if trial.counts]
    assert len(counted) == 1 or all(trial.outcome is Outcome.CLIENT_BOUND for trial in others)  # a busy machine
    last = others[-1]
    assert last.requests == 30
    found = results.summary.part(LoadNodes)
    assert [node.requests for node in (found.nodes if found else ())] == [15, 15] * len(counted)
    assert ("Load nodes" in results.report().read_text()) == bool(counted)
    assert last.client is not None
    assert [node.requests for node in last.client.nodes] == [15, 15]
    assert last.sketched["ttft"].count == 30
    held = [path for path in (tmp_path / "study").rglob("*") if path.is_file()]
    assert held
    assert not [path for path in held if endpoint.api_key.encode() in path.read_bytes()]


class WrongClock:
    """A channel to a machine whose monotonic clock is `ahead_s`: every time that goes over it is that machine's."""

    def __init__(self, channel: Channel, ahead_s: Callable[[], float], way_s: float) -> None:
        self._channel, self._ahead_s, self._way_s = channel, ahead_s, way_s

    def send(self, one: Message) -> None:
        if one.header.kind == "clock":
            time.sleep(self._way_s)
        self._channel.send(self._moved(one, -1) if one.header.kind == "go" else one)

    def receive(self) -> Message | None:
        arrived = self._channel.receive()
        return self._moved(arrived, 1) if arrived and arrived.header.kind == "clock" else arrived

    def close(self) -> None:
        self._channel.close()

    def _moved(self, one: Message, sign: int) -> Message:
        moved = tuple(at + sign * round(self._ahead_s() * 1e9) for at in one.header.clock_ns)
        return replace(one, header=one.header.model_copy(update={"clock_ns": moved}))


def fleet_with_clocks(*ahead_s: Callable[[], float], way_s: float = 0.0) -> LoadFleet:
    def moved(seat: Seat, ahead: Callable[[], float]) -> Seat:
        return replace(seat, connect=lambda heard: WrongClock(seat.connect(heard), ahead, way_s))

    seats = roster_of(f"local:{len(ahead_s)}").seats()
    return LoadFleet(FixedRoster(tuple(moved(seat, ahead) for seat, ahead in zip(seats, ahead_s, strict=True))))


def test_a_clock_that_is_wrong_is_corrected(tmp_path: Path) -> None:
    """Two machines, one 1,000 s ahead and one 2,000 s behind: requests go out as planned all the same."""
    with running(SERVER, tmp_path) as endpoint:
        asked = on_schedule(endpoint, 60)
        started = time.monotonic()
        with fleet_with_clocks(lambda: 1_000.0, lambda: -2_000.0) as client:
            result = client.run(asked)
        assert time.monotonic() - started < 100  # neither waited for its own idea of time zero
    for node, ahead_s in zip(result.health.nodes, (1_000.0, -2_000.0), strict=True):
        assert abs(node.clock_before.offset_s - ahead_s) <= node.clock_before.bound_s + 1e-6
        assert abs(node.clock_after.offset_s - ahead_s) <= node.clock_after.bound_s + 1e-6
    assert result.requests.num_rows == 60
    starts = [row["sent_s"] - row["planned_s"] for row in result.requests.to_pylist()]
    assert min(starts) >= 0
    failure = load_verdict(result.requests, asked.workload, result.health)
    assert failure is None or failure.outcome is Outcome.CLIENT_BOUND  # a busy machine; not the clocks


@pytest.mark.alone
def test_a_clock_that_moves_during_the_trial_makes_it_not_count(tmp_path: Path) -> None:
    began = threading.Event()
    with running(SERVER, tmp_path) as endpoint:
        asked = job(endpoint, requests=24)
        with fleet_with_clocks(lambda: 0.0, lambda: 0.02 if began.is_set() else 0.0) as client:
            result = client.run(asked, lambda _: began.set())
    failure = load_verdict(result.requests, asked.workload, result.health)
    assert failure is not None
    assert failure.outcome is Outcome.DISTURBED
    # 20 ms, and what is not known of its offset; that is more on a busy machine.
    assert re.match(r"the clock of local-2 may be off by 2\d\.", failure.cause)
    assert "limit" in failure.cause


class NoWay:
    """A channel to a machine for which the endpoint is at an address where nothing listens."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.receive, self.close = channel.receive, channel.close

    def send(self, one: Message) -> None:
        if one.header.kind == "start":
            task = decode_task_frame(one.parts[0])
            elsewhere = replace(task.job, endpoint=replace(task.job.endpoint, url="http://127.0.0.1:9"))
            one = replace(one, parts=(encode_task_frame(task._replace(job=elsewhere)),))
        self._channel.send(one)


def test_a_node_without_a_way_to_the_endpoint_is_named_and_no_fault_of_the_endpoint(tmp_path: Path) -> None:
    first, second = roster_of("local:2").seats()
    cut_off = replace(second, connect=lambda heard: NoWay(second.connect(heard)))
    with (
        running({"ttft": "5ms", "tpot": "1ms"}, tmp_path) as endpoint,
        LoadFleet(FixedRoster((first, cut_off))) as client,
        pytest.raises(LoadError, match=r"local-2 has no way to the endpoint, others do: no connection to 127.0.0.1:9"),
    ):
        client.run(job(endpoint, requests=12))


@pytest.mark.parametrize("seed", range(20))
def test_the_true_offset_is_within_the_bound_whatever_the_ways_take(seed: int) -> None:
    random = np.random.default_rng(seed)
    true = int(random.integers(-(10**12), 10**12))
    comparison, now = ClockComparison(), 0
    for _ in range(int(random.integers(1, 60))):
        there, thinking, back = (int(value) for value in random.exponential((2e5, 1e4, 5e6)))
        comparison.add(now, now + there + true, now + there + thinking + true, now + there + thinking + back)
        now += there + thinking + back + 1_000
    reading = comparison.reading()
    assert abs(reading.offset_s - true / 1e9) <= reading.bound_s + 1e-9
    assert comparison.least_ns <= true <= comparison.most_ns


def test_an_offset_may_have_been_wrong_by_its_bound_or_by_what_it_moved() -> None:
    before = ClockReading(offset_s=5.0, bound_s=0.003)
    assert before.after(ClockReading(offset_s=5.001, bound_s=0.001)) == pytest.approx(0.003)
    assert before.after(ClockReading(offset_s=4.99, bound_s=0.001)) == pytest.approx(0.011)


def test_the_key_is_in_nothing_that_is_said_or_kept(tmp_path: Path) -> None:
    """A node that cannot send, one that is killed, one that does not understand: none repeats the key."""
    said: list[str] = []
    with fleet(2) as client:
        for endpoint in (Endpoint("ftp://nowhere", "m", KEY), Endpoint(f"http://{KEY}@127.0.0.1:1", "m", KEY)):
            try:
                said.append(str(client.run(job(endpoint)).requests.to_pylist()))
            except (LoadError, LoadLost) as problem:
                said.append(str(problem))
        commands = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
        variables = [str(child.environ()) for child in node_programs()]
    task = WorkerTask(job(Endpoint("http://h:1", "m", KEY)), WorkerPart(0, 1), report=False)
    order = LoadOrder(id="o", bitbench=__version__, numpy=np.__version__)
    damaged = encode_task_frame(task).replace(b'"seed"', b'"weed"')
    for asked in (
        channel_message("start", damaged, record=order.model_dump_json()),
        channel_message("start", encode_task_frame(task)),
    ):
        with pytest.raises(FleetError, match="does not understand the order") as refused:
            LoadPart.read(asked)
        said += [str(refused.value), repr(refused.value.__cause__), repr(asked)]
    assert not [one for one in (*said, *commands, *variables, order.model_dump_json()) if traces(one)]


def test_a_node_that_would_draw_another_plan_refuses(tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "one two three"}\n')
    shape = {"text": {"file": "texts.jsonl"}, "input_tokens": 8, "output_forced": False}
    asked = replace(job(Endpoint("http://h:1", "m"), **shape), folder=tmp_path)
    task = WorkerTask(asked, WorkerPart(0, 1), report=False)
    order = LoadOrder(id="o", bitbench="0.0", numpy="1.0", files={"texts.jsonl": "another"})
    with pytest.raises(FleetError, match=r"bitbench .* instead of 0.0; numpy .* instead of 1.0; another texts.jsonl"):
        LoadPart(order, task).require_same()
    texts.unlink()
    with pytest.raises(FleetError, match=r"texts.jsonl cannot be read there"):
        LoadPart(order, task).require_same()


def test_options_that_cannot_work_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(FleetError, match="--nodes asks for 3 machines, but --on names 2"),
        load_client(3, "local:2", api_key_env="NO_SUCH_KEY"),
    ):
        pass
    monkeypatch.setenv("SOME_KEY", KEY)
    with pytest.raises(UsageError, match="in clear") as refused:
        load_client(None, "ray://10.0.0.1:6379", api_key_env="SOME_KEY")
    assert not traces(str(refused.value))


def test_a_machine_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'connect to host gone port 22: Connection refused' >&2\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with (
        pytest.raises(FleetError, match=r"gone does not answer: .*exit code 255: connect to host gone"),
        LoadFleet(roster_of("ssh://gone")),
    ):
        pass
