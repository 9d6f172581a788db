"""Watches of a running engine: its memory against the limit of a study, and the GPUs."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

import psutil

from bitbench.machine.gpus import Gpu, list_gpu_processes, sum_gpu_memory, visible_gpus
from bitbench.records.trial import Failure, GpuUse, Memory, Outcome
from bitbench.util.units import show_bytes

WATCH_PERIOD_S = 0.1
# The quick size of processes that share pages may be above the limit for long. The exact size is
# not read more often than this.
EXACT_PERIOD_S = 1.0


def read_memory(root_pid: int | None) -> Memory:
    """Return the memory of a process tree, now and at its peak so far.

    Its fields are None if this system does not say.
    """
    resident = 0
    peak = 0
    is_readable = False
    for process in iter_process_tree(root_pid):
        status = _read_fields(process.pid, "status")
        rollup = _read_fields(process.pid, "smaps_rollup")
        if "VmRSS" not in status:
            continue
        is_readable = True
        resident += rollup.get("Pss", status["VmRSS"])
        peak += status.get("VmHWM", status["VmRSS"])
    if not is_readable:
        return Memory()
    return Memory(resident_bytes=resident, peak_bytes=max(peak, resident))


class MemoryWatch:
    """A watch that calls `stop` when a process tree holds more memory than the limit.

    It remembers why, and keeps the peak of the GPUs. Between trials it reads the exact size, in
    which shared pages count once (proportional set size). That walks the page tables and would
    disturb a running engine. During a trial it reads only `statm`, which takes a few microseconds
    per process. It also reads NVML if there is a GPU, because NVML keeps no peak.
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
        """Return the memory of the host and of the GPUs, now and at the peak so far."""
        device_bytes = self._sample_devices()
        return read_memory(self._root_pid).model_copy(
            update={"device_bytes": device_bytes, "device_peak_bytes": self._device_peak_bytes}
        )

    def _watch(self) -> None:
        while not self._done.wait(WATCH_PERIOD_S):
            self._sample_devices()
            if self._limit_bytes is None:
                continue
            held = self._find_excess(self._limit_bytes)
            if held is not None:
                cause = (
                    f"it held {show_bytes(held)} of memory when it was stopped; the study allows "
                    f"{show_bytes(self._limit_bytes)} (limits.memory)"
                )
                self.failure = Failure(outcome=Outcome.OOM, cause=cause)
                self._stop()
                return

    def _find_excess(self, limit_bytes: int) -> int | None:
        """Return the size if it is above the limit, or else None.

        The quick size counts shared pages once for each process. Only if it is above the limit, the
        exact size is read.
        """
        quick = sum(_get_resident_bytes(process) for process in iter_process_tree(self._root_pid))
        if quick <= limit_bytes or time.monotonic() < self._exact_at:
            return None
        self._exact_at = time.monotonic() + EXACT_PERIOD_S
        held = read_memory(self._root_pid).resident_bytes or quick
        return held if held > limit_bytes else None

    def _sample_devices(self) -> int | None:
        """Return the memory in use on the GPUs, and update its peak."""
        if not self._gpus:
            return None
        used = sum_gpu_memory(_process_ids(self._root_pid), self._gpus)
        if used is not None:
            self._device_peak_bytes = max(used, self._device_peak_bytes or 0)
        return used


def _process_ids(root_pid: int | None) -> set[int]:
    return {process.pid for process in iter_process_tree(root_pid)}


def iter_process_tree(root_pid: int | None) -> Iterator[psutil.Process]:
    """Yield a process and all of its descendants. Yield nothing if it has ended."""
    if root_pid is None:
        return
    try:
        root = psutil.Process(root_pid)
        yield root
        yield from root.children(recursive=True)
    except psutil.Error:
        return


def _get_resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _read_fields(pid: int, name: str) -> dict[str, int]:
    """Return the `Key:  123 kB` lines of a file under /proc, in bytes."""
    try:
        lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
    except OSError:
        return {}
    sizes: dict[str, int] = {}
    for line in lines:
        parts = line.split()
        if len(parts) == 3 and parts[2] == "kB":
            sizes[parts[0].rstrip(":")] = int(parts[1]) * 1024
    return sizes


