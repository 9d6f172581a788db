"""Processes of engines that are not guarded any more: found by a mark that all of them inherited, and ended.

The mark is a limit that concerns only real-time processes (RLIMIT_RTTIME), and none for ages: what a process starts
has it, whatever becomes of its environment, which some overwrite with their title. Nothing is written to a disk.
"""

import contextlib
import os
import re
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bitbench.engines.guardian import GRACE_S, KILL_S, send_signal

_LIMIT = re.compile(rb"^Max realtime timeout +(\d+) +(\d+)", re.MULTILINE)
_DRIVER = 1 << 62  # beside it in the hard limit: who drives the engine, by pid and time of start
_INSTANCE_BITS, _TICKS_BITS = 61, 40
_POLL_S = 0.01
_WAIT_S = 0.1  # between two looks at all processes, while guardians are at work
_PROC = Path("/proc")


def new_mark() -> str:
    """A mark for what this process is about to start: the soft limit is its own number, the hard one the driver's."""
    pid = os.getpid()
    return (
        f"{secrets.randbits(_INSTANCE_BITS)}:{_DRIVER | pid << _TICKS_BITS | (_started(pid) or 0)}"
    )


def marked(mark: str) -> set[int]:
    """Processes with this mark, whichever parent they have now."""
    return {pid for pid, found in _marks() if found == mark}


def left_over() -> set[int]:
    """Return processes of engines whose driver has ended: it and their guardian were killed."""
    return {pid for pid, mark in _marks() if not _driver_runs(mark)}


def end_left_over(timeout_s: float = 20.0) -> int:
    """Ends them, and returns how many there were. Raises TimeoutError where one cannot be killed.

    A driver that has just ended may have guardians that are still at work: they get the time that they take.
    """
    deadline = time.monotonic() + GRACE_S + KILL_S
    while (found := left_over()) and time.monotonic() < deadline:
        time.sleep(_WAIT_S)
    if found:
        kill_left_over(left_over, timeout_s)
    return len(found)


def kill_left_over(find: Callable[[], set[int]], timeout_s: float) -> None:
    """Kills what `find` finds until it finds nothing more. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while pids := find():
        if time.monotonic() > deadline:
            raise TimeoutError
        send_signal(pids, signal.SIGKILL)
        time.sleep(_POLL_S)


def _marks() -> Iterator[tuple[int, str]]:
    """Of the processes that run, are this user's, and see the same process numbers as this one: not those of a
    container."""
    for path in _PROC.glob("[0-9]*/limits"):
        with contextlib.suppress(OSError):  # another user's, or gone in the meantime
            found = _LIMIT.search(path.read_bytes())
            if (
                found is None
                or not int(found[2]) & _DRIVER
                or _namespace(path.parent) != _namespace(_PROC / "self")
            ):
                continue
            if _started(pid := int(path.parent.name)) is not None:
                yield pid, f"{int(found[1])}:{int(found[2])}"


def _namespace(process: Path) -> Path:
    return (process / "ns/pid").readlink()


def _driver_runs(mark: str) -> bool:
    driver = int(mark.partition(":")[2]) ^ _DRIVER
    return _started(driver >> _TICKS_BITS) == driver & (1 << _TICKS_BITS) - 1


def _started(pid: int) -> int | None:
    """In clock ticks since the machine was started; None where no such process runs."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
