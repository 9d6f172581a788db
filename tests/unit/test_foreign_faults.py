"""What the machine, or somebody on it, does to a run is never an engine's result, and never called a bug."""

import errno
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitbench.engines import server
from bitbench.engines.processes import free_port
from bitbench.engines.server import ServerInstance, ServerPlan
from bitbench.loadgen import health
from bitbench.loadgen.client import run_job
from bitbench.loadgen.connection import ConnectionPool
from bitbench.loadgen.health import StolenTime, WallClock
from bitbench.loadgen.verdict import load_verdict
from bitbench.machine import host
from bitbench.ports import Endpoint, InstanceFailed, LoadJob, Vocabulary
from bitbench.records.trial import ClientHealth, Failure, InstanceFacts, Outcome
from bitbench.running import runner
from bitbench.study.study_file import format_starter
from bitbench.study.workload import Workload
from bitbench.util.errors import ExitCode, LoadError
from tests.command_line import bitbench
from tests.support.null_instance import running

ONE = Workload(name="one", concurrency=1, input_tokens=4, output_tokens=3)


def instance_of(code: str, folder: Path, port: int = 9) -> ServerInstance:
    return ServerInstance(
        ServerPlan(
            command=[sys.executable, "-c", f"import os, sys; {code}"],
            env={},
            endpoint=Endpoint(url=f"http://127.0.0.1:{port}", model="m", api_key="k"),
            log_file=folder / "engine.log",
            read_facts=lambda _: InstanceFacts(),
        )
    )


def failure_of(code: str, folder: Path) -> Failure:
    instance = instance_of(code, folder)
    try:
        with pytest.raises(InstanceFailed) as failed:
            instance.wait_ready(20)
        return failed.value.failure
    finally:
        instance.stop()


KILLED = "os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(
    ("code", "outcome", "cause"),
    [
        (KILLED, Outcome.DISTURBED, "It was killed by signal 9 from outside"),
        ("os.kill(os.getpid(), 15)", Outcome.DISTURBED, "It was killed by signal 15 from outside"),
        (
            f"print('RuntimeError: no rope', flush=True); {KILLED}",
            Outcome.CRASHED,
            "signal 9: RuntimeError: no rope",
        ),
        ("os.kill(os.getpid(), 11)", Outcome.CRASHED, "It ended with signal 11"),
        (
            "sys.exit('OSError: [Errno 98] Address already in use')",
            Outcome.DISTURBED,
            "Address already in use",
        ),
        (
            "sys.exit('OSError: [Errno 28] No space left on device')",
            Outcome.DISTURBED,
            "No space left on device",
        ),
        (
            "sys.exit('a warning: mind `Too many open files`')",
            Outcome.CRASHED,
            "It ended with exit code 1",
        ),
        ("sys.exit('RuntimeError: CUDA out of memory')", Outcome.OOM, "CUDA out of memory"),
        ("sys.exit(120)", Outcome.CRASHED, "It ended with exit code 120"),
    ],
)
def test_what_an_end_is_put_down_to(
    code: str, outcome: Outcome, cause: str, tmp_path: Path
) -> None:
    failure = failure_of(code, tmp_path)
    assert (failure.outcome, cause in failure.cause) == (outcome, True), failure


def test_a_kill_is_lack_of_memory_only_where_the_kernel_counted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter((3, 4))
    monkeypatch.setattr(server, "count_oom_kills", lambda: next(counts))
    failure = failure_of(KILLED, tmp_path)
    assert failure.outcome is Outcome.OOM
    assert failure.cause == "It was killed by the kernel's out-of-memory killer."


