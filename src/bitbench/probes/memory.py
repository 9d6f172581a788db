"""Resident memory of an instance's process tree, and the limit that a study may set on it.

Between trials the exact figure is read (proportional set size: shared pages are counted once); it walks page tables
and would disturb a running engine. While a trial runs only `statm` is read, a few microseconds per process.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from bitbench.core.trial import Failure, Memory, Outcome
from bitbench.units import show_bytes

WATCH_PERIOD_S = 0.1


def read_memory(root_pid: int | None) -> Memory:
    """Now and at its peak so far; None where this system does not tell."""
    resident, peak, seen = 0, 0, False
    for process in _tree(root_pid):
        status = _fields(process.pid, "status")
        rollup = _fields(process.pid, "smaps_rollup")
        if "VmRSS" not in status:
            continue
        seen = True
        resident += rollup.get("Pss", status["VmRSS"])
        peak += status.get("VmHWM", status["VmRSS"])
    return Memory(resident_bytes=resident, peak_bytes=max(peak, resident)) if seen else Memory()


class MemoryWatch:
    """Calls `stop` as soon as the tree holds more than the limit, and remembers why."""

    def __init__(self, root_pid: int | None, limit_bytes: int | None, stop: Callable[[], None]) -> None:
        self._root_pid = root_pid
        self._limit_bytes = limit_bytes
        self._stop = stop
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)
        self.failure: Failure | None = None

    def __enter__(self) -> "MemoryWatch":
        if self._limit_bytes is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        assert self._limit_bytes is not None
        while not self._done.wait(WATCH_PERIOD_S):
            resident = sum(_resident_bytes(process) for process in _tree(self._root_pid))
            if resident > self._limit_bytes:
                self.failure = Failure(
                    outcome=Outcome.OOM,
                    cause=f"it held {show_bytes(resident)} of memory when it was stopped; the study allows "
                    f"{show_bytes(self._limit_bytes)} (limits.memory)",
                )
                self._stop()
                return


def _tree(root_pid: int | None) -> Iterator[psutil.Process]:
    if root_pid is None:
        return
    try:
        root = psutil.Process(root_pid)
        yield root
        yield from root.children(recursive=True)
    except psutil.Error:
        return


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _fields(pid: int, name: str) -> dict[str, int]:
    """`Key:  123 kB` lines of a file under /proc, in bytes."""
    try:
        lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
    except OSError:
        return {}
    parts = (line.split() for line in lines)
    return {part[0].rstrip(":"): int(part[1]) * 1024 for part in parts if len(part) == 3 and part[2] == "kB"}
