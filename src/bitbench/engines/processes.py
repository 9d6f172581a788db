"""Server processes that cannot outlive bitbench, and short-lived tools.

bitbench watches a server's log and port, and ends its whole process tree. `guardian.py`, a small
process between bitbench and the engine, ends the tree if bitbench dies.
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

from bitbench.engines.guardian import GRACE_S, KILL_S, MARK_VARIABLE, list_descendants, send_signal
from bitbench.engines.left_over import kill_left_over, list_marked_processes, make_mark
from bitbench.util.child_processes import NOWHERE, collect_tool_variables, make_isolated_command
from bitbench.util.errors import BitbenchError
from bitbench.util.files import SafeFolder

_LISTENING = "0A"  # TCP_LISTEN of the kernel's tcp_states.h
# Fields of a line in /proc/net/tcp.
_ADDRESS = 1
_STATE = 3
_INODE = 9


def _format_kernel_hex(address: bytes) -> str:
    """Return the address as in /proc/net/tcp: 32-bit words, each a number in native byte order."""
    digits = ""
    for start in range(0, len(address), 4):
        digits += f"{int.from_bytes(address[start : start + 4], sys.byteorder):08X}"
    return digits


_LOOPBACK = (
    _format_kernel_hex(socket.inet_aton("127.0.0.1")),
    _format_kernel_hex(socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1")),
)
_ANY_ADDRESS = (_format_kernel_hex(bytes(4)), _format_kernel_hex(bytes(16)))


def _list_listening_sockets(port: int) -> set[str]:
    """Return the inodes of the sockets that may accept a connection to this port of 127.0.0.1.

    They listen on the address itself, or on all addresses if no socket listens on it. Several
    sockets can share a port (SO_REUSEPORT).
    """
    by_address: dict[str, set[str]] = defaultdict(set)
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):  # a kernel without IPv6
            for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                address, _, hex_port = fields[_ADDRESS].partition(":")
                if fields[_STATE] == _LISTENING and int(hex_port, 16) == port:
                    by_address[address].add(fields[_INODE])
    return _collect_inodes(by_address, _LOOPBACK) or _collect_inodes(by_address, _ANY_ADDRESS)


def _collect_inodes(by_address: Mapping[str, set[str]], addresses: Iterable[str]) -> set[str]:
    return set[str]().union(*(by_address.get(address, set()) for address in addresses))


def _collect_sockets(pids: Iterable[int]) -> set[str]:
    """Return the inodes of all sockets that these processes have open."""
    return set[str]().union(*map(_list_sockets, pids))


def _describe_holders(inodes: set[str]) -> str:
    """Return who has one of these sockets open, for example `process 123 (python3)`."""
    for path in Path("/proc").glob("[0-9]*"):
        if inodes & _list_sockets(int(path.name)):
            with contextlib.suppress(OSError):
                name = (path / "comm").read_text(encoding="utf-8", errors="replace").strip()
                return f"process {path.name} ({name})"
    return "a process of another user"


def _list_sockets(pid: int) -> set[str]:
    """Return the inodes of a process's sockets: none if it ended or belongs to another user."""
    inodes = set()
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # closed in the meantime
                target = os.readlink(entry.path)  # noqa: PTH115 - not a path: "socket:[4711]"
                if target.startswith("socket:["):
                    inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    return inodes


_GUARDIAN = Path(__file__).with_name("guardian.py")
# The guardian gives the tree 3 s to end by itself (guardian.GRACE_S), then kills it. The remaining
# time is for a busy machine.
_STOP_TIMEOUT_S = 20.0
_LOG_TAIL_BYTES = 256 * 1024
_HEALTH_REQUEST_TIMEOUT_S = 5.0
# A server that is ready at once is seen within 10 ms. One that takes minutes costs ten polls a
# second.
_FIRST_POLL_S = 0.01
_SLOWEST_POLL_S = 0.1


