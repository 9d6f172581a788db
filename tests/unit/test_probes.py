"""What this machine says about itself, and the limit on memory."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import psutil
import pytest

from bitbench.core.recorded.trial import Outcome
from bitbench.probes.device_memory import RunningProcess, open_devices
from bitbench.probes.host import collect_host_facts, parse_nvidia_smi
from bitbench.probes.memory import MemoryWatch, read_memory
from bitbench.probes.noise import measure_noise
from bitbench.probes.speed import SpeedProbe

pytestmark = pytest.mark.alone

MIB = 2**20
HOLD = "import time; held = bytearray({mib} * 2**20); print('ready', flush=True); time.sleep(60)"


def holding(mib: int) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD.format(mib=mib)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_host_facts_are_those_of_this_machine() -> None:
    facts = collect_host_facts()
    assert facts.threads == len(os.sched_getaffinity(0))
    assert facts.memory_bytes is not None
    assert facts.memory_bytes > 100 * MIB
    assert facts.python == ".".join(map(str, sys.version_info[:3]))


def test_accelerators_are_read_as_nvidia_smi_prints_them() -> None:
    """Recorded in its documented form; not yet run on a GPU."""
    devices = parse_nvidia_smi("NVIDIA A100-SXM4-80GB, 81920, 550.54.15\nNVIDIA H100, [N/A], 550.54.15\n")
    assert [(device.name, device.memory_bytes, device.driver) for device in devices] == [
        ("NVIDIA A100-SXM4-80GB", 80 * 2**30, "550.54.15"),
        ("NVIDIA H100", None, "550.54.15"),
    ]


def test_noise_is_a_positive_share() -> None:
    noise = measure_noise(repetitions=10)
    assert noise.repetitions == 10
    assert 0 < noise.compute_spread < 20
    assert noise.compute_worst >= 0


def test_memory_counts_what_a_process_holds_and_held() -> None:
    process = holding(200)
    try:
        memory = read_memory(process.pid)
    finally:
        process.kill()
        process.wait()
    assert memory.resident_bytes is not None
    assert memory.peak_bytes is not None
    assert 200 * MIB < memory.resident_bytes < 300 * MIB
    assert memory.peak_bytes >= memory.resident_bytes


SHARE = """
import os, time
held = b"x" * (200 * 2**20)
children = [os.fork() for _ in range(2)]
if 0 not in children:
    print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def family() -> Iterator[int]:
    """Three processes that share 200 MiB (and a fourth, a child's child)."""
    process = subprocess.Popen([sys.executable, "-c", SHARE], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.2)
    yield process.pid
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_what_the_processes_of_a_tree_share_counts_once(family: int) -> None:
    memory = read_memory(family)
    assert memory.resident_bytes is not None
    assert memory.peak_bytes is not None
    assert 200 * MIB < memory.resident_bytes < 300 * MIB
    assert memory.peak_bytes > 600 * MIB  # each one's own high-water mark: an upper bound


def test_shared_pages_do_not_reach_the_limit(family: int) -> None:
    with MemoryWatch(family, 400 * MIB, stop=lambda: None) as watch:
        time.sleep(0.5)
    assert watch.failure is None


class FakeNvml:
    """Two devices; what their processes hold is set by the test."""

    NVMLError = type("NVMLError", (Exception,), {})

    def __init__(self, devices: list[dict[int, int | None]]) -> None:
        self.devices = devices
        self.is_broken = False

    def nvmlInit(self) -> None:  # noqa: N802
        if self.is_broken:
            raise self.NVMLError("NVML Shared Library Not Found")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:  # noqa: N802
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[RunningProcess]:  # noqa: N802
        assert isinstance(handle, int)
        if self.is_broken:
            raise self.NVMLError("GPU is lost")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.devices[handle].items()]


def test_device_memory_is_that_of_the_tree_on_all_devices(family: int) -> None:
    child = psutil.Process(family).children()[0].pid
    nvml = FakeNvml([{family: 5 * MIB, 1: 999 * MIB}, {child: 2 * MIB}])
    with MemoryWatch(family, None, stop=lambda: None, devices=open_devices(nvml)) as watch:
        assert watch.read().device_bytes == 7 * MIB
        nvml.devices[1][child] = 100 * MIB
        time.sleep(0.5)  # between two readings: only the watching thread sees it
        nvml.devices[1][child] = 3 * MIB
        memory = watch.read()
        assert (memory.device_bytes, memory.device_peak_bytes) == (8 * MIB, 105 * MIB)
        nvml.devices[1][family] = None  # the driver does not tell
        assert watch.read().device_bytes is None
        nvml.is_broken = True
        assert watch.read().device_bytes is None


@pytest.mark.parametrize("is_broken", [True, False])
def test_without_a_device_or_a_driver_there_is_no_device_memory(is_broken: bool) -> None:
    nvml = FakeNvml([])
    nvml.is_broken = is_broken
    assert open_devices(nvml) is None
    assert MemoryWatch(os.getpid(), None, stop=lambda: None).read().device_bytes is None


def test_processes_that_nvml_does_not_show_have_unknown_device_memory() -> None:
    """As in a container, where it gives the process ids of the host."""
    devices = open_devices(FakeNvml([{12345678: MIB}]))
    assert devices is not None
    assert devices.used_by({os.getpid()}) is None


def test_a_process_that_is_gone_has_unknown_memory() -> None:
    process = holding(1)
    process.kill()
    process.wait()
    assert read_memory(process.pid).resident_bytes is None


def test_the_limit_stops_what_exceeds_it_and_says_so() -> None:
    process = holding(200)
    with MemoryWatch(process.pid, 100 * MIB, process.kill) as watch:
        assert process.wait(timeout=10) != 0
    assert watch.failure is not None
    assert watch.failure.outcome is Outcome.OOM
    assert "the study allows 100 MiB" in watch.failure.cause


def test_within_the_limit_nothing_happens() -> None:
    process = holding(10)
    with MemoryWatch(process.pid, 500 * MIB, process.kill) as watch:
        time.sleep(0.5)
        assert process.poll() is None
    process.kill()
    process.wait()
    assert watch.failure is None


def test_the_speed_probe_takes_its_time_and_says_how_fast_the_machine_is() -> None:
    probe = SpeedProbe()
    readings = [probe.read(0.02) for _ in range(3)]
    assert all(0 < reading < 0.5 for reading in readings)
