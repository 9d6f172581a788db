"""Real processes: nothing of an engine may outlive its parent, whatever happens."""

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from bitbench.engines.left_over import end_left_over
from bitbench.engines.processes import (
    PortTaken,
    ProcessEnded,
    ServerProcess,
    free_port,
    launch_logged_process,
    wait_until_listening,
)
from bitbench.util.child_processes import collect_engine_variables
from tests.busy_machine import wait_for

# An engine like vLLM: a root, a child in a session of its own, and an orphan whose parent has ended.
# Each writes its pid; all ignore SIGTERM when told to.
TREE = """
import os, signal, sys, time
folder, stubborn, root_lives = sys.argv[1], sys.argv[2] == "stubborn", sys.argv[3] == "lives"
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
def note(name):
    with open(os.path.join(folder, name), "w") as file:
        file.write(str(os.getpid()))
note("root")
if os.fork() == 0:
    os.setsid()
    note("other-session")
    time.sleep(600)
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        note("orphan")
        time.sleep(600)
    os._exit(0)
if root_lives:
    time.sleep(600)
while len(os.listdir(folder)) < 3:
    time.sleep(0.01)
sys.exit(7)
"""
PARENT = """
import sys, time
from pathlib import Path
from bitbench.engines.processes import launch_logged_process
from bitbench.util.child_processes import collect_engine_variables
engine = launch_logged_process([sys.executable, "-c", {tree!r}, {folder!r}, "polite", "lives"],
      env=collect_engine_variables({{}}), log_file=Path({log!r}))
time.sleep(600)
"""
NAMES = ("root", "other-session", "orphan")


