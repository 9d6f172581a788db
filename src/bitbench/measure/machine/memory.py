"""Memory of an instance's process tree, and the limit that a study may set on what is resident.

Between trials the exact figure is read (proportional set size: shared pages are counted once); it walks page tables
and would disturb a running engine. While a trial runs only `statm` is read, a few microseconds per process, and NVML
where there is a device, which keeps no high-water mark of its own.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from bitbench.measure.machine.device_memory import DeviceMemory
from bitbench.records.trial import Failure, Memory, Outcome
from bitbench.util.units import show_bytes

WATCH_PERIOD_S = 0.1
# Processes that share pages may seem to hold more than the limit for long; the exact figure is not read more often.
EXACT_PERIOD_S = 1.0


def available_memory() -> int:
    """Bytes that new processes may take without swapping."""
    return int(psutil.virtual_memory().available)


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
    """Calls `stop` as soon as the tree holds more than the limit, and remembers why; keeps the peak of the devices."""

    def __init__(
        self,
        root_pid: int | None,
        limit_bytes: int | None,
        stop: Callable[[], None],
        devices: DeviceMemory | None = None,
    ) -> None:
        self._root_pid = root_pid
        self._limit_bytes = limit_bytes
        self._stop = stop
        self._devices = devices
        self._device_peak_bytes: int | None = None
        self._exact_at = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)
        self.failure: Failure | None = None

    def __enter__(self) -> "MemoryWatch":
        if self._limit_bytes is not None or self._devices is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def read(self) -> Memory:
        """Host and devices, now and at their peak so far."""
        device_bytes = self._sample_devices()
        return read_memory(self._root_pid).model_copy(
            update={"device_bytes": device_bytes, "device_peak_bytes": self._device_peak_bytes}
        )

    def _watch(self) -> None:
        while not self._done.wait(WATCH_PERIOD_S):
            self._sample_devices()
            if self._limit_bytes is not None and (held := self._held_above(self._limit_bytes)) is not None:
                self.failure = Failure(
                    outcome=Outcome.OOM,
                    cause=f"it held {show_bytes(held)} of memory when it was stopped; the study allows "
                    f"{show_bytes(self._limit_bytes)} (limits.memory)",
                )
                self._stop()
                return

    def _held_above(self, limit_bytes: int) -> int | None:
        """What is held, where it is above the limit: by the quick figure, which counts shared pages once for each
        process, and then by the exact one."""
        quick = sum(_resident_bytes(process) for process in _tree(self._root_pid))
        if quick <= limit_bytes or time.monotonic() < self._exact_at:
            return None
        self._exact_at = time.monotonic() + EXACT_PERIOD_S
        held = read_memory(self._root_pid).resident_bytes or quick
        return held if held > limit_bytes else None

    def _sample_devices(self) -> int | None:
        if self._devices is None:
            return None
        used = self._devices.used_by(process_ids(self._root_pid))
        if used is not None:
            self._device_peak_bytes = max(used, self._device_peak_bytes or 0)
        return used


def process_ids(root_pid: int | None) -> set[int]:
    """Of a process and all that it started."""
    return {process.pid for process in _tree(root_pid)}


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
