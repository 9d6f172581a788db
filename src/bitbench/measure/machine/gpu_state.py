"""What the GPUs did while a trial ran: clocks, temperature, what slowed them, who else computed there, energy. *Not yet
run on a GPU.*

Read ten times a second through NVML, a few microseconds for each question. What the driver does not tell is unknown.
"""

import functools
import threading
from collections.abc import Callable, Collection, Iterable, Sequence

from bitbench.measure.machine.gpus import visible_gpus
from bitbench.measure.machine.memory import process_ids
from bitbench.measure.machine.nvml import Gpu
from bitbench.records.trial import Failure, GpuUse, Outcome

WATCH_PERIOD_S = 0.1
# Heat and power that did not come from the work alone. A power cap is no disturbance: many cards run into it whenever
# they are busy, and it is the same for all configs.
DISTURBING = frozenset(
    {"hardware slowdown", "hardware thermal slowdown", "software thermal slowdown", "power brake", "sync boost"}
)


class GpuWatch:
    """Around a trial. Without a GPU it does nothing, and `use` is None."""

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
    return GpuWatch(_visible() if root_pid is not None else (), lambda: process_ids(root_pid))


def disturbance(use: GpuUse | None) -> Failure | None:
    """Why what was measured meanwhile does not count; None where nothing speaks against it."""
    if use is None:
        return None
    if use.other_processes:
        cause = f"{use.other_processes} other processes computed on the GPU meanwhile; end them (nvidia-smi lists them)"
        return Failure(outcome=Outcome.DISTURBED, cause=cause.replace("1 other processes", "1 other process"))
    if reasons := DISTURBING & set(use.slowed_by or ()):
        heat = "" if use.temperature_c is None else f", at up to {use.temperature_c} °C"
        cause = f"the GPU was slowed by {' and '.join(sorted(reasons))}{heat}; see to its cooling and power"
        return Failure(outcome=Outcome.DISTURBED, cause=cause)
    return None


@functools.cache
def _visible() -> tuple[Gpu, ...]:
    return tuple(visible_gpus())


def _others(gpus: Iterable[Gpu], own: Collection[int]) -> int | None:
    """Processes beside the engine's. None where NVML does not show its own: then it gives other ids than ours, as in a
    container, or the engine does not compute there."""
    seen: set[int] = set()
    for gpu in gpus:
        running = gpu.processes()
        if running is None:
            return None
        seen |= {process.pid for process in running}
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
