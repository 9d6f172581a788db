"""Server processes that cannot outlive bitbench: start, watch, read the log of, and end a whole process tree.

The work is done by `guardian.py`, a small process between bitbench and the engine.
"""

import contextlib
import http.client
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from bitbench.engines.guardian import descendants, send
from bitbench.ground.errors import BitbenchError
from bitbench.ground.safe_files import SafeFolder

_GUARDIAN = Path(__file__).with_name("guardian.py")
# The guardian gives the tree 3 s to end by itself (guardian.GRACE_S), then kills it; the rest is for a busy machine.
_STOP_TIMEOUT_S = 20.0
_LOG_TAIL_BYTES = 256 * 1024
_HEALTH_REQUEST_TIMEOUT_S = 5.0
# A server that is ready at once is seen within 10 ms; one that takes minutes costs ten polls a second.
_FIRST_POLL_S, _SLOWEST_POLL_S = 0.01, 0.1


class ProcessEnded(Exception):
    """The process ended before it was ready."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"ended with {exit_code}")
        self.exit_code = exit_code


class ServerProcess:
    """A running process tree. `pid` is its root: the command itself, not the guardian."""

    def __init__(self, guardian: "subprocess.Popen[bytes]", leash: socket.socket, pid: int, log_file: Path) -> None:
        self.pid = pid
        self.log_file = log_file
        self._guardian = guardian
        self._leash = leash

    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number when a signal ended it."""
        return self._guardian.poll()

    def stop(self) -> None:
        """Ends the whole tree and returns when nothing of it is left. Safe to call twice."""
        self.thaw()  # a frozen process could not end by itself
        with contextlib.suppress(OSError):  # the other end may be gone already
            self._leash.shutdown(socket.SHUT_RDWR)  # unlike close, seen even while a forked process holds a copy
        self._leash.close()
        try:
            self._guardian.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise BitbenchError(
                f"Process {self.pid} or one that it started cannot be killed and would disturb the next "
                f"measurement. End it (a driver may block it), then repeat the command."
            ) from None

    def freeze(self) -> None:
        """Stops every process of the tree where it is: it keeps its memory and takes no processor time."""
        stopped: set[int] = set()
        while running := descendants(self._guardian.pid) - stopped:  # until none has been forked meanwhile
            send(running, signal.SIGSTOP)
            stopped |= running

    def thaw(self) -> None:
        """Lets it go on. Safe to call when it is not frozen."""
        send(descendants(self._guardian.pid), signal.SIGCONT)

    def log(self) -> str:
        return _text(self.log_file.read_bytes())

    def log_tail(self, lines: int = 40) -> tuple[str, ...]:
        """The last lines of the log, without reading a long one as a whole."""
        with self.log_file.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            return tuple(_text(file.read()).splitlines()[-lines:])


def spawn(command: Sequence[str], *, env: Mapping[str, str], log_file: Path) -> ServerProcess:
    """Starts a command in a session of its own, its output appended to `log_file`, with only `env` around it.

    It ends when `stop` is called or when this process is gone, whatever the reason.
    """
    ours, theirs = socket.socketpair()
    with theirs, SafeFolder(log_file.parent).open_to_append(log_file.name) as log:
        guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARDIAN), str(theirs.fileno()), str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(env),
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C is for bitbench, which then ends its engines in order
        )
    with ours.makefile("rb") as reader:
        line = reader.readline()
    if not line:
        ours.close()
        raise OSError(f"the guardian process ended with {guardian.wait()} before it started {command[0]}")
    return ServerProcess(guardian, ours, int(line), log_file)


def wait_until_healthy(process: ServerProcess, url: str, timeout_s: float) -> None:
    """Blocks until GET `url` answers 200; raises ProcessEnded or TimeoutError."""
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_POLL_S
    while not _answers(url):
        exit_code = process.exit_code()
        if exit_code is not None:
            raise ProcessEnded(exit_code)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{url} did not answer within {timeout_s:g} s")
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, _SLOWEST_POLL_S)


def _answers(url: str) -> bool:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_HEALTH_REQUEST_TIMEOUT_S)
    with contextlib.closing(connection):
        try:
            connection.request("GET", parts.path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False


def free_port() -> int:
    """A port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def random_key() -> str:
    return secrets.token_urlsafe(32)


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
