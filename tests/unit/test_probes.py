"""What this machine says about itself, and the limit on memory."""

import os
import subprocess
import sys
import time

from bitbench.core.trial import Outcome
from bitbench.probes.busy import cores_in_use
from bitbench.probes.host import collect_host_facts, parse_nvidia_smi
from bitbench.probes.memory import MemoryWatch, read_memory
from bitbench.probes.noise import measure_noise

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


def test_a_busy_core_is_noticed() -> None:
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.2)
        assert cores_in_use(look_s=1.0) > 0.5
    finally:
        burner.kill()
        burner.wait()


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
