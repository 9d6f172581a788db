"""What is watched while an engine runs: its memory with the limit of a study, the state of the GPUs, and the energy
of the processors."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

import psutil

from bitbench.machine.gpus import Gpu, nvml_process_memory, processes_on, visible_gpus
from bitbench.records.trial import Failure, GpuUse, Memory, Outcome
from bitbench.util.units import show_bytes

WATCH_PERIOD_S = 0.1
# Processes that share pages may seem to hold more than the limit for long; the exact figure is not read more often.
EXACT_PERIOD_S = 1.0


def read_memory(root_pid: int | None) -> Memory:
    """Now and at its peak so far; None where this system does not tell."""
    resident, peak, seen = 0, 0, False
    for process in watched_process_tree(root_pid):
        status = _fields(process.pid, "status")
        rollup = _fields(process.pid, "smaps_rollup")
        if "VmRSS" not in status:
            continue
        seen = True
        resident += rollup.get("Pss", status["VmRSS"])
        peak += status.get("VmHWM", status["VmRSS"])
    return Memory(resident_bytes=resident, peak_bytes=max(peak, resident)) if seen else Memory()


class MemoryWatch:
    """Calls `stop` as soon as the tree holds more than the limit, and remembers why; keeps the peak of the devices.

    Between trials the exact figure is read (proportional set size: shared pages are counted once); it walks page tables
    and would disturb a running engine. While a trial runs only `statm` is read, a few microseconds per process, and
    NVML where there is a device, which keeps no high-water mark of its own.
    """

    def __init__(
        self,
        root_pid: int | None,
        limit_bytes: int | None,
        stop: Callable[[], None],
        gpus: Sequence[Gpu] = (),
    ) -> None:
        self._root_pid = root_pid
        self._limit_bytes = limit_bytes
        self._stop = stop
        self._gpus = gpus
        self._device_peak_bytes: int | None = None
        self._exact_at = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)
        self.failure: Failure | None = None

    def __enter__(self) -> "MemoryWatch":
        if self._limit_bytes is not None or self._gpus:
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
            if (
                self._limit_bytes is not None
                and (held := self._held_above(self._limit_bytes)) is not None
            ):
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
        quick = sum(_resident_bytes(process) for process in watched_process_tree(self._root_pid))
        if quick <= limit_bytes or time.monotonic() < self._exact_at:
            return None
        self._exact_at = time.monotonic() + EXACT_PERIOD_S
        held = read_memory(self._root_pid).resident_bytes or quick
        return held if held > limit_bytes else None

    def _sample_devices(self) -> int | None:
        used = nvml_process_memory(_process_ids(self._root_pid), self._gpus) if self._gpus else None
        if used is not None:
            self._device_peak_bytes = max(used, self._device_peak_bytes or 0)
        return used


def _process_ids(root_pid: int | None) -> set[int]:
    return {process.pid for process in watched_process_tree(root_pid)}


def watched_process_tree(root_pid: int | None) -> Iterator[psutil.Process]:
    """A process and all that it started."""
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
    return {
        part[0].rstrip(":"): int(part[1]) * 1024
        for part in parts
        if len(part) == 3 and part[2] == "kB"
    }


# Heat and power that did not come from the work alone. A power cap is no disturbance: many cards run into it whenever
# they are busy, and it is the same for all configs.
DISTURBING = frozenset(
    {
        "hardware slowdown",
        "hardware thermal slowdown",
        "software thermal slowdown",
        "power brake",
        "sync boost",
    }
)


class GpuWatch:
    """Around a trial. Without a GPU it does nothing, and `use` is None.

    Read ten times a second through NVML, a few microseconds for each question.
    """

    def __init__(self, gpus: Sequence[Gpu], own: Callable[[], Collection[int]]) -> None:
        """`own`: process ids of the engine, which are asked for again and again."""
        self._gpus = gpus
        self._own = own
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpu-watch", daemon=True)
        self._sm_clocks: set[int] = set()
        self._memory_clocks: set[int] = set()
        self._temperatures: set[int] = set()
        self._slowed_by: set[str] | None = None
        self._others: int | None = None
        self._energy_before: list[float | None] = []
        self.use: GpuUse | None = None

    def __enter__(self) -> "GpuWatch":
        if self._gpus:
            self._energy_before = [gpu.energy_j for gpu in self._gpus]
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._gpus:
            return
        self._done.set()
        self._thread.join()
        self._look()
        self.use = GpuUse(
            energy_j=_used(self._energy_before, [gpu.energy_j for gpu in self._gpus]),
            sm_clock_low_mhz=min(self._sm_clocks, default=None),
            sm_clock_high_mhz=max(self._sm_clocks, default=None),
            memory_clock_mhz=min(self._memory_clocks, default=None),
            temperature_c=max(self._temperatures, default=None),
            slowed_by=None if self._slowed_by is None else tuple(sorted(self._slowed_by)),
            other_processes=self._others,
        )

    def _watch(self) -> None:
        while not self._done.wait(WATCH_PERIOD_S):
            self._look()

    def _look(self) -> None:
        own = self._own()
        for gpu in self._gpus:
            _add(self._sm_clocks, gpu.sm_clock_mhz)
            _add(self._memory_clocks, gpu.memory_clock_mhz)
            _add(self._temperatures, gpu.temperature_c)
            if (reasons := gpu.slowed_by) is not None:
                self._slowed_by = (self._slowed_by or set()) | set(reasons)
        if (others := _others(self._gpus, own)) is not None:
            self._others = max(others, self._others or 0)


def watch_gpus(root_pid: int | None) -> GpuWatch:
    """Those that engines see, for an engine with this process at its root; none where it is not on this machine."""
    return GpuWatch(visible_gpus() if root_pid is not None else (), lambda: _process_ids(root_pid))


def gpu_watch_disturbance(use: GpuUse | None) -> Failure | None:
    """Why what was measured meanwhile does not count; None where nothing speaks against it."""
    if use is None:
        return None
    if use.other_processes:
        cause = f"{use.other_processes} other processes computed on the GPU meanwhile; end them (nvidia-smi lists them)"
        return Failure(
            outcome=Outcome.DISTURBED, cause=cause.replace("1 other processes", "1 other process")
        )
    if reasons := DISTURBING & set(use.slowed_by or ()):
        heat = "" if use.temperature_c is None else f", at up to {use.temperature_c} °C"
        cause = f"the GPU was slowed by {' and '.join(sorted(reasons))}{heat}; see to its cooling and power"
        return Failure(outcome=Outcome.DISTURBED, cause=cause)
    return None


def _others(gpus: Iterable[Gpu], own: Collection[int]) -> int | None:
    """Processes beside the engine's. None where NVML does not show its own: then it gives other ids than ours, as in a
    container, or the engine does not compute there."""
    seen = {process.pid for process in processes_on(gpus) or ()}
    return len(seen - set(own)) if seen & set(own) else None


def _used(before: Sequence[float | None], after: Sequence[float | None]) -> float | None:
    """Joules of all together; None where a counter is unknown, or was set back by a driver that was loaded anew."""
    pairs = [
        (earlier, later)
        for earlier, later in zip(before, after, strict=True)
        if earlier is not None and later is not None
    ]
    if len(pairs) < len(before) or any(later < earlier for earlier, later in pairs):
        return None
    return sum(later - earlier for earlier, later in pairs)


def _add(seen: set[int], value: int | None) -> None:
    if value is not None:
        seen.add(value)
