"""The client in a process of its own: it works, it says when it dies, and it never outlives its parent."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from bitbench.core.ports import Endpoint, LoadJob, Vocabulary
from bitbench.core.trial import Outcome
from bitbench.core.workload import Arrival, Workload
from bitbench.errors import LoadError
from bitbench.load.client import Part
from bitbench.load.frames import Task, decode_task, encode_task
from bitbench.load.verdict import judge
from bitbench.load.workers import LoadWorkers
from tests.unit.null_instance import running

WORKLOAD = Workload(name="w", concurrency=3, input_tokens=16, output_tokens=5, requests=9, arrival=Arrival.CLOSED_LOOP)


def job(endpoint: Endpoint, workload: Workload = WORKLOAD) -> LoadJob:
    return LoadJob(endpoint, workload, Vocabulary(1_000, excluded=(0,)), (1, 2, 3), 20.0, 10.0)


def test_a_job_survives_the_journey() -> None:
    endpoint = Endpoint("http://h:1", "m", "secret", {"ignore_eos": True, "nested": {"list": [1]}}, "X-Batch")
    sent = Task(job(endpoint), Part(1, 3), report=True)
    assert decode_task(encode_task(sent)) == sent


def test_it_runs_job_after_job(tmp_path: Path) -> None:
    with running({"ttft": "5ms", "tpot": "1ms"}, tmp_path) as endpoint, LoadWorkers() as worker:
        for _ in range(2):
            result = worker.run(job(endpoint))
            assert result.requests["status"].to_pylist() == ["ok"] * 9
            assert 0 < result.health.cpu_share < 1.5
            assert result.duration_s >= 3 * (0.005 + 4 * 0.001)


def test_a_job_that_cannot_run_is_said_and_the_next_one_runs(tmp_path: Path) -> None:
    with running({"ttft": "1ms", "tpot": "1ms"}, tmp_path) as endpoint, LoadWorkers() as worker:
        with pytest.raises(LoadError, match=r"could not run workload w: ValueError.*http://host:port"):
            worker.run(job(Endpoint("ftp://nowhere", "m", "k")))
        assert worker.run(job(endpoint)).requests.num_rows == 9


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_a_worker_that_died_is_an_error_and_the_next_job_gets_a_new_one(tmp_path: Path) -> None:
    before = children()
    with running({"ttft": "1ms", "tpot": "1ms"}, tmp_path) as endpoint, LoadWorkers() as worker:
        os.kill(worker.pids[0], signal.SIGKILL)
        with pytest.raises(LoadError, match="ended by signal 9 during workload w"):
            worker.run(job(endpoint))
        assert worker.run(job(endpoint)).requests.num_rows == 9
    assert children() == before


def test_a_client_that_was_starved_says_so(tmp_path: Path) -> None:
    """Stopped over the time at which its first token comes, it reports a time that is its own, not the engine's."""
    workload = Workload(name="w", concurrency=1, input_tokens=16, output_tokens=20)
    with running({"ttft": "100ms", "tpot": "10ms"}, tmp_path) as endpoint, LoadWorkers() as worker:
        worker.run(job(endpoint, workload))
        worker_pid = worker.pids[0]
        timers = [
            threading.Timer(delay_s, os.kill, (worker_pid, number))
            for delay_s, number in ((0.06, signal.SIGSTOP), (0.2, signal.SIGCONT))
        ]
        for timer in timers:
            timer.start()
        result = worker.run(job(endpoint, workload))
        for timer in timers:
            timer.join()
    failure = judge(result.requests, workload, result.health)
    assert failure is not None
    assert failure.outcome is Outcome.CLIENT_BOUND


PARENT = """
import sys
from bitbench.core.ports import Endpoint, LoadJob, Vocabulary
from bitbench.core.workload import Workload
from bitbench.load.workers import LoadWorkers
with LoadWorkers() as worker:
    print(worker.pids[0], flush=True)
    endpoint = Endpoint(sys.argv[1], "m", sys.argv[2])
    workload = Workload(name="w", concurrency=1, input_tokens=4, output_tokens=4)
    worker.run(LoadJob(endpoint, workload, Vocabulary(100), (1,), 60.0, 60.0))
"""


def test_it_ends_when_its_parent_is_killed_in_the_middle_of_a_trial(tmp_path: Path) -> None:
    with running({"fail": "hang"}, tmp_path) as endpoint:
        command = [sys.executable, "-c", PARENT, endpoint.url, endpoint.api_key]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            worker = psutil.Process(int(parent.stdout.readline()))
            deadline = time.monotonic() + 20
            while not worker.net_connections() and time.monotonic() < deadline:
                time.sleep(0.02)
            assert worker.net_connections()  # the trial runs
            parent.kill()
        gone, alive = psutil.wait_procs([worker], timeout=5)
        assert not alive
        assert gone
