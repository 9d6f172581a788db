"""The GPUs of this machine, read through NVIDIA's management library (NVML).

It answers which GPUs engines see, if they can compute on them, and what processes hold. *Not yet
run on a GPU.*
"""

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
    collect_engine_variables,
    collect_tool_variables,
    make_isolated_command,
)

# Reasons for low clocks. Idling and a clock that a user set are left out.
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
    """A GPU.

    A property is None if the driver does not answer. A clock, a power or a size of zero is None,
    too: a device in use has none of these.
    """

    def __init__(self, handle: object) -> None:
        self._handle = handle

    @property
    def name(self) -> str | None:
        return self._get_text(pynvml.nvmlDeviceGetName)

    @property
    def uuid(self) -> str | None:
        return self._get_text(pynvml.nvmlDeviceGetUUID)

    @property
    def capability(self) -> Capability | None:
        answer = self._answer(pynvml.nvmlDeviceGetCudaComputeCapability)
        if answer is None or not answer[0]:
            return None
        return Capability(*answer)

    @property
    def memory_bytes(self) -> int | None:
        answer = self._answer(pynvml.nvmlDeviceGetMemoryInfo)
        if answer is None:
            return None
        return int(answer.total) or None

    @property
    def ecc(self) -> bool | None:
        return self._get_mode(pynvml.nvmlDeviceGetEccMode)

    @property
    def mig(self) -> bool | None:
        return self._get_mode(pynvml.nvmlDeviceGetMigMode)

    @property
    def power_limit_w(self) -> float | None:
        return _divide_by_thousand(self._reading(pynvml.nvmlDeviceGetEnforcedPowerLimit))

    @property
    def energy_j(self) -> float | None:
        """The energy since the driver was loaded. GPUs before Volta do not have it."""
        return _divide_by_thousand(self._reading(pynvml.nvmlDeviceGetTotalEnergyConsumption))

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
        """The reasons for low clocks. It is empty if nothing slows the GPU."""
        bits = self._answer(pynvml.nvmlDeviceGetCurrentClocksEventReasons)
        if bits is None:
            return None
        return tuple(reason for bit, reason in _REASONS.items() if bits & bit)

    def processes(self) -> list[GpuProcess] | None:
        """Return the processes that compute on it, by the driver's ids, or None if unknown.

        In a container these may be the host's process ids.
        """
        answer = self._answer(pynvml.nvmlDeviceGetComputeRunningProcesses_v3)
        if answer is None:
            return None
        return [GpuProcess(process.pid, process.usedGpuMemory or None) for process in answer]

    def _get_mode(self, question: Callable[..., Any]) -> bool | None:
        """Return the current mode. NVML also has the mode after a restart, which is ignored."""
        answer = self._answer(question)
        if answer is None:
            return None
        return bool(answer[0])

    def _get_text(self, question: Callable[..., Any]) -> str | None:
        answer = self._answer(question)
        return str(answer) if answer else None

    def _reading(self, question: Callable[..., Any], *arguments: object) -> int | None:
        answer = self._answer(question, *arguments)
        return int(answer) if answer else None

    def _answer(self, question: Callable[..., Any], *arguments: object) -> Any:
        """Return the driver's answer, or None if it has none or is too old for the question."""
        try:
            return question(self._handle, *arguments)
        except (pynvml.NVMLError, UnicodeDecodeError):
            return None


@functools.cache
def has_nvml() -> bool:
    """Return True if the library of a driver could be loaded."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


def list_installed_gpus() -> list[Gpu]:
    """Return all GPUs of this machine, in bus order, whatever CUDA_VISIBLE_DEVICES says.

    Raise NVMLError if the driver does not answer.
    """
    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    return [Gpu(handle) for handle in handles]


def _read_driver_version() -> str | None:
    """Return the version of the driver, such as 580.95.05, or None if unknown."""
    try:
        return str(pynvml.nvmlSystemGetDriverVersion()) or None
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


def _divide_by_thousand(value: int | None) -> float | None:
    if value is None:
        return None
    return value / 1000


# The CUDA 13 of all our locks needs this driver. An older kernel module rejects its programs.
LEAST_DRIVER = 580
_LOADED = Path("/proc/driver/nvidia/version")
# It runs in a separate process: CUDA stays initialized until its process ends.
_INITIALIZE = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
_INITIALIZE_LIMIT_S = 60.0  # the first call after a boot may take long
_CUDA_SUCCESS = "0"


@dataclass(frozen=True)
class GpuSurvey:
    """The GPUs that engines see, and why engines cannot use them."""

    accelerators: tuple[Accelerator, ...] = ()  # the GPUs that engines see
    problem: str | None = None  # a sentence that says why engines cannot compute on them

    @property
    def is_usable(self) -> bool:
        return bool(self.accelerators) and self.problem is None

    @property
    def capability(self) -> Capability | None:
        """The lowest compute capability, which all GPUs have. It is None if one is unknown."""
        capabilities = [accelerator.compute_capability for accelerator in self.accelerators]
        readable = [capability for capability in capabilities if capability is not None]
        if not readable or len(readable) < len(capabilities):
            return None
        return min(readable)


@functools.cache
def survey_gpus() -> GpuSurvey:
    """Return the GPUs that engines see on this machine."""
    if has_nvml():
        return survey_nvml(collect_engine_variables({}))
    if _LOADED.exists():
        return GpuSurvey(
            problem="An NVIDIA driver is loaded, but its library NVML does not answer."
        )
    return GpuSurvey()


def survey_nvml(
    variables: Mapping[str, str], initialize: Callable[[], str] | None = None
) -> GpuSurvey:
    """Return the GPUs that engines see, from NVML. `initialize` returns the answer of cuInit."""
    try:
        gpus = list_installed_gpus()
    except pynvml.NVMLError as error:
        return GpuSurvey(problem=f"NVML does not answer ({error}).")
    if not gpus:
        return GpuSurvey()
    driver = _read_driver_version()
    visible = list_cuda_visible_gpus(gpus, variables)
    accelerators = tuple(describe_gpu(gpu, driver) for gpu in visible)
    return GpuSurvey(
        accelerators, _find_problem(accelerators, driver, initialize or _initialize_cuda)
    )


@functools.cache
def visible_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that engines see, or none without a driver."""
    if not has_nvml():
        return ()
    try:
        return tuple(list_cuda_visible_gpus(list_installed_gpus(), collect_engine_variables({})))
    except pynvml.NVMLError:
        return ()


