"""The GPUs of this machine as NVIDIA's management library (NVML) tells them: which engines see, whether they can
compute there, and what processes hold. *Not yet run on a GPU.*"""

import functools
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from bitbench.records.lock import Accelerator
from bitbench.study.hardware import Capability
from bitbench.util.child_processes import (
    NOWHERE,
    engine_child_variables,
    isolated_command,
    tool_child_variables,
)

# Why clocks are lower than they could be; idling and a clock that somebody set are no disturbance.
_REASONS = {
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "applications clocks",
    pynvml.nvmlClocksEventReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "software thermal slowdown",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hardware thermal slowdown",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
    pynvml.nvmlClocksEventReasonDisplayClockSetting: "display clocks",
}


class GpuProcess(NamedTuple):
    pid: int
    used_bytes: int | None


class Gpu:
    """One device.

    A question that the driver does not answer, and a reading of zero where a device in use has none (a clock, a power,
    a size), are unknown: None.
    """

    def __init__(self, handle: object) -> None:
        self._handle = handle

    @property
    def name(self) -> str | None:
        return self._text(pynvml.nvmlDeviceGetName)

    @property
    def uuid(self) -> str | None:
        return self._text(pynvml.nvmlDeviceGetUUID)

    @property
    def capability(self) -> Capability | None:
        found = self._answer(pynvml.nvmlDeviceGetCudaComputeCapability)
        return None if found is None or not found[0] else Capability(*found)

    @property
    def memory_bytes(self) -> int | None:
        found = self._answer(pynvml.nvmlDeviceGetMemoryInfo)
        return None if found is None else int(found.total) or None

    @property
    def ecc(self) -> bool | None:
        return self._mode(pynvml.nvmlDeviceGetEccMode)

    @property
    def mig(self) -> bool | None:
        return self._mode(pynvml.nvmlDeviceGetMigMode)

    @property
    def power_limit_w(self) -> float | None:
        return _thousandth(self._reading(pynvml.nvmlDeviceGetEnforcedPowerLimit))

    @property
    def energy_j(self) -> float | None:
        """Since the driver was loaded; from Volta on."""
        return _thousandth(self._reading(pynvml.nvmlDeviceGetTotalEnergyConsumption))

    @property
    def temperature_c(self) -> int | None:
        return self._reading(pynvml.nvmlDeviceGetTemperatureV, pynvml.NVML_TEMPERATURE_GPU)

    @property
    def sm_clock_mhz(self) -> int | None:
        return self._reading(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM)

    @property
    def memory_clock_mhz(self) -> int | None:
        return self._reading(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM)

    @property
    def slowed_by(self) -> tuple[str, ...] | None:
        """Why its clocks are lower than they could be; empty where nothing slows it."""
        bits = self._answer(pynvml.nvmlDeviceGetCurrentClocksEventReasons)
        return (
            None
            if bits is None
            else tuple(reason for bit, reason in _REASONS.items() if bits & bit)
        )

    def processes(self) -> list[GpuProcess] | None:
        """Those that compute on it, by the ids that the driver knows: in a container they may be the host's."""
        found = self._answer(pynvml.nvmlDeviceGetComputeRunningProcesses_v3)
        return (
            None
            if found is None
            else [GpuProcess(process.pid, process.usedGpuMemory or None) for process in found]
        )

    def _mode(self, question: Callable[..., Any]) -> bool | None:
        """Now; what it will be after a restart is of no interest."""
        found = self._answer(question)
        return None if found is None else bool(found[0])

    def _text(self, question: Callable[..., Any]) -> str | None:
        found = self._answer(question)
        return str(found) if found else None

    def _reading(self, question: Callable[..., Any], *arguments: object) -> int | None:
        found = self._answer(question, *arguments)
        return int(found) if found else None

    def _answer(self, question: Callable[..., Any], *arguments: object) -> Any:
        """Return None where the driver does not tell, or is too old to be asked."""
        try:
            return question(self._handle, *arguments)
        except (pynvml.NVMLError, UnicodeDecodeError):
            return None


@functools.cache
def has_nvml() -> bool:
    """Return whether a driver's library was loaded."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


def installed_gpus() -> list[Gpu]:
    """Return all of this machine, by their place on the bus, whatever CUDA_VISIBLE_DEVICES says. Raises NVMLError."""
    return [
        Gpu(pynvml.nvmlDeviceGetHandleByIndex(index))
        for index in range(pynvml.nvmlDeviceGetCount())
    ]


def _driver_version() -> str | None:
    """Such as 580.95.05."""
    try:
        return str(pynvml.nvmlSystemGetDriverVersion()) or None
    except (pynvml.NVMLError, UnicodeDecodeError):
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
    if not has_nvml():
        loaded = (
            "An NVIDIA driver is loaded, but its library NVML does not answer."
            if _LOADED.exists()
            else None
        )
        return GpuSurvey(problem=loaded)
    return survey_nvml(engine_child_variables({}))


def survey_nvml(
    variables: Mapping[str, str], initialize: Callable[[], str] | None = None
) -> GpuSurvey:
    """Through NVML, which is loaded; `initialize` says what cuInit answers."""
    try:
        gpus = installed_gpus()
    except pynvml.NVMLError as error:
        return GpuSurvey(problem=f"NVML does not answer ({error}).")
    if not gpus:
        return GpuSurvey()
    seen = cuda_visible_gpus(gpus, variables)
    driver = _driver_version()
    accelerators = tuple(describe_gpu(gpu, driver) for gpu in seen)
    return GpuSurvey(accelerators, _problem(accelerators, driver, initialize or _cuda_answer))


@functools.cache
def visible_gpus() -> tuple[Gpu, ...]:
    """Those that engines see, to be watched; none without a driver."""
    try:
        return (
            tuple(cuda_visible_gpus(installed_gpus(), engine_child_variables({})))
            if has_nvml()
            else ()
        )
    except pynvml.NVMLError:
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
            if match is None and name.startswith(
                "MIG-"
            ):  # a part of a device, which NVML lists below it
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


def _problem(
    accelerators: Sequence[Accelerator], driver: str | None, initialize: Callable[[], str]
) -> str | None:
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
