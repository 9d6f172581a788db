"""A stand-in for NVML with the calling convention of the library: arguments by reference, answers as codes. NVIDIA's
own binding calls it as it calls the driver's.

What a GPU says is set by the test; None: the driver does not tell.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

from bitbench.machine.gpus import Gpu, list_installed_gpus

SUCCESS, NOT_SUPPORTED, TOO_SMALL, LOST = 0, 3, 7, 15
NOT_AVAILABLE = 2**64 - 1


@dataclass
class FakeGpu:
    name: str = "NVIDIA L4"
    uuid: str = "GPU-00000000-0000-0000-0000-000000000001"
    capability: tuple[int, int] = (8, 9)
    memory_mib: int = 23_034
    power_limit_mw: int | None = 72_000
    energy_mj: int | None = 1_000_000
    temperature_c: int | None = 61
    clocks_mhz: dict[int, int] = field(default_factory=lambda: {1: 1_860, 2: 6_251})
    slowed: int | None = 0
    ecc: bool | None = True
    mig: bool | None = None
    processes: dict[int, int | None] = field(default_factory=dict)


class FakeNvml:
    """Takes the place of the driver's library from its making on."""

    def __init__(
        self, gpus: list[FakeGpu], driver: str = "580.95.05", *, starts: bool = True
    ) -> None:
        self.gpus = gpus
        self.is_lost = False
        self._driver = driver
        self._starts = starts
        pynvml.nvmlLib = self
        pynvml._nvmlGetFunctionPointer_cache.clear()

    def nvmlInitWithFlags(self, _: int) -> int:  # noqa: N802
        return SUCCESS if self._starts else NOT_SUPPORTED

    def nvmlSystemGetDriverVersion(self, text: Any, _: Any) -> int:  # noqa: N802
        text.value = self._driver.encode()
        return SUCCESS

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        return self._number(count, len(self.gpus))

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        return self._number(handle, index.value + 1)

    def nvmlDeviceGetName(self, handle: Any, text: Any, _: Any) -> int:  # noqa: N802
        text.value = self._of(handle).name.encode()
        return SUCCESS

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, _: Any) -> int:  # noqa: N802
        text.value = self._of(handle).uuid.encode()
        return SUCCESS

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:  # noqa: N802
        major._obj.value, minor._obj.value = self._of(handle).capability
        return SUCCESS

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        memory._obj.total = self._of(handle).memory_mib * 2**20
        return SUCCESS

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, answer: Any) -> int:  # noqa: N802
        return self._number(answer, self._of(handle).power_limit_mw)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, answer: Any) -> int:  # noqa: N802
        return self._number(answer, self._of(handle).energy_mj)

    def nvmlDeviceGetTemperatureV(self, handle: Any, answer: Any) -> int:  # noqa: N802
        degrees = self._of(handle).temperature_c
        if degrees is None:
            return NOT_SUPPORTED
        answer._obj.temperature = degrees
        return SUCCESS

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, answer: Any) -> int:  # noqa: N802
        return self._number(answer, self._of(handle).clocks_mhz.get(kind.value))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any, answer: Any) -> int:  # noqa: N802
        return self._number(answer, self._of(handle).slowed)

    def nvmlDeviceGetEccMode(self, handle: Any, current: Any, _: Any) -> int:  # noqa: N802
        return self._number(current, self._of(handle).ecc)

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, _: Any) -> int:  # noqa: N802
        return self._number(current, self._of(handle).mig)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, found: Any) -> int:  # noqa: N802
        running = self._of(handle).processes
        if self.is_lost:
            return LOST
        room, count._obj.value = count._obj.value, len(running)
        if len(running) > room:
            return TOO_SMALL
        for place, (pid, used) in zip(found or (), running.items(), strict=False):
            place.pid, place.usedGpuMemory = pid, NOT_AVAILABLE if used is None else used
        return SUCCESS

    def _of(self, handle: Any) -> FakeGpu:
        return self.gpus[handle.value - 1]

    def _number(self, answer: Any, value: int | None) -> int:
        if self.is_lost:
            return LOST
        if value is None:
            return NOT_SUPPORTED
        answer._obj.value = value
        return SUCCESS


@pytest.fixture(autouse=True)
def nvml_put_back() -> Iterator[None]:
    """Leave no stand-in to other tests."""
    yield
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()


def fake_gpus(*gpus: FakeGpu) -> list[Gpu]:
    """What bitbench sees of these."""
    FakeNvml(list(gpus))
    return list_installed_gpus()