@pytest.mark.parametrize(
    ("group", "file"),
    [("0::/a/b", "a/b/memory.events"), ("4:cpu,memory:/a/b", "memory/a/b/memory.oom_control")],
    ids=["cgroup 2", "cgroup 1"],
)
def test_the_kernel_counts_in_our_own_group_too(
    group: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_text(f"3:pids:/x\n{group}\n")
    (tmp_path / "vmstat").write_text("oom_kill_other 9\noom_kill 2\n")
    counter = tmp_path / "groups" / file
    counter.parent.mkdir(parents=True)
    counter.write_text("oom 7\noom_kill 5\n")
    monkeypatch.setattr(server, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(server, "_VMSTAT", tmp_path / "vmstat")
    monkeypatch.setattr(server, "_GROUPS", tmp_path / "groups")
    assert server.count_oom_kills() == 7
    counter.unlink()
    assert server.count_oom_kills() == 2


@pytest.mark.parametrize(
    ("group", "folder", "names"),
    [
        ("0::/a/b", "a", ("memory.max", "memory.current", "inactive_file")),
        (
            "4:memory:/a/b",
            "memory/a",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
    ids=["cgroup 2", "cgroup 1"],
)
def test_the_memory_of_a_container_is_what_its_groups_may_have(
    group: str,
    folder: str,
    names: tuple[str, str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "own").write_text(f"{group}\n")
    place = tmp_path / "groups" / folder
    (place / "b").mkdir(parents=True)
    limit, used, dropped = names
    (place / "b" / limit).write_text("max\n")
    (place / limit).write_text("8000\n")
    (place / used).write_text("5000\n")
    (place / "memory.stat").write_text(f"anon 1\n{dropped} 2000\n")
    monkeypatch.setattr(server, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(server, "_GROUPS", tmp_path / "groups")
    assert list(server.iter_group_memory()) == [(8000, 3000)]
    assert host.get_available_memory() == 5000


def test_an_engine_that_ends_on_a_full_disk_is_not_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    failure = failure_of("sys.exit(120)", tmp_path)
    assert failure.outcome is Outcome.DISTURBED
    assert failure.cause.endswith(f"{tmp_path}: the disk is full; free some space.")


def test_a_stranger_on_the_port_of_a_living_engine_is_seen(tmp_path: Path) -> None:
    port = free_port()
    instance = instance_of("import time; time.sleep(600)", tmp_path, port)
    try:
        assert instance.failure() is None
        with socket.create_server(("127.0.0.1", port)):
            failure = instance.failure()
        assert failure is not None
        assert failure.outcome is Outcome.DISTURBED
        assert failure.cause.startswith(f"Not this engine but process {os.getpid()} (")
        assert instance.failure() is None
    finally:
        instance.stop()


class Clock:
    """Two clocks that go at the same pace; the wall clock can be set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ahead = 1e6
        self.pauses: Iterator[float] = iter(())  # of the process, after it has read the wall clock

    def monotonic(self) -> float:
        self.now += 1e-6
        return self.now

    def wall(self) -> float:
        wall = self.monotonic() + self.ahead
        self.now += next(self.pauses, 0.0)
        return wall


@pytest.mark.parametrize("step_s", [0.0, 0.2, -0.2, 3600.0, 0.001])
def test_a_step_of_the_wall_clock_is_measured(step_s: float) -> None:
    clock = Clock()
    watch = WallClock(clock.monotonic, clock.wall)
    clock.now += 12.5
    clock.ahead += step_s
    assert watch.step_s() == pytest.approx(step_s, abs=5e-6)


def test_a_look_that_lost_its_core_is_not_a_step() -> None:
    clock = Clock()
    watch = WallClock(clock.monotonic, clock.wall)
    clock.pauses = iter((0.05, 0.05, 0.0, 0.05, 0.05))
    assert watch.step_s() == pytest.approx(0.0, abs=5e-6)


def test_what_a_hypervisor_takes_is_a_share_of_all_processors(tmp_path: Path) -> None:
    statistics = tmp_path / "stat"
    statistics.write_text("cpu  1000 0 0 2000 0 0 0 500 7 7\ncpu0 1 2 3\n")
    watch = StolenTime(statistics)
    assert watch.share() == 0.0
    statistics.write_text("cpu  1600 0 0 2200 0 0 0 700 9 9\ncpu0 1 2 3\n")
    assert watch.share() == pytest.approx(0.2)
    statistics.unlink()
    assert StolenTime(statistics).share() == 0.0


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LoadJob]:
    with running({"ttft": "1ms", "tpot": "1ms"}, tmp_path) as endpoint:
        yield LoadJob(
            endpoint, ONE, Vocabulary(1_000), seed=(0,), request_timeout_s=10, stall_timeout_s=10
        )


@pytest.mark.parametrize(("step_s", "direction"), [(2.0, "forward"), (-2.0, "back")])
def test_a_trial_in_which_the_clock_was_set_does_not_count(
    step_s: float, direction: str, job: LoadJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stepped(WallClock):
        def step_s(self) -> float:
            return super().step_s() + step_s

    monkeypatch.setattr(health, "WallClock", Stepped)
    result = run_job(job)
    failure = load_verdict(result.sums, ONE, result.health)
    assert failure is not None
    assert failure.outcome is Outcome.DISTURBED
    assert failure.cause.startswith(f"this machine's clock was set {direction} by 2.00 s")


def test_a_clock_that_nobody_set_is_no_fault(job: LoadJob) -> None:
    result = run_job(job)
    assert abs(result.health.clock_step_s) < 0.0005
    quiet = ClientHealth(send_lateness_p99_s=0, loop_lag_p99_s=0, cpu_share=0)
    assert load_verdict(result.sums, ONE, quiet.model_copy(update={"clock_step_s": 0.0004})) is None


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EADDRNOTAVAIL])
def test_a_client_that_can_open_no_connection_is_no_crash_of_the_server(
    number: int, job: LoadJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_more(_: ConnectionPool) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(ConnectionPool, "open", no_more)
    with pytest.raises(LoadError, match=r"this machine has|too many open files"):
        run_job(job)


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EMFILE, errno.EDQUOT, errno.EIO]
)
def test_a_fault_of_the_machine_is_one_sentence(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "/study/trials.jsonl")

    monkeypatch.setattr(runner, "measure_study", fail)
    study = tmp_path / "study.yaml"
    study.write_text(format_starter("cpu"))
    answer = bitbench(capsys, "run", str(study))
    assert answer.exit_code == ExitCode.UNAVAILABLE
    assert "/study/trials.jsonl: " in answer.err
    assert "bug" not in answer.err
    assert "unexpected" not in answer.err