def pids_in(folder: Path) -> list[int]:
    files = [folder / name for name in NAMES]
    assert wait_for(lambda: all(file.exists() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def all_gone(pids: list[int]) -> bool:
    return not any(is_alive(pid) for pid in pids)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    started: list[ServerProcess] = []

    def start_python(code: str, *arguments: str) -> ServerProcess:
        process = launch_logged_process(
            [sys.executable, "-c", code, *arguments],
            env=collect_engine_variables({}),
            log_file=tmp_path / "engine.log",
        )
        started.append(process)
        return process

    yield start_python
    for process in started:
        process.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "pids"
    path.mkdir()
    return path


def test_stop_ends_the_whole_tree_and_can_be_called_twice(
    start: Callable[..., ServerProcess], folder: Path
) -> None:
    process = start(TREE, str(folder), "polite", "lives")
    pids = pids_in(folder)
    assert process.pid == pids[0]
    assert process.exit_code() is None
    process.stop()
    assert all_gone(pids)
    process.stop()
    assert process.exit_code() == -signal.SIGTERM


def test_a_tree_that_ignores_sigterm_is_killed(
    start: Callable[..., ServerProcess], folder: Path
) -> None:
    process = start(TREE, str(folder), "stubborn", "lives")
    pids = pids_in(folder)
    process.stop()
    assert all_gone(pids)
    assert process.exit_code() == -signal.SIGKILL


def test_what_lingers_after_the_root_is_ended_and_the_exit_code_passed_on(
    start: Callable[..., ServerProcess], folder: Path
) -> None:
    process = start(TREE, str(folder), "polite", "leaves")
    pids = pids_in(folder)
    assert wait_for(lambda: process.exit_code() is not None)
    assert process.exit_code() == 7
    process.wait_for_the_rest()
    assert all_gone(pids)


@pytest.mark.parametrize(
    "forked_helper", [False, True], ids=["alone", "with a forked helper that holds the socket"]
)
def test_nothing_is_left_after_kill_9_of_the_parent(
    tmp_path: Path, folder: Path, forked_helper: bool
) -> None:
    parent_code = f"""
import os, sys, time
from pathlib import Path
from bitbench.engines.processes import launch_logged_process
from bitbench.util.child_processes import collect_engine_variables
engine = launch_logged_process([sys.executable, "-c", {TREE!r}, {str(folder)!r}, "polite", "lives"],
      env=collect_engine_variables({{}}), log_file=Path({str(tmp_path / "engine.log")!r}))
if {forked_helper} and os.fork() == 0:
    Path({str(tmp_path / "helper")!r}).write_text(str(os.getpid()))
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", parent_code])
    helper = tmp_path / "helper"
    try:
        pids = pids_in(folder)
        assert not forked_helper or wait_for(helper.exists)
        parent.kill()
        parent.wait()
        assert wait_for(lambda: all_gone(pids))
    finally:
        parent.kill()
        if helper.exists():
            os.kill(int(helper.read_text()), signal.SIGKILL)


def test_a_kill_of_the_engine_is_seen_as_that_signal(start: Callable[..., ServerProcess]) -> None:
    process = start("import time; time.sleep(600)")
    os.kill(process.pid, signal.SIGKILL)
    assert wait_for(lambda: process.exit_code() is not None)
    assert process.exit_code() == -signal.SIGKILL


def test_a_command_that_does_not_exist_says_so_in_the_log(tmp_path: Path) -> None:
    process = launch_logged_process(
        [str(tmp_path / "missing")],
        env=collect_engine_variables({}),
        log_file=tmp_path / "engine.log",
    )
    assert wait_for(lambda: process.exit_code() is not None)
    assert process.exit_code() == 127
    assert "missing: No such file" in process.log_tail()[-1]
    process.stop()


def test_the_environment_is_clean(
    start: Callable[..., ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("HF_TOKEN", "secret")
    process = start("import os; print(sorted(os.environ))")
    assert wait_for(lambda: process.exit_code() is not None)
    assert "PATH" in process.log()
    assert "PYTHONPATH" not in process.log()
    assert "HF_TOKEN" not in process.log()


def test_waiting_for_health_ends_with_the_process(start: Callable[..., ServerProcess]) -> None:
    process = start("import sys; sys.exit(3)")
    with pytest.raises(ProcessEnded) as ended:
        wait_until_listening(process, f"http://127.0.0.1:{free_port()}/health", timeout_s=60)
    assert ended.value.exit_code == 3


def test_waiting_for_health_has_a_deadline(start: Callable[..., ServerProcess]) -> None:
    process = start("import time; time.sleep(600)")
    with pytest.raises(TimeoutError, match=r"0\.2 s"):
        wait_until_listening(process, f"http://127.0.0.1:{free_port()}/health", timeout_s=0.2)


WAKING = """
import http.server, sys
class Waking(http.server.BaseHTTPRequestHandler):
    answers = 0
    def do_GET(self):
        type(self).answers += 1
        print("answered", flush=True)
        self.send_response(200 if type(self).answers > 2 else 503)
        self.end_headers()
    def log_message(self, *_): ...
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Waking).serve_forever()
"""


def test_an_unhealthy_answer_is_not_ready(start: Callable[..., ServerProcess]) -> None:
    """vLLM answers 503 while its engine starts."""
    port = free_port()
    process = start(WAKING, str(port))
    wait_until_listening(process, f"http://127.0.0.1:{port}/health", timeout_s=60)
    assert process.log().count("answered") == 3


@pytest.fixture
def stranger() -> Iterator[int]:
    """A port on which a process that is no engine of ours (this one) says that all is well."""

    class Pretender(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Pretender) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_an_answer_from_a_stranger_is_not_ready(
    start: Callable[..., ServerProcess], stranger: int
) -> None:
    process = start("import time; time.sleep(600)")
    with pytest.raises(PortTaken) as taken:
        wait_until_listening(process, f"http://127.0.0.1:{stranger}/health", timeout_s=60)
    assert taken.value.holder.startswith(f"process {os.getpid()} (")


SHARING = """
import socket, sys, time
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind((sys.argv[2], int(sys.argv[1])))
server.listen()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("theirs", "refused"),
    [
        ("127.0.0.1", True),
        ("0.0.0.0", False),
    ],  # the kernel prefers who listens on the address itself
)
def test_a_stranger_who_shares_the_port_is_seen(
    start: Callable[..., ServerProcess], theirs: str, refused: bool
) -> None:
    """vLLM allows that (SO_REUSEPORT): some connections would go to the other process."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind((theirs, 0))
        port = other.getsockname()[1]
        process = start(SHARING, str(port), "127.0.0.1")
        assert wait_for(lambda: process.is_listening_on(port))
        other.listen()
        if refused:
            with pytest.raises(PortTaken):
                process.is_listening_on(port)
        else:
            assert process.is_listening_on(port)


def parent_of(pid: int) -> int:
    return psutil.Process(pid).ppid()


@pytest.mark.alone
def test_nothing_is_left_after_kill_9_of_the_guardian(
    start: Callable[..., ServerProcess], folder: Path
) -> None:
    process = start(TREE, str(folder), "stubborn", "lives")
    pids = pids_in(folder)
    guardian = parent_of(process.pid)
    os.kill(guardian, signal.SIGKILL)
    assert wait_for(lambda: process.exit_code() is not None)
    assert process.exit_code() == -signal.SIGKILL
    process.stop()
    assert all_gone([*pids, guardian])


def test_the_next_command_ends_what_bitbench_and_the_guardian_left(
    tmp_path: Path, folder: Path
) -> None:
    code = PARENT.format(tree=TREE, folder=str(folder), log=str(tmp_path / "engine.log"))
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        pids = pids_in(folder)
        parent.send_signal(signal.SIGSTOP)  # so that it cannot come to the help
        os.kill(parent_of(pids[0]), signal.SIGKILL)
        parent.kill()
        parent.wait()
        assert wait_for(lambda: not is_alive(pids[0])), "the kernel kills the engine"
        assert not all_gone(pids)
        end_left_over()
        assert all_gone(pids)
    finally:
        parent.kill()


def test_the_tail_of_a_long_log(start: Callable[..., ServerProcess]) -> None:
    process = start("for n in range(200_000): print('line', n)")
    assert wait_for(lambda: process.exit_code() is not None)
    assert process.log_tail(2) == ("line 199998", "line 199999")


def test_a_frozen_tree_takes_no_time_and_goes_on_where_it_was(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'while True: pass']); child.wait()"
    process = launch_logged_process(
        [sys.executable, "-c", script], env=collect_engine_variables({}), log_file=log
    )
    try:
        assert wait_for(lambda: len(psutil.Process(process.pid).children()) == 1)
        (child,) = psutil.Process(process.pid).children()
        process.freeze()
        assert wait_for(
            lambda: child.status() == psutil.STATUS_STOPPED
        )  # the signal waits where its core is stalled
        before = child.cpu_times().user
        time.sleep(0.2)
        assert child.cpu_times().user == before
        assert child.status() == psutil.STATUS_STOPPED
        process.thaw()
        assert wait_for(lambda: child.cpu_times().user > before)
        process.freeze()
    finally:
        process.stop()  # frozen as it is
    assert not psutil.pid_exists(child.pid)
