"""NVIDIA's management library (NVML), which comes with the driver: what each GPU is, and how it is. *Not yet run on a
GPU.*

A question that the driver does not answer, and a reading of zero where a device in use has none (a clock, a power, a
size), are unknown: None.
"""

import ctypes
import functools
from collections.abc import Iterator
from ctypes import byref, c_char, c_int, c_uint, c_ulonglong, c_void_p, create_string_buffer
from typing import Any, NamedTuple

from bitbench.study.capability import Capability

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS, _TOO_SMALL = 0, 7
_TEXT_BYTES = 96  # NVML's own limit for names
_NOT_AVAILABLE = 2**64 - 1  # memory of a process that the driver does not tell
_MORE_PROCESSES = 16  # that may have started since they were counted
_SM_CLOCK, _MEMORY_CLOCK, _GPU_SENSOR = 1, 2, 0
# Why clocks are lower than they could be; idling and a clock that somebody set are no disturbance.
_REASONS = {
    0x0000_0000_0000_0002: "applications clocks",
    0x0000_0000_0000_0004: "power cap",
    0x0000_0000_0000_0008: "hardware slowdown",
    0x0000_0000_0000_0010: "sync boost",
    0x0000_0000_0000_0020: "software thermal slowdown",
    0x0000_0000_0000_0040: "hardware thermal slowdown",
    0x0000_0000_0000_0080: "power brake",
    0x0000_0000_0000_0100: "display clocks",
}


class NvmlError(Exception):
    """The library does not answer."""


class GpuProcess(NamedTuple):
    pid: int
    used_bytes: int | None


class _Memory(ctypes.Structure):
    total: int
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _Process(ctypes.Structure):
    pid: int
    used: int
    _fields_ = (
        ("pid", c_uint),
        ("used", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )


class Nvml:
    """A loaded library; `library` is what ctypes gives, or a stand-in."""

    def __init__(self, library: Any) -> None:
        """Raises NvmlError where no driver answers."""
        self._library = library
        self._require("nvmlInit_v2")

    @property
    def driver(self) -> str | None:
        """Such as 580.95.05."""
        return self._text("nvmlSystemGetDriverVersion")

    def gpus(self) -> list["Gpu"]:
        """All of this machine, by their place on the bus, whatever CUDA_VISIBLE_DEVICES says."""
        count = self._number("nvmlDeviceGetCount_v2", c_uint) or 0
        handles = []
        for index in range(count):
            handle = c_void_p()
            self._require("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
            handles.append(handle)
        return [Gpu(self, handle) for handle in handles]

    def ask(self, name: str, *arguments: object) -> int | None:
        """The library's own code; None where this version of it has no such question."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return None
        code: int = function(*arguments)
        return code

    def _require(self, name: str, *arguments: object) -> None:
        code = self.ask(name, *arguments)
        if code != _SUCCESS:
            raise NvmlError(f"{name} answers {'nothing' if code is None else code}")

    def _number(self, name: str, kind: type[Any], *arguments: object) -> int | None:
        answer = kind()
        return int(answer.value) if self.ask(name, *arguments, byref(answer)) == _SUCCESS else None

    def _text(self, name: str, *arguments: object) -> str | None:
        answer: ctypes.Array[c_char] = create_string_buffer(_TEXT_BYTES)
        if self.ask(name, *arguments, answer, c_uint(_TEXT_BYTES)) != _SUCCESS:
            return None
        return answer.value.decode("utf-8", errors="replace") or None


class Gpu:
    """One device."""

    def __init__(self, nvml: Nvml, handle: c_void_p) -> None:
        self._nvml = nvml
        self._handle = handle

    @property
    def name(self) -> str | None:
        return self._nvml._text("nvmlDeviceGetName", self._handle)

    @property
    def uuid(self) -> str | None:
        return self._nvml._text("nvmlDeviceGetUUID", self._handle)

    @property
    def capability(self) -> Capability | None:
        major, minor = c_int(), c_int()
        code = self._nvml.ask("nvmlDeviceGetCudaComputeCapability", self._handle, byref(major), byref(minor))
        return Capability(major.value, minor.value) if code == _SUCCESS and major.value else None

    @property
    def memory_bytes(self) -> int | None:
        memory = _Memory()
        code = self._nvml.ask("nvmlDeviceGetMemoryInfo", self._handle, byref(memory))
        return int(memory.total) or None if code == _SUCCESS else None

    @property
    def ecc(self) -> bool | None:
        return self._mode("nvmlDeviceGetEccMode")

    @property
    def mig(self) -> bool | None:
        return self._mode("nvmlDeviceGetMigMode")

    @property
    def power_limit_w(self) -> float | None:
        return _thousandth(self._reading("nvmlDeviceGetEnforcedPowerLimit"))

    @property
    def power_w(self) -> float | None:
        return _thousandth(self._reading("nvmlDeviceGetPowerUsage"))

    @property
    def energy_j(self) -> float | None:
        """Since the driver was loaded; from Volta on."""
        return _thousandth(self._reading("nvmlDeviceGetTotalEnergyConsumption", kind=c_ulonglong))

    @property
    def temperature_c(self) -> int | None:
        return self._reading("nvmlDeviceGetTemperature", c_uint(_GPU_SENSOR))

    @property
    def sm_clock_mhz(self) -> int | None:
        return self._reading("nvmlDeviceGetClockInfo", c_uint(_SM_CLOCK))

    @property
    def memory_clock_mhz(self) -> int | None:
        return self._reading("nvmlDeviceGetClockInfo", c_uint(_MEMORY_CLOCK))

    @property
    def max_sm_clock_mhz(self) -> int | None:
        return self._reading("nvmlDeviceGetMaxClockInfo", c_uint(_SM_CLOCK))

    @property
    def slowed_by(self) -> tuple[str, ...] | None:
        """Why its clocks are lower than they could be; empty where nothing slows it."""
        bits = self._nvml._number("nvmlDeviceGetCurrentClocksThrottleReasons", c_ulonglong, self._handle)
        return None if bits is None else tuple(reason for bit, reason in _REASONS.items() if bits & bit)

    def processes(self) -> list[GpuProcess] | None:
        """Those that compute on it, by the ids that the driver knows: in a container they may be the host's."""
        count = c_uint(0)
        code = self._nvml.ask("nvmlDeviceGetComputeRunningProcesses_v3", self._handle, byref(count), None)
        if code == _SUCCESS:
            return []
        if code != _TOO_SMALL:
            return None
        count = c_uint(count.value + _MORE_PROCESSES)
        found = (_Process * count.value)()
        if self._nvml.ask("nvmlDeviceGetComputeRunningProcesses_v3", self._handle, byref(count), found) != _SUCCESS:
            return None
        return [*_processes(found[: count.value])]

    def _mode(self, name: str) -> bool | None:
        """Now; what it will be after a restart is of no interest."""
        current, pending = c_uint(), c_uint()
        code = self._nvml.ask(name, self._handle, byref(current), byref(pending))
        return bool(current.value) if code == _SUCCESS else None

    def _reading(self, name: str, *arguments: object, kind: type[Any] = c_uint) -> int | None:
        return self._nvml._number(name, kind, self._handle, *arguments) or None


@functools.cache
def open_nvml() -> Nvml | None:
    """None without a driver."""
    try:
        return Nvml(ctypes.CDLL(_LIBRARY))
    except (OSError, NvmlError):
        return None


def _processes(found: list[_Process]) -> Iterator[GpuProcess]:
    for process in found:
        yield GpuProcess(process.pid, None if process.used in (0, _NOT_AVAILABLE) else process.used)


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
