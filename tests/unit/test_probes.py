"""What this machine says about itself, and the limit on memory."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from bitbench.machine.gpus import Gpu, list_installed_gpus, sum_gpu_memory
from bitbench.machine.host import collect_host_facts
from bitbench.machine.watches import MemoryWatch, read_memory
from bitbench.records.trial import Outcome
from tests.busy_machine import wait_for
from tests.support.fake_nvml import FakeGpu, FakeNvml, nvml_put_back  # noqa: F401

pytestmark = pytest.mark.alone

MIB = 2**20
HOLD = "import time; held = bytearray({mib} * 2**20); print('ready', flush=True); time.sleep(60)"


def holding(mib: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(mib=mib)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_host_facts_are_those_of_this_machine() -> None:
    facts = collect_host_facts()
    assert facts.threads == len(os.sched_getaffinity(0))
    assert facts.memory_bytes is not None
    assert facts.memory_bytes > 100 * MIB
    assert facts.python == ".".join(map(str, sys.version_info[:3]))


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
    process = subprocess.Popen(
        [sys.executable, "-c", SHARE], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert wait_for(lambda: len(psutil.Process(process.pid).children(recursive=True)) == 3)
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


def gpus(*held: dict[int, int | None]) -> tuple[FakeNvml, list[Gpu]]:
    library = FakeNvml([FakeGpu(processes=dict(one)) for one in held])
    return library, list_installed_gpus()


def test_device_memory_is_that_of_the_tree_on_all_devices(family: int) -> None:
    child = psutil.Process(family).children()[0].pid
    library, devices = gpus({family: 5 * MIB, 1: 999 * MIB}, {child: 2 * MIB})
    second = library.gpus[1].processes
    with MemoryWatch(family, None, stop=lambda: None, gpus=devices) as watch:
        assert watch.read().device_bytes == 7 * MIB
        second[child] = 100 * MIB
        # Between two readings: only the watching thread sees it.
        assert wait_for(lambda: watch._device_peak_bytes == 105 * MIB)
        second[child] = 3 * MIB
        memory = watch.read()
        assert (memory.device_bytes, memory.device_peak_bytes) == (8 * MIB, 105 * MIB)
        for untold in (
            None,
            0,
        ):  # the driver does not tell; zero is no size of a process that computes
            second[family] = untold
            assert watch.read().device_bytes is None
        library.is_lost = True
        assert watch.read().device_bytes is None


def test_without_a_device_there_is_no_device_memory() -> None:
    assert MemoryWatch(os.getpid(), None, stop=lambda: None).read().device_bytes is None


def test_processes_that_nvml_does_not_show_have_unknown_device_memory() -> None:
    """As in a container, where it gives the process ids of the host."""
    assert sum_gpu_memory({os.getpid()}, gpus({12345678: MIB})[1]) is None
    assert sum_gpu_memory({os.getpid()}, gpus({})[1]) is None


def test_a_process_that_is_gone_has_unknown_memory() -> None:
    process = holding(1)
    process.kill()
    process.wait()
    assert read_memory(process.pid).resident_bytes is None


def test_the_limit_stops_what_exceeds_it_and_says_so() -> None:
    process = holding(200)
    with MemoryWatch(process.pid, 100 * MIB, process.kill) as watch:
        assert process.wait(timeout=60) != 0
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
