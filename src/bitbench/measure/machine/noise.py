"""How even this machine is: the noise of fixed work, measured once an hour.

It is the floor under every difference that a study could find, and is kept in bitbench's home for studies that begin
soon after.
"""

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from bitbench.records.lock import HostFacts, HostNoise
from bitbench.study.base import Record
from bitbench.util.errors import StoreError
from bitbench.util.files import SafeFolder, open_to_read

FILE = "noise.json"  # in bitbench's home
LARGEST_BYTES = 64 * 2**10  # of that file
HOLDS = timedelta(hours=1)  # neighbours and clocks of a machine change from one hour to the next
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
REPETITIONS = 150
COMPUTE_BYTES = 4 * 2**20  # hashed in cache-sized pieces: bound by the core, about 5 ms
MEMORY_BYTES = 64 * 2**20  # far beyond a private cache: bound by memory


class _Kept(Record):
    """Of one machine, from its start to its next."""

    boot_id: str | None
    host: HostFacts
    noise: HostNoise


def kept_noise(home: Path, host: HostFacts) -> HostNoise | None:
    """What was measured on this machine within the hour. A file that is damaged, of another machine or account, or from
    before the machine was started anew is passed over."""
    try:
        with open_to_read(home / FILE) as file:
            is_ours = os.fstat(file.fileno()).st_uid == os.getuid()
            kept = _Kept.model_validate_json(file.read(LARGEST_BYTES))
        age = datetime.now(UTC) - datetime.fromisoformat(kept.noise.measured_at)
    except (OSError, StoreError, ValueError, TypeError):  # TypeError: a time without a zone
        return None
    is_here = is_ours and kept.boot_id == _boot_id() and kept.host == host
    return kept.noise if is_here and timedelta(0) <= age <= HOLDS else None


def keep_noise(home: Path, host: HostFacts, noise: HostNoise) -> None:
    """Where the home can be written to."""
    kept = _Kept(boot_id=_boot_id(), host=host, noise=noise)
    with suppress(StoreError):
        SafeFolder(home).write(FILE, kept.model_dump_json(indent=1) + "\n")


def _boot_id() -> str | None:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return None


def measure_noise(repetitions: int = REPETITIONS) -> HostNoise:
    """Interleaves a compute-bound and a memory-bound piece of work; takes about five seconds."""
    block = bytes(COMPUTE_BYTES)
    source = np.ones(MEMORY_BYTES // 8)
    target = np.empty_like(source)
    compute_s = np.empty(repetitions)
    memory_s = np.empty(repetitions)
    for index in range(-3, repetitions):  # three unmeasured rounds first: page faults, clock ramp-up
        compute = _timed(lambda: hashlib.sha256(block).digest())
        memory = _timed(lambda: np.copyto(target, source))
        if index >= 0:
            compute_s[index], memory_s[index] = compute, memory
    return HostNoise(
        measured_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        repetitions=repetitions,
        compute_spread=_spread(compute_s),
        compute_worst=_worst(compute_s),
        memory_spread=_spread(memory_s),
        memory_worst=_worst(memory_s),
    )


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _spread(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    low, middle, high = np.percentile(values, [10, 50, 90])
    return float((high - low) / middle)


def _worst(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(values.max() / np.median(values) - 1)
