"""Device memory of an instance's processes, as NVML counts it. *Not yet run on a GPU.*

In a container NVML may see the host's process ids instead of ours; then, and without a device, the figures are
undefined.
"""

import functools
from collections.abc import Collection, Sequence

from bitbench.measure.machine.gpus import visible_gpus
from bitbench.measure.machine.nvml import Gpu


class DeviceMemory:
    """Of the GPUs that engines see."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus

    def used_by(self, pids: Collection[int]) -> int | None:
        """Bytes that these processes hold, on all devices together; None where NVML does not show all of it."""
        held: list[int | None] = []
        for gpu in self._gpus:
            running = gpu.processes()
            if running is None:
                return None
            held += [process.used_bytes for process in running if process.pid in pids]
        known = [size for size in held if size is not None]
        return sum(known) if held and len(known) == len(held) else None


@functools.cache
def find_devices() -> DeviceMemory | None:
    """None without a driver or without a device."""
    gpus = visible_gpus()
    return DeviceMemory(gpus) if gpus else None