# Heat and power limits that the work alone does not explain. A power cap is not a disturbance: many
# cards run into it whenever they are busy, and it affects all configs.
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
    """A watch of the GPUs during a trial, as a context manager.

    It reads them ten times a second through NVML. Each question takes a few microseconds. Without a
    GPU it does nothing, and `use` is None.
    """

    def __init__(self, gpus: Sequence[Gpu], engine_pids: Callable[[], Collection[int]]) -> None:
        """`engine_pids` is called at each reading: an engine may start processes."""
        self._gpus = gpus
        self._engine_pids = engine_pids
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
        slowed_by: tuple[str, ...] | None = None
        if self._slowed_by is not None:
            slowed_by = tuple(sorted(self._slowed_by))
        self.use = GpuUse(
            energy_j=_compute_used_energy(
                self._energy_before, [gpu.energy_j for gpu in self._gpus]
            ),
            sm_clock_low_mhz=min(self._sm_clocks, default=None),
            sm_clock_high_mhz=max(self._sm_clocks, default=None),
            memory_clock_mhz=min(self._memory_clocks, default=None),
            temperature_c=max(self._temperatures, default=None),
            slowed_by=slowed_by,
            other_processes=self._others,
        )

    def _watch(self) -> None:
        while not self._done.wait(WATCH_PERIOD_S):
            self._look()

    def _look(self) -> None:
        engine_pids = self._engine_pids()
        for gpu in self._gpus:
            _add_value(self._sm_clocks, gpu.sm_clock_mhz)
            _add_value(self._memory_clocks, gpu.memory_clock_mhz)
            _add_value(self._temperatures, gpu.temperature_c)
            reasons = gpu.slowed_by
            if reasons is not None:
                self._slowed_by = (self._slowed_by or set()) | set(reasons)
        others = _others(self._gpus, engine_pids)
        if others is not None:
            self._others = max(others, self._others or 0)


def watch_gpus(root_pid: int | None) -> GpuWatch:
    """Return a watch of the GPUs that engines see, for an engine with this process at its root.

    Without a process on this machine it watches nothing.
    """
    gpus = visible_gpus() if root_pid is not None else ()
    return GpuWatch(gpus, lambda: _process_ids(root_pid))


def find_gpu_disturbance(use: GpuUse | None) -> Failure | None:
    """Return why measurements on the GPUs do not count, or None if they do."""
    if use is None:
        return None
    if use.other_processes:
        cause = (
            f"{use.other_processes} other processes computed on the GPU meanwhile; "
            "end them (nvidia-smi lists them)"
        ).replace("1 other processes", "1 other process")
        return Failure(outcome=Outcome.DISTURBED, cause=cause)
    reasons = DISTURBING & set(use.slowed_by or ())
    if not reasons:
        return None
    heat = "" if use.temperature_c is None else f", at up to {use.temperature_c} °C"
    cause = (
        f"the GPU was slowed by {' and '.join(sorted(reasons))}{heat}; see to its cooling and power"
    )
    return Failure(outcome=Outcome.DISTURBED, cause=cause)


def _others(gpus: Iterable[Gpu], engine_pids: Collection[int]) -> int | None:
    """Return the number of processes on the GPUs that are not the engine's.

    Return None if NVML does not list the engine's processes. Then it has other ids than ours, as in
    a container, or the engine does not compute there.
    """
    pids = {process.pid for process in list_gpu_processes(gpus) or ()}
    ours = pids & set(engine_pids)
    if not ours:
        return None
    return len(pids - ours)


def _compute_used_energy(
    before: Sequence[float | None], after: Sequence[float | None]
) -> float | None:
    """Return the energy of all GPUs together, in joules.

    Return None if a counter is unknown or went back because the driver was loaded again.
    """
    used_j = 0.0
    for earlier, later in zip(before, after, strict=True):
        if earlier is None or later is None or later < earlier:
            return None
        used_j += later - earlier
    return used_j


def _add_value(values: set[int], value: int | None) -> None:
    if value is not None:
        values.add(value)
