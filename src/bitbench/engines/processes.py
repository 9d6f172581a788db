"""Server processes that cannot outlive bitbench: start, watch, read the log of, tell who listens on the port of, and
end a whole process tree; and tools that are run to their end.

The work of guarding is done by `guardian.py`, a small process between bitbench and the engine.
"""

import contextlib
import http.client
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from bitbench.engines.guardian import GRACE_S, KILL_S, MARK_VARIABLE, descendants, send_signal
from bitbench.engines.left_over import kill_left_over, marked, new_mark
from bitbench.util.child_processes import NOWHERE, isolated_command, tool_child_variables
from bitbench.util.errors import BitbenchError
from bitbench.util.files import SafeFolder

_LISTENING = "0A"  # TCP_LISTEN of the kernel's tcp_states.h
_ADDRESS, _STATE, _INODE = 1, 3, 9  # fields of a line in /proc/net/tcp


def _kernel_hex(address: bytes) -> str:
    """As /proc/net/tcp writes it: words of 32 bits, each as a number of this machine."""
    words = (address[place : place + 4] for place in range(0, len(address), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


_LOOPBACK = (
    _kernel_hex(socket.inet_aton("127.0.0.1")),
    _kernel_hex(socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1")),
)
_ANY_ADDRESS = (_kernel_hex(bytes(4)), _kernel_hex(bytes(16)))


def _listening_sockets(port: int) -> set[str]:
    """The sockets, by inode, one of which gets what connects to this port of 127.0.0.1: those of the address itself,
    or, where it has none, those of all addresses. Several share it where they asked for that (SO_REUSEPORT)."""
    found: dict[str, set[str]] = defaultdict(set)
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):  # a kernel without IPv6
            for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                address, _, hex_port = fields[_ADDRESS].partition(":")
                if fields[_STATE] == _LISTENING and int(hex_port, 16) == port:
                    found[address].add(fields[_INODE])
    return _at(found, _LOOPBACK) or _at(found, _ANY_ADDRESS)


def _at(found: Mapping[str, set[str]], addresses: Iterable[str]) -> set[str]:
    return set[str]().union(*(found.get(address, set()) for address in addresses))


def _sockets_of(pids: Iterable[int]) -> set[str]:
    """The inodes of all sockets that these processes have open."""
    return set[str]().union(*map(_sockets, pids))


def _describe_holders(inodes: set[str]) -> str:
    """`process 123 (python3)`: who has one of these sockets open, as far as this user may see it."""
    for path in Path("/proc").glob("[0-9]*"):
        if inodes & _sockets(int(path.name)):
            with contextlib.suppress(OSError):
                return f"process {path.name} ({(path / 'comm').read_text(encoding='utf-8', errors='replace').strip()})"
    return "a process of another user"


def _sockets(pid: int) -> set[str]:
    """Empty where it is gone, or another user's."""
    found = set()
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # closed in the meantime
                target = os.readlink(entry.path)  # noqa: PTH115 - it is no path: "socket:[4711]"
                if target.startswith("socket:["):
                    found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found


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


class PortTaken(Exception):
    """A process that is not ours listens on the engine's port; `holder` says which, such as `process 123 (python3)`."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"{holder} listens there")
        self.holder = holder


class ServerProcess:
    """A running process tree. `pid` is its root: the command itself, not the guardian.

    `guardian` is the process above it, and `mark` is what all of them carry.
    """

    def __init__(
        self, leash: socket.socket, log_file: Path, guardian: "subprocess.Popen[bytes]", mark: str
    ) -> None:
        """Raises OSError where the guardian ended before it had started anything."""
        with leash.makefile("rb", buffering=0) as reader:  # what comes later is left in the socket
            line = reader.readline()
        if not line:
            leash.close()
            raise OSError(f"the guardian process ended with {guardian.wait()} before it began")
        self.pid = int(line)
        self.log_file = log_file
        self._leash = leash
        self._guardian = guardian
        self._mark = mark
        self._reported: int | None = None
        self._is_stopping = False
        self._is_gone = False  # all of it, the guardian included

    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number when a signal ended it, or its guardian."""
        self._listen(0.0)
        if self._reported is None and self._is_gone:
            return self._guardian.wait()
        return self._reported

    def wait_for_the_rest(self) -> None:
        """Once the engine has ended: until all that it started has, too, and has written what it had to say."""
        self._wait_until_gone(GRACE_S + KILL_S)

    def stop(self) -> None:
        """Ends the whole tree and returns when nothing of it is left. Safe to call twice."""
        if self._leash.fileno() < 0:
            return
        self.exit_code()  # what is reported after this is about the end that we make
        self._is_stopping = True
        self.thaw()  # a frozen process could not end by itself
        with contextlib.suppress(OSError):  # the other end may be gone already
            self._leash.shutdown(
                socket.SHUT_WR
            )  # unlike close, seen even while a forked process holds a copy
        try:
            if not self._wait_until_gone(_STOP_TIMEOUT_S):
                raise TimeoutError
            self._end_orphans()
        except (subprocess.TimeoutExpired, TimeoutError):
            raise BitbenchError(
                f"Process {self.pid} or one that it started cannot be killed and would disturb the next "
                f"measurement. End it (a driver may block it), then repeat the command."
            ) from None
        self._leash.close()

    def _end_orphans(self) -> None:
        """End what is left where the guardian was killed before it had ended everything."""
        if self._guardian.wait(_STOP_TIMEOUT_S) < 0:
            kill_left_over(lambda: marked(self._mark), _STOP_TIMEOUT_S)

    def _wait_until_gone(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not self._is_gone and (left_s := deadline - time.monotonic()) > 0:
            self._listen(left_s)
        return self._is_gone

    def _listen(self, timeout_s: float) -> None:
        """Read what the guardian has to say, and wait so long for it. It closes the socket when it ends."""
        if (
            self._is_gone
            or self._leash.fileno() < 0
            or not select.select([self._leash], [], [], timeout_s)[0]
        ):
            return
        try:
            said = self._leash.recv(64)
        except OSError:
            said = b""
        self._is_gone = not said
        if said and self._reported is None and not self._is_stopping:
            self._reported = int(said.split()[0])

    def freeze(self) -> None:
        """Stops every process of the tree where it is: it keeps its memory and takes no processor time."""
        stopped: set[int] = set()
        while (
            running := descendants(self._guardian.pid) - stopped
        ):  # until none has been forked meanwhile
            send_signal(running, signal.SIGSTOP)
            stopped |= running

    def thaw(self) -> None:
        """Lets it go on. Safe to call when it is not frozen."""
        send_signal(descendants(self._guardian.pid), signal.SIGCONT)

    def listens_on(self, port: int) -> bool:
        """Whether what is sent to this port of the loopback interface reaches this tree. Raises PortTaken where it
        reaches, or may reach, somebody else."""
        listening = _listening_sockets(port)
        strange = listening - _sockets_of(
            [self.pid]
        )  # mostly the root itself; the whole tree is looked for in all /proc
        strange = strange and strange - _sockets_of(descendants(self._guardian.pid))
        if strange and strange <= _listening_sockets(
            port
        ):  # else it was closed, or handed over, in the meantime
            raise PortTaken(_describe_holders(strange))
        return bool(listening)

    def log(self) -> str:
        return _text(self.log_file.read_bytes())

    def log_tail(self, lines: int = 40) -> tuple[str, ...]:
        """The last lines of the log, without reading a long one as a whole."""
        with self.log_file.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            return tuple(_text(file.read()).splitlines()[-lines:])


def launch_logged_process(
    command: Sequence[str], *, env: Mapping[str, str], log_file: Path
) -> ServerProcess:
    """Starts a command in a session of its own, its output appended to `log_file`, with only `env` around it.

    It ends when `stop` is called or when this process is gone, whatever the reason.
    """
    mark = new_mark()
    ours, theirs = socket.socketpair()
    with theirs, SafeFolder(log_file.parent).open_to_append(log_file.name) as log:
        guardian = subprocess.Popen(
            isolated_command(
                sys.executable, "-S", _GUARDIAN, str(theirs.fileno()), str(os.getpid()), *command
            ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=NOWHERE,
            env={**env, MARK_VARIABLE: mark},
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C is for bitbench, which then ends its engines in order
        )
    return ServerProcess(ours, log_file, guardian, mark)


def wait_until_listening(process: ServerProcess, url: str, timeout_s: float) -> None:
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
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=_HEALTH_REQUEST_TIMEOUT_S
    )
    with contextlib.closing(connection):
        try:
            connection.request("GET", parts.path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False


def run_tool(
    command: Sequence[str | Path], *, folder: Path = NOWHERE
) -> "subprocess.CompletedProcess[str]":
    """Run it to its end without input; what it prints, on either way, is its `stdout`."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        cwd=folder,
        env=tool_child_variables(),
    )


def run_logged_tool(command: Sequence[str | Path], log: IO[bytes], *, folder: Path) -> int:
    """Run a tool to its end, with its output in the log; return its exit code."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        check=False,
        cwd=folder,
        env=tool_child_variables(),
    ).returncode


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