def list_cuda_visible_gpus(gpus: Sequence[Gpu], variables: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, as CUDA reads it.

    The variable has numbers or beginnings of UUIDs. CUDA stops at the first that names no device.
    If CUDA numbers different models by speed, its numbers are not NVML's. Then a number makes all
    devices count.
    """
    selection = variables.get("CUDA_VISIBLE_DEVICES")
    if selection is None:
        return list(gpus)
    by_speed = variables.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST") != "PCI_BUS_ID"
    visible: list[Gpu] = []
    for part in selection.split(","):
        name = part.strip()
        if name.isdigit() and by_speed and len({gpu.name for gpu in gpus}) > 1:
            return list(gpus)
        gpu = _find_named_gpu(gpus, name)
        if gpu is None:
            break
        if gpu not in visible:
            visible.append(gpu)
    return visible


def _find_named_gpu(gpus: Sequence[Gpu], name: str) -> Gpu | None:
    """Return the GPU with this number or beginning of a UUID, or None."""
    if name.isdigit():
        return gpus[int(name)] if int(name) < len(gpus) else None
    for gpu in gpus:
        if name and (gpu.uuid or "").startswith(name):
            return gpu
    if name.startswith("MIG-"):  # a part of a device, which NVML lists below that device
        return next((gpu for gpu in gpus if gpu.mig), None)
    return None


def describe_gpu(gpu: Gpu, driver: str | None) -> Accelerator:
    """Return the facts about a GPU that go into the lock."""
    capability = gpu.capability
    capability_text = None if capability is None else str(capability)
    return Accelerator(
        name=gpu.name or "unknown",
        memory_bytes=gpu.memory_bytes,
        driver=driver,
        capability=capability_text,
        ecc=gpu.ecc,
        mig=gpu.mig,
        power_limit_w=gpu.power_limit_w,
        uuid=gpu.uuid,
    )


def _initialize_cuda() -> str:
    """Return what the driver answers when a program initializes CUDA: `0` or an error number."""
    command = make_isolated_command(sys.executable, "-S", "-c", _INITIALIZE)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_INITIALIZE_LIMIT_S,
            check=False,
            cwd=NOWHERE,
            env=collect_tool_variables(),
        )
    except (OSError, subprocess.SubprocessError):
        return "nothing"
    return done.stdout.strip() or "nothing"


def _find_problem(
    accelerators: Sequence[Accelerator], driver: str | None, initialize: Callable[[], str]
) -> str | None:
    """Return a sentence that says why engines cannot compute on these GPUs, or None."""
    if not accelerators:
        return "CUDA_VISIBLE_DEVICES hides all GPUs from engines."
    major = (driver or "").partition(".")[0]
    if major.isdigit() and int(major) < LEAST_DRIVER:
        return (
            f"The NVIDIA driver {driver} is too old for the CUDA 13 of engines; "
            f"install {LEAST_DRIVER} or newer."
        )
    answer = initialize()
    if answer != _CUDA_SUCCESS:
        return (
            f"CUDA cannot be used: cuInit answers {answer}; "
            "see whether nvidia-smi works, and the kernel's log."
        )
    return None


def list_gpu_processes(gpus: Iterable[Gpu]) -> list[GpuProcess] | None:
    """Return the processes that compute on these GPUs, or None if one GPU does not answer."""
    processes: list[GpuProcess] = []
    for gpu in gpus:
        running = gpu.processes()
        if running is None:
            return None
        processes += running
    return processes


def sum_gpu_memory(pids: Collection[int], gpus: Iterable[Gpu]) -> int | None:
    """Return the bytes that these processes hold on all GPUs together.

    Return None if NVML does not show all of it. In a container, it may show the host's process ids
    instead of ours.
    """
    sizes: list[int] = []
    for process in list_gpu_processes(gpus) or ():
        if process.pid not in pids:
            continue
        if process.used_bytes is None:
            return None
        sizes.append(process.used_bytes)
    if not sizes:
        return None
    return sum(sizes)
