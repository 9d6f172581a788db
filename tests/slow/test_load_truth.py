"""The client says the truth about a server whose schedule is known, or says that it cannot."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil
import pyarrow as pa
import pytest
import uvloop

from bitbench.loadgen.client import WHOLE, run_client_part
from bitbench.loadgen.verdict import list_moved_metrics, load_verdict
from bitbench.loadgen.workers import LoadWorkers
from bitbench.ports import Endpoint, LoadJob, Vocabulary
from bitbench.records.request_rows import RequestRows
from bitbench.records.request_sums import LOWEST_S, RELATIVE_ERROR, RequestSums
from bitbench.records.trial import ClientHealth, LoadProgress, Outcome
from bitbench.study.workload import Workload
from tests.support.null_instance import running

TTFT_S, TPOT_S = 0.100, 0.010
SCHEDULE = {"ttft": TTFT_S, "tpot": TPOT_S}


def job(endpoint: Endpoint, **shape: object) -> LoadJob:
    workload = Workload.model_validate(
        {"name": "w", "input_tokens": 16, "output_tokens": 2, **shape}
    )
    return LoadJob(endpoint, workload, Vocabulary(1_000), (1,), 120.0, 60.0)


def times(table: pa.Table, name: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.asarray(table[name].to_numpy(), dtype=np.float64)


def server_lateness_s(endpoint: Endpoint) -> float:
    """The p99 of how late the server itself was since this was asked last."""
    connection = http.client.HTTPConnection(urlsplit(endpoint.url).netloc)
    connection.request("GET", "/truth")
    return float(json.loads(connection.getresponse().read())["late_p99_s"] or 0.0)


def server_processes() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "null_server" in " ".join(child.cmdline())
    ]


def test_an_open_loop_sends_on_time(tmp_path: Path) -> None:
    """The best of some trials: a machine that others use is late at times, and the trial then says so."""
    lateness = []
    with running({"ttft": "20ms", "tpot": "5ms"}, tmp_path) as endpoint, LoadWorkers() as client:
        for _ in range(4):
            result = client.run(
                job(endpoint, arrival={"kind": "poisson", "rate": 500.0}, duration=3.0)
            )
            assert set(result.requests["status"].to_pylist()) == {"ok"}
            late = times(result.requests, "sent_s") - times(result.requests, "planned_s")
            assert late.min() >= 0
            assert result.health.send_lateness_p99_s == pytest.approx(
                np.quantile(late, 0.99), abs=1e-6
            )
            lateness.append(float(np.quantile(late, 0.99)))
            if lateness[-1] < 0.001:
                break
    assert min(lateness) < 0.001, lateness


def test_a_stalled_server_shows_as_it_does_by_hand(tmp_path: Path) -> None:
    """All streams pause for 2 s: whoever was due meanwhile waited from when it was due, not from when it was sent."""
    stall_s, rate = 2.0, 100.0
    marks: dict[str, float] = {}

    def choose_zero() -> float:
        marks["zero"] = time.monotonic() + 0.01
        threading.Thread(target=stall).start()
        return marks["zero"]

    def stall() -> None:
        time.sleep(1.0)
        processes = server_processes()
        marks["stopped"] = time.monotonic() - marks["zero"]
        for process in processes:
            process.suspend()
        time.sleep(stall_s)
        marks["resumed"] = time.monotonic() - marks["zero"]
        for process in processes:
            process.resume()

    with running({"ttft": "20ms", "tpot": "5ms"}, tmp_path) as endpoint:
        shape = {"arrival": {"kind": "constant", "rate": rate}, "duration": 8.0}
        result = uvloop.run(run_client_part(job(endpoint, **shape), WHOLE, choose_zero))
    planned, first = times(result.requests, "planned_s"), times(result.requests, "first_token_s")
    assert set(result.requests["status"].to_pylist()) == {"ok"}
    assert planned == pytest.approx(np.arange(800) / rate)
    held_up = (planned + 0.020 > marks["stopped"]) & (planned < marks["resumed"])
    # One that was received before the pause is sent right after it, any other 20 ms after it was received.
    by_hand = np.where(held_up, np.maximum(marks["resumed"] - planned, 0) + 0.020, 0.020)
    reported = first - planned
    assert np.quantile(reported, 0.99) == pytest.approx(np.quantile(by_hand, 0.99), rel=0.03)
    assert np.quantile(reported, 0.90) == pytest.approx(np.quantile(by_hand, 0.90), rel=0.05)
    assert np.median(reported) == pytest.approx(0.020, rel=0.3)
    # What a client that measures from the sending, one request after the other, would have said: nothing of it.
    assert np.quantile(by_hand, 0.99) > 1.9


@contextlib.contextmanager
def busy_core(core: int, processes: int) -> Iterator[None]:
    spin = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@pytest.mark.parametrize("streams", [1, 64, 256])
def test_a_client_on_a_crowded_core_says_the_truth_or_that_it_cannot(
    tmp_path: Path, streams: int
) -> None:
    core = max(os.sched_getaffinity(0))
    workload = {
        "concurrency": streams,
        "output_tokens": 40,
        "requests": 2 * streams,
        "arrival": "closed_loop",
    }
    with running(SCHEDULE, tmp_path) as endpoint, LoadWorkers() as client, busy_core(core, 3):
        os.sched_setaffinity(client.pids[0], {core})
        server_lateness_s(endpoint)
        result = client.run(job(endpoint, **workload))
        server_late_s = server_lateness_s(endpoint)
    assert set(result.requests["status"].to_pylist()) == {"ok"}
    assert_true_or_client_bound(
        result.requests, job(endpoint, **workload).workload, result.health, server_late_s
    )


@pytest.mark.parametrize("streams", [16, 256])
def test_two_workers_beside_the_server_say_the_truth_or_that_they_cannot(
    tmp_path: Path, streams: int
) -> None:
    workload = {
        "concurrency": streams,
        "output_tokens": 40,
        "requests": 2 * streams,
        "arrival": "closed_loop",
    }
    with running(SCHEDULE, tmp_path) as endpoint, LoadWorkers(2) as client:
        server_lateness_s(endpoint)
        result = client.run(job(endpoint, **workload))
        server_late_s = server_lateness_s(endpoint)
    assert result.requests["status"].to_pylist() == ["ok"] * 2 * streams
    assert len(result.health.workers) == 2
    assert_true_or_client_bound(
        result.requests, job(endpoint, **workload).workload, result.health, server_late_s
    )


@pytest.mark.parametrize(
    ("stopped_s", "running_s"), [(0.005, 0.020), (0.030, 0.030), (0.100, 0.050)]
)
def test_a_client_that_is_stopped_again_and_again_says_the_truth_or_that_it_cannot(
    tmp_path: Path, stopped_s: float, running_s: float
) -> None:
    workload = {"concurrency": 16, "output_tokens": 40, "requests": 48, "arrival": "closed_loop"}
    over = threading.Event()

    def pulse(progress: LoadProgress) -> None:
        if not pulsing.is_alive() and not over.is_set():
            with contextlib.suppress(RuntimeError):  # it runs already
                pulsing.start()

    def stop_and_go() -> None:
        while not over.is_set():
            os.kill(client.pids[0], signal.SIGSTOP)
            time.sleep(stopped_s)
            os.kill(client.pids[0], signal.SIGCONT)
            over.wait(running_s)

    pulsing = threading.Thread(target=stop_and_go)
    with running(SCHEDULE, tmp_path) as endpoint, LoadWorkers() as client:
        server_lateness_s(endpoint)
        result = client.run(job(endpoint, **workload), pulse)
        over.set()
        pulsing.join()
        server_late_s = server_lateness_s(endpoint)
    workload_asked = job(endpoint, **workload).workload
    bound = assert_true_or_client_bound(
        result.requests, workload_asked, result.health, server_late_s
    )
    assert bound or stopped_s < 0.03


def assert_true_or_client_bound(
    table: pa.Table, workload: Workload, health: ClientHealth, server_late_s: float
) -> bool:
    """Compare what is not marked with the truth: the schedule, and how late the server was. Return whether anything is
    marked."""
    failure = load_verdict(RequestSums.of(table), workload, health)
    assert failure is None or failure.outcome is Outcome.CLIENT_BOUND
    moved = list_moved_metrics(RequestSums.of(table), workload, health).keys()
    ttft = times(table, "first_token_s") - times(table, "planned_s")
    tpot = (times(table, "last_token_s") - times(table, "first_token_s")) / 39
    if "ttft" not in moved:
        assert ttft.mean() == pytest.approx(TTFT_S, abs=0.03 * TTFT_S + server_late_s)
    if moved.isdisjoint(("tpot", "itl")):
        assert tpot.mean() == pytest.approx(TPOT_S, abs=0.03 * TPOT_S + server_late_s / 39)
    return bool(moved)


def high_water_mark_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1_024


def test_merged_percentiles_of_four_processes_are_those_of_all_rows(tmp_path: Path) -> None:
    with running({"ttft": "100ms", "tpot": "20ms"}, tmp_path) as endpoint, LoadWorkers(4) as client:
        asked = job(
            endpoint, concurrency=4_096, output_tokens=20, requests=20_480, arrival="closed_loop"
        )
        result = client.run(asked)
    rows = RequestRows(result.requests)
    assert result.sums.is_sketched
    for name in ("ttft", "latency", "itl"):
        for statistic in ("p50", "p99"):
            exact = np.percentile(rows.time(name), float(statistic[1:]))
            found = result.sums.statistic(name, statistic)
            assert found == pytest.approx(exact, rel=RELATIVE_ERROR * 1.0001, abs=LOWEST_S)


def test_ten_thousand_streams_at_once(tmp_path: Path) -> None:
    """Held open for 30 s, each with a token every 1.5 s, in less than 1 GiB."""
    with running({"ttft": "4s", "tpot": "1.5s"}, tmp_path) as endpoint, LoadWorkers() as client:
        most_running = 0

        def note(progress: LoadProgress) -> None:
            nonlocal most_running
            most_running = max(most_running, progress.running)

        result = client.run(job(endpoint, concurrency=10_000, output_tokens=20), note)
        peak_bytes = max(high_water_mark_bytes(pid) for pid in client.pids)
    assert result.requests["status"].to_pylist() == ["ok"] * 10_000
    assert most_running == 10_000
    assert result.duration_s > 30
    assert peak_bytes < 2**30
