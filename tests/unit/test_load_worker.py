"""The client in a process of its own: it works, it says when it dies, and it never outlives its parent."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import uvloop

from bitbench.analysis.trial import compute_trial_metrics
from bitbench.loadgen import client, row_writer
from bitbench.loadgen.client import WorkerPart, run_client_part, run_job
from bitbench.loadgen.verdict import load_verdict
from bitbench.loadgen.workers import LoadWorkers, count_workers
from bitbench.ports import Endpoint, LoadJob, Vocabulary
from bitbench.records.request_rows import RequestParts
from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import LoadProgress, Outcome
from bitbench.study.base import Json
from bitbench.study.workload import Arrival, Workload
from bitbench.util.errors import LoadError
from tests.busy_machine import LEFT_OVER_S
from tests.support.null_instance import running

WORKLOAD = Workload(
    name="w",
    concurrency=3,
    input_tokens=16,
    output_tokens=5,
    requests=9,
    arrival=Arrival.CLOSED_LOOP,
)


def job(endpoint: Endpoint, workload: Workload = WORKLOAD) -> LoadJob:
    return LoadJob(endpoint, workload, Vocabulary(1_000, excluded=(0,)), (1, 2, 3), 20.0, 10.0)


def test_it_runs_job_after_job(tmp_path: Path) -> None:
    with running({"ttft": "5ms", "tpot": "1ms"}, tmp_path) as endpoint, LoadWorkers() as worker:
        for _ in range(2):
            result = worker.run(job(endpoint))
            assert result.requests["status"].to_pylist() == ["ok"] * 9
            assert 0 < result.health.cpu_share < 1.5
            assert result.duration_s >= 3 * (0.005 + 4 * 0.001)


def test_a_job_that_cannot_run_is_said_and_the_next_one_runs(tmp_path: Path) -> None:
    with running({"ttft": "1ms", "tpot": "1ms"}, tmp_path) as endpoint, LoadWorkers() as worker:
        with pytest.raises(
            LoadError, match=r"could not run workload w: ValueError.*http://host:port"
        ):
            worker.run(job(Endpoint("ftp://nowhere", "m", "k")))
        assert worker.run(job(endpoint)).requests.num_rows == 9


@pytest.mark.alone
def test_several_workers_share_the_requests_on_one_clock(tmp_path: Path) -> None:
    with running({"ttft": "50ms", "tpot": "5ms"}, tmp_path) as endpoint, LoadWorkers(2) as workers:
        workload = Workload(name="w", concurrency=6, input_tokens=16, output_tokens=5)
        result = workers.run(job(endpoint, workload))
        alone = run_job(job(endpoint, workload))
    assert len(workers.pids) == 0
    assert len(result.health.workers) == 2
    assert compute_trial_metrics(result.sums) == compute_trial_metrics(
        RequestSums.of(result.requests)
    )
    worst = max(worker.loop_lag_p99_s for worker in result.health.workers)
    assert result.health.loop_lag_p99_s == worst
    rows, rows_alone = result.requests.to_pylist(), alone.requests.to_pylist()
    assert (
        [row["request"] for row in rows]
        == [row["request"] for row in rows_alone]
        == [0, 1, 2, 3, 4, 5]
    )
    assert {row["planned_s"] for row in rows} == {0.0}
    assert all(row["first_token_s"] >= 0.05 for row in rows)
    # A clock of its own for each worker would be off by what they need to prepare. A worker that a busy machine stalls
    # at time zero says so.
    assert max(row["sent_s"] for row in rows) < 0.05 + 1.1 * result.health.send_lateness_p99_s


@pytest.mark.alone
@pytest.mark.parametrize("arrival", ["closed_loop", {"kind": "poisson", "rate": 400.0}])
def test_a_long_trial_is_written_while_it_runs_and_has_the_same_requests(
    arrival: Json, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With row groups of 30 requests, and 20 that are made ahead."""
    workload = Workload(
        name="w", concurrency=4, input_tokens=16, output_tokens=3, requests=200, arrival=arrival
    )
    with running({"ttft": "5ms", "tpot": "1ms"}, tmp_path) as endpoint:
        short = run_job(job(endpoint, workload))
        monkeypatch.setattr(row_writer, "ROW_GROUP", 30)
        monkeypatch.setattr(row_writer, "_BATCH", 10)
        monkeypatch.setattr(client, "MADE_AHEAD", 20)
        long = run_job(replace(job(endpoint, workload), rows_folder=tmp_path))
    (path,) = long.rows.parts
    assert isinstance(path, Path)
    assert pq.ParquetFile(path).num_row_groups == 7
    assert long.sums.requests == short.sums.requests == 200
    assert long.sums.failed == 0
    assert not long.sums.wrong_tokens
    assert (
        [*short.requests["request"].to_pylist()]
        == [*long.requests["request"].to_pylist()]
        == list(range(200))
    )
    assert compute_trial_metrics(RequestSums.of(long.requests)).model_dump() == pytest.approx(
        compute_trial_metrics(long.sums).model_dump()
    )
    packed = long.rows.load_parts()
    assert packed.read() == RequestParts(packed.parts).read()
    assert not path.exists()


