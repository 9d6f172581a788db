"""Facts about this machine that a figure depends on."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import psutil

from bitbench.core.recorded.host import Accelerator, HostFacts
from bitbench.core.recorded.processor import Level, level_of
from bitbench.ground.child_environment import tool_environment
from bitbench.ground.errors import UsageError

# Flags that decide which matrix kernels an engine can choose from; the other hundred are left out.
TELLING_FLAGS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_vbmi", "avx512vbmi",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
LEVEL_VARIABLE = "BITBENCH_LEVEL"  # plans as if the processor were of this level; records keep its real flags


def collect_host_facts() -> HostFacts:
    cpu = _cpu_info()
    flags = _flags(cpu)
    return HostFacts(
        cpu_model=cpu.get("model name") or platform.processor() or None,
        cpu_flags=tuple(flag for flag in TELLING_FLAGS if flag in flags),
        cores=psutil.cpu_count(logical=False),
        threads=_usable_threads(),
        numa_nodes=_numa_nodes(),
        governor=_read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_bytes=psutil.virtual_memory().total,
        os=_os_name(),
        kernel=platform.release(),
        python=platform.python_version(),
        virtualization="hypervisor" if "hypervisor" in flags else None,
        accelerators=tuple(_accelerators()),
    )


def processor_level() -> Level | None:
    """What engines and types are chosen by; None where the flags say nothing."""
    forced = os.environ.get(LEVEL_VARIABLE)
    if not forced:
        return level_of(_flags(_cpu_info()))
    if forced not in tuple(Level):
        raise UsageError(f"unknown {LEVEL_VARIABLE} {forced}; use {', '.join(Level)}")
    return Level(forced)


def has_cuda() -> bool:
    """Whether an NVIDIA driver is loaded."""
    return Path("/proc/driver/nvidia/version").exists()


def _usable_threads() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count()


def _cpu_info() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo."""
    first = (_read("/proc/cpuinfo") or "").split("\n\n", maxsplit=1)[0]
    pairs = (line.split(":", maxsplit=1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _flags(cpu: dict[str, str]) -> set[str]:
    return set((cpu.get("flags") or cpu.get("Features") or "").split())


def _numa_nodes() -> int | None:
    nodes = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
    return len(nodes) or None


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.platform()


def _accelerators() -> list[Accelerator]:
    """NVIDIA devices as nvidia-smi lists them. Not yet run on a GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            query, capture_output=True, text=True, timeout=20, check=True, env=tool_environment()
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_nvidia_smi(answer)


def parse_nvidia_smi(answer: str) -> list[Accelerator]:
    rows = (line.split(", ") for line in answer.strip().splitlines())
    return [
        Accelerator(name=row[0], memory_bytes=int(row[1]) * 2**20 if row[1].isdigit() else None, driver=row[2])
        for row in rows
        if len(row) == 3
    ]


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
