"""The GPUs of this machine as NVIDIA's management library (NVML) tells them: which engines see, whether they can
compute there, and what processes hold. *Not yet run on a GPU.*"""

import ctypes
import functools
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from ctypes import byref, c_char, c_int, c_uint, c_ulonglong, c_void_p, create_string_buffer
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bitbench.records.lock import Accelerator
from bitbench.study.hardware import Capability
from bitbench.util.child_processes import NOWHERE, engine_child_variables, isolated_command, tool_child_variables

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
    """A loaded library; `library` is what ctypes gives, or a stand-in.

    A question that the driver does not answer, and a reading of zero where a device in use has none (a clock, a power,
    a size), are unknown: None.
    """

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
        return [
            GpuProcess(process.pid, None if process.used in (0, _NOT_AVAILABLE) else process.used)
            for process in found[: count.value]
        ]

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


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


# What the CUDA 13 that all our locks bring needs; a kernel module that is older refuses its programs.
LEAST_DRIVER = 580
_LOADED = Path("/proc/driver/nvidia/version")
_INITIALIZE = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"  # in a process of its own: it stays there
_INITIALIZE_LIMIT_S = 60.0  # the first after a start of the machine may take long
_CUDA_SUCCESS = "0"


@dataclass(frozen=True)
class GpuSurvey:
    accelerators: tuple[Accelerator, ...] = ()  # those that engines see
    problem: str | None = None  # why engines cannot compute on them; a sentence

    @property
    def is_usable(self) -> bool:
        return bool(self.accelerators) and self.problem is None

    @property
    def capability(self) -> Capability | None:
        """The least, which decides what runs on all; None where one is unknown."""
        known = [accelerator.compute_capability for accelerator in self.accelerators]
        return (
            min((capability for capability in known if capability is not None), default=None)
            if None not in known
            else None
        )


@functools.cache
def survey_gpus() -> GpuSurvey:
    nvml = open_nvml()
    if nvml is None:
        loaded = "An NVIDIA driver is loaded, but its library NVML does not answer." if _LOADED.exists() else None
        return GpuSurvey(problem=loaded)
    return survey_nvml(nvml, engine_child_variables({}))


def survey_nvml(nvml: Nvml, variables: Mapping[str, str], initialize: Callable[[], str] | None = None) -> GpuSurvey:
    """Through this library; `initialize` says what cuInit answers."""
    try:
        gpus = nvml.gpus()
    except NvmlError as error:
        return GpuSurvey(problem=f"NVML does not answer ({error}).")
    if not gpus:
        return GpuSurvey()
    seen = cuda_visible_gpus(gpus, variables)
    accelerators = tuple(describe_gpu(gpu, nvml.driver) for gpu in seen)
    return GpuSurvey(accelerators, _problem(accelerators, nvml.driver, initialize or _cuda_answer))


@functools.cache
def visible_gpus() -> tuple[Gpu, ...]:
    """Those that engines see, to be watched; none without a driver."""
    nvml = open_nvml()
    try:
        return tuple(cuda_visible_gpus(nvml.gpus(), engine_child_variables({}))) if nvml is not None else ()
    except NvmlError:
        return ()


def cuda_visible_gpus(gpus: Sequence[Gpu], variables: Mapping[str, str]) -> list[Gpu]:
    """As CUDA reads CUDA_VISIBLE_DEVICES: numbers or beginnings of UUIDs, up to the first that names no device.

    Where a person has CUDA count by speed, its numbers are not NVML's: then all devices count, unless they are named.
    """
    wanted = variables.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return list(gpus)
    by_speed = variables.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST") != "PCI_BUS_ID"
    found: list[Gpu] = []
    for name in (part.strip() for part in wanted.split(",")):
        if name.isdigit():
            if by_speed and len({gpu.name for gpu in gpus}) > 1:
                return list(gpus)
            match = gpus[int(name)] if int(name) < len(gpus) else None
        else:
            match = next((gpu for gpu in gpus if name and (gpu.uuid or "").startswith(name)), None)
            if match is None and name.startswith("MIG-"):  # a part of a device, which NVML lists below it
                match = next((gpu for gpu in gpus if gpu.mig), None)
        if match is None:
            break
        if match not in found:
            found.append(match)
    return found


def describe_gpu(gpu: Gpu, driver: str | None) -> Accelerator:
    capability = gpu.capability
    return Accelerator(
        name=gpu.name or "unknown",
        memory_bytes=gpu.memory_bytes,
        driver=driver,
        capability=None if capability is None else str(capability),
        ecc=gpu.ecc,
        mig=gpu.mig,
        power_limit_w=gpu.power_limit_w,
        uuid=gpu.uuid,
    )


def _cuda_answer() -> str:
    """What the driver's own library answers when a program begins to use it: `0`, or the number of an error."""
    command = isolated_command(sys.executable, "-S", "-c", _INITIALIZE)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_INITIALIZE_LIMIT_S,
            check=False,
            cwd=NOWHERE,
            env=tool_child_variables(),
        )
    except (OSError, subprocess.SubprocessError):
        return "nothing"
    return done.stdout.strip() or "nothing"


def _problem(accelerators: Sequence[Accelerator], driver: str | None, initialize: Callable[[], str]) -> str | None:
    if not accelerators:
        return "CUDA_VISIBLE_DEVICES hides all GPUs from engines."
    major = (driver or "").partition(".")[0]
    if major.isdigit() and int(major) < LEAST_DRIVER:
        return f"The NVIDIA driver {driver} is too old for the CUDA 13 of engines; install {LEAST_DRIVER} or newer."
    if (answer := initialize()) != _CUDA_SUCCESS:
        return f"CUDA cannot be used: cuInit answers {answer}; see whether nvidia-smi works, and the kernel's log."
    return None


def processes_on(gpus: Iterable[Gpu]) -> list[GpuProcess] | None:
    """Those that compute on any of these; None where one device does not tell."""
    found: list[GpuProcess] = []
    for gpu in gpus:
        running = gpu.processes()
        if running is None:
            return None
        found += running
    return found


def nvml_process_memory(pids: Collection[int], gpus: Iterable[Gpu]) -> int | None:
    """Bytes that these processes hold, on all devices together; None where NVML does not show all of it, as in a
    container, where it may see the host's process ids instead of ours."""
    held = [process.used_bytes for process in processes_on(gpus) or () if process.pid in pids]
    known = [size for size in held if size is not None]
    return sum(known) if held and len(known) == len(held) else None