class ProcessEnded(Exception):
    """The process ended before it was ready."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"ended with {exit_code}")
        self.exit_code = exit_code


class PortTaken(Exception):
    """A process that is not ours listens on the engine's port.

    `holder` names it, for example `process 123 (python3)`.
    """

    def __init__(self, holder: str) -> None:
        super().__init__(f"{holder} listens there")
        self.holder = holder


class ServerProcess:
    """A running process tree. `pid` is its root: the command itself, not the guardian.

    `guardian` is the process above it, and `mark` is the mark that all of them inherit.
    """

    def __init__(
        self, leash: socket.socket, log_file: Path, guardian: "subprocess.Popen[bytes]", mark: str
    ) -> None:
        """Raise OSError if the guardian ended before it started anything."""
        with leash.makefile("rb", buffering=0) as reader:  # unbuffered: later lines stay unread
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
        """Return the exit code, minus the signal's number if a signal ended it, or None if it runs.

        If only the guardian's end is known, return the guardian's exit code.
        """
        self._read_report(0.0)
        if self._reported is None and self._is_gone:
            return self._guardian.wait()
        return self._reported

    def wait_for_the_rest(self) -> None:
        """Wait, after the engine has ended, until all processes that it started have ended too.

        Until then they may still write to the log.
        """
        self._wait_until_gone(GRACE_S + KILL_S)

    def stop(self) -> None:
        """End the whole tree and return when no process of it is left. Safe to call twice."""
        if self._leash.fileno() < 0:
            return
        self.exit_code()  # later reports are about the end that we cause
        self._is_stopping = True
        self.thaw()  # a frozen process could not end by itself
        with contextlib.suppress(OSError):  # the other end may be gone already
            # Unlike close, this is noticed even if a forked process holds a copy of the socket.
            self._leash.shutdown(socket.SHUT_WR)
        try:
            if not self._wait_until_gone(_STOP_TIMEOUT_S):
                raise TimeoutError
            self._end_orphans()
        except (subprocess.TimeoutExpired, TimeoutError):
            raise BitbenchError(
                f"Process {self.pid} or one that it started cannot be killed and would disturb "
                "the next measurement. End it (a driver may block it), then repeat the command."
            ) from None
        self._leash.close()

    def _end_orphans(self) -> None:
        """End the remaining processes if the guardian was killed before it had ended them."""
        if self._guardian.wait(_STOP_TIMEOUT_S) < 0:
            kill_left_over(lambda: list_marked_processes(self._mark), _STOP_TIMEOUT_S)

    def _wait_until_gone(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not self._is_gone and (left_s := deadline - time.monotonic()) > 0:
            self._read_report(left_s)
        return self._is_gone

    def _read_report(self, timeout_s: float) -> None:
        """Wait for a report of the guardian and read it. Its end closes the socket."""
        if self._is_gone or self._leash.fileno() < 0:
            return
        readable, _, _ = select.select([self._leash], [], [], timeout_s)
        if not readable:
            return
        try:
            report = self._leash.recv(64)
        except OSError:
            report = b""
        self._is_gone = not report
        if report and self._reported is None and not self._is_stopping:
            self._reported = int(report.split()[0])

    def freeze(self) -> None:
        """Pause every process of the tree: they keep their memory and take no processor time."""
        stopped: set[int] = set()
        # Repeat until no process has been forked in the meantime.
        while running := list_descendants(self._guardian.pid) - stopped:
            send_signal(running, signal.SIGSTOP)
            stopped |= running

    def thaw(self) -> None:
        """Resume every process of the tree. Safe to call if it is not frozen."""
        send_signal(list_descendants(self._guardian.pid), signal.SIGCONT)

    def is_listening_on(self, port: int) -> bool:
        """Return True if a connection to this loopback port reaches this tree, False if no process.

        Raise PortTaken if it reaches, or may reach, another process.
        """
        listening = _list_listening_sockets(port)
        strange = listening - _collect_sockets([self.pid])  # usually the root itself listens
        if strange:  # only now search the whole tree, which reads all of /proc
            strange -= _collect_sockets(list_descendants(self._guardian.pid))
        # Look again: a socket may have been closed, or handed over, in the meantime.
        if strange and strange <= _list_listening_sockets(port):
            raise PortTaken(_describe_holders(strange))
        return bool(listening)

    def log(self) -> str:
        return _decode_text(self.log_file.read_bytes())

    def log_tail(self, lines: int = 40) -> tuple[str, ...]:
        """Return the last lines of the log, without reading all of a long one."""
        with self.log_file.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            return tuple(_decode_text(file.read()).splitlines()[-lines:])


def launch_logged_process(
    command: Sequence[str], *, env: Mapping[str, str], log_file: Path
) -> ServerProcess:
    """Start a command in its own session, with `env` as its only environment variables.

    Its output is appended to `log_file`. It ends when `stop` is called or when this process ends,
    whatever the reason.
    """
    mark = make_mark()
    ours, theirs = socket.socketpair()
    with theirs, SafeFolder(log_file.parent).open_to_append(log_file.name) as log:
        guardian = subprocess.Popen(
            make_isolated_command(
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
    """Wait until GET `url` answers 200 and this process is the one that answers.

    Raise ProcessEnded, PortTaken or TimeoutError.
    """
    port = urlsplit(url).port or 0
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_POLL_S
    while not (_is_answering(url) and process.is_listening_on(port)):
        exit_code = process.exit_code()
        if exit_code is not None:
            raise ProcessEnded(exit_code)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{url} did not answer within {timeout_s:g} s")
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, _SLOWEST_POLL_S)


def _is_answering(url: str) -> bool:
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
    """Run a tool to its end without input. The result's `stdout` includes its error stream."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        cwd=folder,
        env=collect_tool_variables(),
    )


def run_logged_tool(command: Sequence[str | Path], log: IO[bytes], *, folder: Path) -> int:
    """Run a tool to its end, with its output in the log, and return its exit code."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        check=False,
        cwd=folder,
        env=collect_tool_variables(),
    ).returncode


def free_port() -> int:
    """Return a port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def make_random_key() -> str:
    return secrets.token_urlsafe(32)


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
