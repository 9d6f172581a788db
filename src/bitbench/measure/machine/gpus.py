"""The GPUs that engines started here would see, and whether they can compute on them. *Not yet run on a GPU.*"""

import functools
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitbench.measure.machine.nvml import Gpu, Nvml, NvmlError, open_nvml
from bitbench.records.host import Accelerator
from bitbench.study.capability import Capability
from bitbench.util.child_environment import engine_environment, tool_environment
from bitbench.util.child_python import NOWHERE, isolated

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
    return survey(nvml, engine_environment({}))


def survey(nvml: Nvml, variables: Mapping[str, str], initialize: Callable[[], str] | None = None) -> GpuSurvey:
    """Through this library; `initialize` says what cuInit answers."""
    try:
        gpus = nvml.gpus()
    except NvmlError as error:
        return GpuSurvey(problem=f"NVML does not answer ({error}).")
    if not gpus:
        return GpuSurvey()
    seen = chosen(gpus, variables)
    accelerators = tuple(describe(gpu, nvml.driver) for gpu in seen)
    return GpuSurvey(accelerators, _problem(accelerators, nvml.driver, initialize or cuda_answer))


def visible_gpus() -> list[Gpu]:
    """Those that engines see, to be watched."""
    nvml = open_nvml()
    if nvml is None:
        return []
    try:
        return chosen(nvml.gpus(), engine_environment({}))
    except NvmlError:
        return []


def chosen(gpus: Sequence[Gpu], variables: Mapping[str, str]) -> list[Gpu]:
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


def describe(gpu: Gpu, driver: str | None) -> Accelerator:
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


def cuda_answer() -> str:
    """What the driver's own library answers when a program begins to use it: `0`, or the number of an error."""
    command = isolated(sys.executable, "-S", "-c", _INITIALIZE)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_INITIALIZE_LIMIT_S,
            check=False,
            cwd=NOWHERE,
            env=tool_environment(),
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
