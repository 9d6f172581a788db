"""Facts about this machine that a figure depends on, and whether somebody else is using it: then figures are not the
engine's alone."""

import os
import platform
import re
import time
from pathlib import Path

import psutil

from bitbench.engines.server import memory_of_groups
from bitbench.machine.gpus import survey_gpus
from bitbench.machine.watches import watched_process_tree
from bitbench.records.lock import HostFacts
from bitbench.records.trial import Failure, Outcome
from bitbench.study.hardware import Level, hardware_level
from bitbench.util.child_processes import engine_child_variables

# Flags that decide which matrix kernels an engine can choose from; the other hundred are left out.
TELLING_FLAGS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_vbmi", "avx512vbmi",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip


def available_memory() -> int:
    """Bytes that new processes may take without swapping, and within what a container or a job may have."""
    return min(
        [
            int(psutil.virtual_memory().available),
            *(limit - used for limit, used in memory_of_groups()),
        ]
    )


def collect_host_facts() -> HostFacts:
    cpu = _cpu_info()
    flags = _flags(cpu)
    accelerators = survey_gpus().accelerators
    return HostFacts(
        cpu_model=cpu.get("model name") or platform.processor() or None,
        cpu_flags=tuple(flag for flag in TELLING_FLAGS if flag in flags),
        cores=psutil.cpu_count(logical=False),
        threads=usable_threads(),
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        governor=_read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_bytes=psutil.virtual_memory().total,
        os=_os_name(),
        kernel=platform.release(),
        python=platform.python_version(),
        virtualization="hypervisor" if "hypervisor" in flags else None,
        accelerators=accelerators,
        cuda_device_order=engine_child_variables({}).get("CUDA_DEVICE_ORDER")
        if accelerators
        else None,
    )


def host_processor_level() -> Level | None:
    """Return None where the flags say nothing."""
    return hardware_level(_flags(_cpu_info()))


def usable_threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count() or 1


def _cpu_info() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo."""
    first = (_read("/proc/cpuinfo") or "").split("\n\n", maxsplit=1)[0]
    pairs = (line.split(":", maxsplit=1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _flags(cpu: dict[str, str]) -> set[str]:
    return set((cpu.get("flags") or cpu.get("Features") or "").split())


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.platform()


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


LOOK_S = 1.0
# The kernel, a desktop and ourselves take a few percent; a tenth of a core is somebody's work.
BUSY_CORES = 0.1
# Of all cores: an engine whose threads wait for each other is several times slower then. Less than that is noise, which
# intervals show.
DISTURBING_SHARE = 1 / 3


_BUSY = (1, 2, 3, 6, 7)  # columns of a line of /proc/stat


class OtherWork:
    """Around something: afterwards `cores` is how many of them were busy with what is neither this process nor one that
    it or `engine_pid` started."""

    def __init__(self, engine_pid: int | None = None) -> None:
        self._engine_pid = engine_pid
        self.cores = 0.0

    def __enter__(self) -> "OtherWork":
        self._began, self._before_s = time.monotonic(), self._others_s()
        return self

    def __exit__(self, *_: object) -> None:
        self.cores = max(0.0, self._others_s() - self._before_s) / (time.monotonic() - self._began)

    @property
    def failure(self) -> Failure | None:
        """Why what was measured meanwhile on the processors does not count."""
        if not disturbs(self.cores):
            return None
        busy = f"other work kept {self.cores:.1f} of {usable_threads()} cores busy meanwhile"
        cause = f"{busy}; end it, or repeat once it has ended"
        return Failure(outcome=Outcome.DISTURBED, cause=cause)

    def _others_s(self) -> float:
        """Of the time of the processors that we may use, since the start of this machine."""
        lines = [
            line.split() for line in Path("/proc/stat").read_text(encoding="ascii").splitlines()
        ]
        each = [line for line in lines if re.fullmatch(r"cpu\d+", line[0])]
        usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        # A container may number them otherwise. Of the columns user, nice, system, irq and softirq (guest is a part of
        # user): what a hypervisor gave to other machines (steal) nobody here could end, and it is seldom so much.
        ticks = sum(
            int(line[place])
            for line in [own for own in each if own[0] in usable] or each
            for place in _BUSY
        )
        busy_s = ticks / os.sysconf("SC_CLK_TCK")
        own = {
            process
            for pid in (os.getpid(), self._engine_pid)
            for process in watched_process_tree(pid)
        }
        return busy_s - sum(_used_s(process, with_ended=True) for process in own)


def disturbs(busy_cores: float) -> bool:
    """Whether so much other work spoils what is measured on the processors meanwhile."""
    return busy_cores >= DISTURBING_SHARE * usable_threads()


def cores_in_use(look_s: float = LOOK_S) -> float:
    """How many cores were busy with what is not ours while we looked."""
    with OtherWork() as others:
        time.sleep(look_s)
    return others.cores


def _used_s(process: psutil.Process, *, with_ended: bool = False) -> float:
    """By it, and by its children that have ended."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    ended_s = times.children_user + times.children_system if with_ended else 0.0
    return float(times.user + times.system + ended_s)
