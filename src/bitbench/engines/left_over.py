"""Processes of engines that are not guarded any more: found by a variable that all of them inherited, and ended.

It is in what /proc shows of their environment, and lasts as long as they live. Nothing is written to a disk.
"""

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bitbench.engines.guardian import GRACE_S, KILL_S, send

# In the environment of all that belongs to one engine: a name of its own, and who drives it (pid and time of start).
MARK_VARIABLE = "BITBENCH_INSTANCE"
_POLL_S = 0.01
_PROC = Path("/proc")


def new_mark() -> str:
    """A mark for what this process is about to start."""
    pid = os.getpid()
    return f"{secrets.token_hex(16)}:{pid}:{_started(pid)}"


def marked(mark: str) -> set[int]:
    """Processes with this mark, whichever parent they have now."""
    return {pid for pid, found in _marks() if found == mark}


def left_over() -> set[int]:
    """Processes of engines whose driver has ended: it and all guardians were killed at once."""
    return {pid for pid, mark in _marks() if not _driver_runs(mark)}


def end_left_over(timeout_s: float = 20.0) -> int:
    """Ends them, and returns how many there were. Raises TimeoutError where one cannot be killed.

    A driver that has just ended may have guardians that are still at work: they get the time that they take.
    """
    deadline = time.monotonic() + GRACE_S + KILL_S
    while (found := left_over()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if found:
        kill_all(left_over, timeout_s)
    return len(found)


def kill_all(find: Callable[[], set[int]], timeout_s: float) -> None:
    """Kills what `find` finds until it finds nothing more. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while pids := find():
        if time.monotonic() > deadline:
            raise TimeoutError
        send(pids, signal.SIGKILL)
        time.sleep(_POLL_S)


def _marks() -> Iterator[tuple[int, str]]:
    """Of the processes that can be read and see the same process numbers as this one: not those of a container. One
    that has ended has no environment any more."""
    entry = f"{MARK_VARIABLE}=".encode()
    for path in _PROC.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's, or gone in the meantime
            for variable in path.read_bytes().split(b"\0"):
                if variable.startswith(entry) and _namespace(path.parent) == _namespace(_PROC / "self"):
                    yield int(path.parent.name), variable.removeprefix(entry).decode(errors="replace")


def _namespace(process: Path) -> Path:
    return (process / "ns/pid").readlink()


def _driver_runs(mark: str) -> bool:
    _, _, driver = mark.partition(":")
    pid, _, started = driver.partition(":")
    return not pid.isdigit() or _started(int(pid)) == started


def _started(pid: int) -> str | None:
    """In clock ticks since the machine was started; None where there is no such process."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()
