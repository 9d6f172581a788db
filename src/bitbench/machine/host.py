"""Facts about this machine that affect measurements, and other work that disturbs them."""

import os
import platform
import re
import time
from pathlib import Path

import psutil

from bitbench.engines.server import iter_group_memory
from bitbench.machine.gpus import survey_gpus
from bitbench.machine.watches import iter_process_tree
from bitbench.records.lock import HostFacts
from bitbench.records.trial import Failure, Outcome
from bitbench.study.hardware import Level, find_hardware_level
from bitbench.util.child_processes import collect_engine_variables

# Flags that decide which matrix kernels an engine can choose. A hundred others are left out.
TELLING_FLAGS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni",
    "avx512_vbmi", "avx512vbmi", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip


def get_available_memory() -> int:
    """Return the bytes that new processes may take without swapping.

    The limits of a container or a job count, too.
    """
    available = [int(psutil.virtual_memory().available)]
    for limit, used in iter_group_memory():
        available.append(limit - used)
    return min(available)


def collect_host_facts() -> HostFacts:
    """Return the facts about this machine that a lock records."""
    cpu = _read_cpu_info()
    flags = _parse_flags(cpu)
    accelerators = survey_gpus().accelerators
    device_order: str | None = None
    if accelerators:
        device_order = collect_engine_variables({}).get("CUDA_DEVICE_ORDER")
    numa_nodes = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
    return HostFacts(
        cpu_model=cpu.get("model name") or platform.processor() or None,
        cpu_flags=tuple(flag for flag in TELLING_FLAGS if flag in flags),
        cores=psutil.cpu_count(logical=False),
        threads=count_usable_threads(),
        numa_nodes=len(numa_nodes) or None,
        governor=_read_file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_bytes=psutil.virtual_memory().total,
        os=_get_os_name(),
        kernel=platform.release(),
        python=platform.python_version(),
        virtualization="hypervisor" if "hypervisor" in flags else None,
        accelerators=accelerators,
        cuda_device_order=device_order,
    )


def find_processor_level() -> Level | None:
    """Return the level of the processor, or None if its flags are unknown."""
    return find_hardware_level(_parse_flags(_read_cpu_info()))


def count_usable_threads() -> int:
    """Return how many hardware threads this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count() or 1


def _read_cpu_info() -> dict[str, str]:
    """Return the entries of the first processor in /proc/cpuinfo."""
    text = _read_file("/proc/cpuinfo") or ""
    entries: dict[str, str] = {}
    for line in text.partition("\n\n")[0].splitlines():
        key, colon, value = line.partition(":")
        if colon:
            entries[key.strip()] = value.strip()
    return entries


def _parse_flags(cpu: dict[str, str]) -> set[str]:
    return set((cpu.get("flags") or cpu.get("Features") or "").split())


def _get_os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.platform()


def _read_file(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


LOOK_S = 1.0
# The kernel, a desktop and bitbench take a few percent. A tenth of a core is other work.
BUSY_CORES = 0.1
# A share of all cores. With this much other work, an engine whose threads wait for each other is
# several times slower. Less than that is noise, which intervals show.
DISTURBING_SHARE = 1 / 3

_BUSY = (1, 2, 3, 6, 7)  # columns of /proc/stat: user, nice, system, irq and softirq


class OtherWork:
    """A watch for other work on the processors, as a context manager.

    After it ends, `cores` is the number of cores that other processes kept busy. Processes that
    this one or `engine_pid` started do not count.
    """

    def __init__(self, engine_pid: int | None = None) -> None:
        self._engine_pid = engine_pid
        self.cores = 0.0

    def __enter__(self) -> "OtherWork":
        self._began = time.monotonic()
        self._before_s = self._measure_others_s()
        return self

    def __exit__(self, *_: object) -> None:
        used_s = self._measure_others_s() - self._before_s
        self.cores = max(0.0, used_s) / (time.monotonic() - self._began)

    @property
    def failure(self) -> Failure | None:
        """Why measurements on the processors do not count, or None if they do."""
        if not is_disturbing(self.cores):
            return None
        busy = f"other work kept {self.cores:.1f} of {count_usable_threads()} cores busy meanwhile"
        cause = f"{busy}; end it, or repeat once it has ended"
        return Failure(outcome=Outcome.DISTURBED, cause=cause)

    def _measure_others_s(self) -> float:
        """Return the processor time of other processes since boot, in seconds.

        Only processors that this process may use count.
        """
        busy_s = _count_busy_ticks() / os.sysconf("SC_CLK_TCK")
        ours: set[psutil.Process] = set()
        for pid in (os.getpid(), self._engine_pid):
            ours.update(iter_process_tree(pid))
        return busy_s - sum(_get_used_s(process, with_ended=True) for process in ours)


def _count_busy_ticks() -> int:
    """Return the busy ticks of the processors that this process may use.

    Steal is left out: nothing here can end the work of other virtual machines. Guest is a part of
    user already.
    """
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    all_ticks = 0
    usable_ticks: int | None = None
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        columns = line.split()
        if re.fullmatch(r"cpu\d+", columns[0]):
            ticks = sum(int(columns[index]) for index in _BUSY)
            all_ticks += ticks
            if columns[0] in usable:
                usable_ticks = (usable_ticks or 0) + ticks
    # A container may number the processors differently. Then all of them count.
    return all_ticks if usable_ticks is None else usable_ticks


def is_disturbing(busy_cores: float) -> bool:
    """Return True if this much other work distorts measurements on the processors."""
    return busy_cores >= DISTURBING_SHARE * count_usable_threads()


def measure_busy_cores(duration_s: float = LOOK_S) -> float:
    """Return how many cores other processes keep busy. It takes `duration_s`."""
    with OtherWork() as others:
        time.sleep(duration_s)
    return others.cores


def _get_used_s(process: psutil.Process, *, with_ended: bool = False) -> float:
    """Return the processor time of a process, and of its ended children if asked to."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    used_s = times.user + times.system
    if with_ended:
        used_s += times.children_user + times.children_system
    return float(used_s)
