"""Processes of engines that have lost their guardian: they are found by a mark, and ended.

Every process of an engine inherits the mark: a limit that concerns only real-time processes
(RLIMIT_RTTIME), set so high that it never applies. Unlike environment variables, which some
processes overwrite with their title, it cannot get lost. Nothing is written to a disk.
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
_DRIVER = 1 << 62  # in the hard limit, with the pid and the start time of the engine's driver
_INSTANCE_BITS = 61
_TICKS_BITS = 40
_POLL_S = 0.01
_WAIT_S = 0.1  # between two searches of all processes, while guardians are at work
_PROC = Path("/proc")


def make_mark() -> str:
    """Return a mark for an instance that this process is about to start.

    The soft limit is the instance's number. The hard limit identifies the driver.
    """
    pid = os.getpid()
    driver = _DRIVER | pid << _TICKS_BITS | (_read_start_ticks(pid) or 0)
    return f"{secrets.randbits(_INSTANCE_BITS)}:{driver}"


def list_marked_processes(mark: str) -> set[int]:
    """Return the processes with this mark, whichever parent they have now."""
    return {pid for pid, process_mark in _iter_marks() if process_mark == mark}


def list_left_over_processes() -> set[int]:
    """Return the engine processes whose driver has ended: it and their guardian were killed."""
    return {pid for pid, mark in _iter_marks() if not _is_driver_running(mark)}


def end_left_over(timeout_s: float = 20.0) -> int:
    """End the left-over processes and return their number. Raise TimeoutError if one survives.

    A driver that has just ended may have guardians that are still at work, so they get time first.
    """
    deadline = time.monotonic() + GRACE_S + KILL_S
    while (pids := list_left_over_processes()) and time.monotonic() < deadline:
        time.sleep(_WAIT_S)
    if pids:
        kill_left_over(list_left_over_processes, timeout_s)
    return len(pids)


def kill_left_over(find: Callable[[], set[int]], timeout_s: float) -> None:
    """Kill the processes that `find` returns until it returns none. Raise TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while pids := find():
        if time.monotonic() > deadline:
            raise TimeoutError
        send_signal(pids, signal.SIGKILL)
        time.sleep(_POLL_S)


def _iter_marks() -> Iterator[tuple[int, str]]:
    """Yield pid and mark of the user's running engine processes.

    Processes of a container are left out: they see other process numbers than this process.
    """
    for path in _PROC.glob("[0-9]*/limits"):
        with contextlib.suppress(OSError):  # another user's process, or it ended in the meantime
            limits = _LIMIT.search(path.read_bytes())
            if limits is None or not int(limits[2]) & _DRIVER:
                continue
            if _read_namespace(path.parent) != _read_namespace(_PROC / "self"):
                continue
            pid = int(path.parent.name)
            if _read_start_ticks(pid) is not None:
                yield pid, f"{int(limits[1])}:{int(limits[2])}"


def _read_namespace(process: Path) -> Path:
    return (process / "ns/pid").readlink()


def _is_driver_running(mark: str) -> bool:
    driver = int(mark.partition(":")[2]) ^ _DRIVER
    return _read_start_ticks(driver >> _TICKS_BITS) == driver & (1 << _TICKS_BITS) - 1


def _read_start_ticks(pid: int) -> int | None:
    """Return a process's start in clock ticks since boot, or None if it does not run."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