@pytest.mark.alone
@pytest.mark.parametrize("part", [WorkerPart(0, 1), WorkerPart(0, 2)], ids=["alone", "one of two"])
def test_a_core_that_was_taken_away_at_time_zero_delays_the_trial_where_no_other_worker_shares_it(
    part: WorkerPart, tmp_path: Path
) -> None:
    with running({"ttft": "5ms", "tpot": "1ms"}, tmp_path) as endpoint:
        has_passed = time.monotonic() - 2.0
        result = uvloop.run(run_client_part(job(endpoint), part, lambda: has_passed))
    late = [
        row["sent_s"] - row["planned_s"]
        for row in result.requests.to_pylist()
        if row["planned_s"] == 0
    ]
    assert late
    assert all(late_s < 1.0 if part.workers == 1 else late_s >= 2.0 for late_s in late)


@pytest.mark.alone
def test_how_it_goes_is_told_while_it_runs(tmp_path: Path) -> None:
    workload = Workload(
        name="w",
        concurrency=4,
        input_tokens=16,
        output_tokens=40,
        requests=12,
        arrival="closed_loop",
    )
    told: list[LoadProgress] = []
    with (
        running({"ttft": "100ms", "tpot": "10ms"}, tmp_path) as endpoint,
        LoadWorkers(2) as workers,
    ):
        result = workers.run(job(endpoint, workload), told.append)
    assert len(told) >= 4
    assert {progress.requests for progress in told} == {12}
    assert [progress.elapsed_s for progress in told] == sorted(
        progress.elapsed_s for progress in told
    )
    middle, last = told[len(told) // 2], told[-1]
    assert middle.running == 4
    assert 50 < middle.chunks_per_s < 1_000  # 4 streams, 100 tokens a second each but for the first
    assert (last.succeeded, last.failed, last.running) == (12, 0, 0)
    assert result.requests.num_rows == 12


def test_more_workers_only_where_one_does_not_carry_the_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def streams(concurrency: int) -> int:
        return count_workers(
            Workload(name="w", concurrency=concurrency, input_tokens=1, output_tokens=1)
        )

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert [streams(count) for count in (1, 1_024, 1_025, 3_000, 50_000)] == [1, 1, 2, 3, 4]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert streams(50_000) == 1


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


@pytest.mark.alone
def test_a_client_that_was_starved_says_so(tmp_path: Path) -> None:
    """Stopped over the time at which its first token comes, it reports a time that is its own, not the engine's."""
    workload = Workload(name="w", concurrency=1, input_tokens=16, output_tokens=20)
    timers: list[threading.Timer] = []

    def stop_for_a_while(progress: LoadProgress) -> None:
        if not timers:  # the first message comes at time zero
            timers.append(threading.Timer(0.3, os.kill, (worker.pids[0], signal.SIGSTOP)))
            timers.append(threading.Timer(2.0, os.kill, (worker.pids[0], signal.SIGCONT)))
            for timer in timers:
                timer.start()

    with running({"ttft": "1s", "tpot": "10ms"}, tmp_path) as endpoint, LoadWorkers() as worker:
        result = worker.run(job(endpoint, workload), stop_for_a_while)
        for timer in timers:
            timer.join()
    failure = load_verdict(result.sums, workload, result.health)
    assert failure is not None
    assert failure.outcome is Outcome.CLIENT_BOUND


PARENT = """
import sys
from bitbench.ports import Endpoint, LoadJob, Vocabulary
from bitbench.study.workload import Workload
from bitbench.loadgen.workers import LoadWorkers
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
        gone, alive = psutil.wait_procs([worker], timeout=LEFT_OVER_S)
        assert not alive
        assert gone
