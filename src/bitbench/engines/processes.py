"""Server processes that cannot outlive bitbench: start, watch, read the log of, and end a whole process tree.

The work is done by `guardian.py`, two small processes between bitbench and the engine.
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

from bitbench.engines.guardian import GRACE_S, KILL_S, descendants, send
from bitbench.engines.listeners import describe_holders, listening_sockets, sockets_of
from bitbench.ground.errors import BitbenchError
from bitbench.ground.safe_files import SafeFolder

_GUARDIAN = Path(__file__).with_name("guardian.py")
# The guardian gives the tree 3 s to end by itself (guardian.GRACE_S), then kills it; the rest is for a busy machine.
_STOP_TIMEOUT_S = 20.0
# In the environment of all that belongs to one engine, so that it is found even when no guardian is left.
_MARK_VARIABLE = "BITBENCH_INSTANCE"
_LOG_TAIL_BYTES = 256 * 1024
_HEALTH_REQUEST_TIMEOUT_S = 5.0
# A server that is ready at once is seen within 10 ms; one that takes minutes costs ten polls a second.
_FIRST_POLL_S, _SLOWEST_POLL_S = 0.01, 0.1


class ProcessEnded(Exception):
    """The process ended before it was ready."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"ended with {exit_code}")
        self.exit_code = exit_code


class PortTaken(Exception):
    """A process that is not ours listens on the engine's port; `holder` says which, such as `process 123 (python3)`."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"{holder} listens there")
        self.holder = holder


class ServerProcess:
    """A running process tree. `pid` is its root: the command itself, not the guardian."""

    def __init__(
        self, keeper: "subprocess.Popen[bytes]", leash: socket.socket, pids: tuple[int, int], mark: str, log_file: Path
    ) -> None:
        self._guardian_pid, self.pid = pids
        self.log_file = log_file
        self._keeper = keeper
        self._leash = leash
        self._mark = mark
        self._reported: int | None = None

    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number when a signal ended it, or those who guard it."""
        if self._reported is None:
            with contextlib.suppress(OSError):  # nothing was said yet, or the process was stopped
                said = self._leash.recv(64, socket.MSG_DONTWAIT)
                self._reported = int(said.split()[0]) if said else None
        return self._keeper.poll() if self._reported is None else self._reported

    def wait_for_the_rest(self) -> None:
        """Once the engine has ended: until all that it started has, too, and has written what it had to say."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(GRACE_S + KILL_S)

    def stop(self) -> None:
        """Ends the whole tree and returns when nothing of it is left. Safe to call twice."""
        self.exit_code()  # what was reported can be read no more after this
        self.thaw()  # a frozen process could not end by itself
        with contextlib.suppress(OSError):  # the other end may be gone already
            self._leash.shutdown(socket.SHUT_RDWR)  # unlike close, seen even while a forked process holds a copy
        self._leash.close()
        try:
            if self._keeper.wait(_STOP_TIMEOUT_S) < 0:  # by a signal, perhaps before it had ended all
                _kill_marked(f"{_MARK_VARIABLE}={self._mark}", _STOP_TIMEOUT_S)
        except (subprocess.TimeoutExpired, TimeoutError):
            raise BitbenchError(
                f"Process {self.pid} or one that it started cannot be killed and would disturb the next "
                f"measurement. End it (a driver may block it), then repeat the command."
            ) from None

    def freeze(self) -> None:
        """Stops every process of the tree where it is: it keeps its memory and takes no processor time."""
        stopped: set[int] = set()
        while running := descendants(self._guardian_pid) - stopped:  # until none has been forked meanwhile
            send(running, signal.SIGSTOP)
            stopped |= running

    def thaw(self) -> None:
        """Lets it go on. Safe to call when it is not frozen."""
        send(descendants(self._guardian_pid), signal.SIGCONT)

    def listens_on(self, port: int) -> bool:
        """Whether what is sent to this port of the loopback interface reaches this tree. Raises PortTaken where it
        reaches, or may reach, somebody else."""
        listening = listening_sockets(port)
        strange = listening - sockets_of(
            [self.pid]
        )  # mostly the root itself; the whole tree is looked for in all /proc
        strange = strange and strange - sockets_of(descendants(self._guardian_pid))
        if strange and strange <= listening_sockets(port):  # else it was closed, or handed over, in the meantime
            raise PortTaken(describe_holders(strange))
        return bool(listening)

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
    mark = secrets.token_hex(16)
    ours, theirs = socket.socketpair()
    with theirs, SafeFolder(log_file.parent).open_to_append(log_file.name) as log:
        keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARDIAN), str(theirs.fileno()), str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**env, _MARK_VARIABLE: mark},
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C is for bitbench, which then ends its engines in order
        )
    with ours.makefile("rb", buffering=0) as reader:  # what comes later is left in the socket
        line = reader.readline()
    if not line:
        ours.close()
        raise OSError(f"the guardian process ended with {keeper.wait()} before it started {command[0]}")
    guardian, engine = line.split()
    return ServerProcess(keeper, ours, (int(guardian), int(engine)), mark, log_file)


def wait_until_healthy(process: ServerProcess, url: str, timeout_s: float) -> None:
    """Blocks until GET `url` answers 200 and it is this process that answers; raises ProcessEnded, PortTaken or
    TimeoutError."""
    port = urlsplit(url).port or 0
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_POLL_S
    while not (_answers(url) and process.listens_on(port)):
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


def _kill_marked(entry: str, timeout_s: float) -> None:
    """Every process that was started with this entry in its environment, whoever its parent is now."""
    deadline = time.monotonic() + timeout_s
    while pids := _marked(entry.encode()):
        if time.monotonic() > deadline:
            raise TimeoutError
        send(pids, signal.SIGKILL)
        time.sleep(_FIRST_POLL_S)


def _marked(entry: bytes) -> set[int]:
    """Those that have ended have no environment any more."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's, or gone in the meantime
            if entry in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
