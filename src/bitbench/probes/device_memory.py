"""Device memory of an instance's processes, as NVIDIA's management library (NVML) counts it. *Not yet run on a GPU.*

Needs `pip install bitbench[gpu]`. In a container NVML may see the host's process ids instead of ours; then, and without
a device, the figures are undefined.
"""

import functools
from collections.abc import Collection
from importlib import import_module
from typing import Protocol


class RunningProcess(Protocol):
    """What NVML says of one process on one device; `usedGpuMemory` is None where the driver does not tell."""

    pid: int
    usedGpuMemory: int | None  # noqa: N815 - NVML's name for it


class Nvml(Protocol):
    """The part of `pynvml` that is used here."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...  # noqa: N802
    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[RunningProcess]: ...  # noqa: N802


class DeviceMemory:
    """All devices of this machine."""

    def __init__(self, nvml: Nvml) -> None:
        """Raises NVMLError where there is no driver."""
        self._nvml = nvml
        nvml.nvmlInit()
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]

    @property
    def count(self) -> int:
        return len(self._handles)

    def used_by(self, pids: Collection[int]) -> int | None:
        """Bytes that these processes hold, on all devices together; None where NVML does not show all of it."""
        held: list[int | None] = []
        try:
            for handle in self._handles:
                running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                held += [process.usedGpuMemory for process in running if process.pid in pids]
        except self._nvml.NVMLError:
            return None
        known = [size for size in held if size is not None]
        return sum(known) if held and len(known) == len(held) else None


@functools.cache
def find_devices() -> DeviceMemory | None:
    """None without the package, without a driver, or without a device."""
    try:
        nvml: Nvml = import_module("pynvml")
    except ImportError:
        return None
    return open_devices(nvml)


def open_devices(nvml: Nvml) -> DeviceMemory | None:
    try:
        devices = DeviceMemory(nvml)
    except nvml.NVMLError:
        return None
    return devices if devices.count else None
