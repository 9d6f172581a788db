"""How even this machine is: the noise of fixed work. It is the floor under every difference that a study could find."""

import hashlib
import time
from collections.abc import Callable

import numpy as np

from bitbench.study.base import Record

REPETITIONS = 150
COMPUTE_BYTES = 4 * 2**20  # hashed in cache-sized pieces: bound by the core, about 5 ms
MEMORY_BYTES = 64 * 2**20  # far beyond a private cache: bound by memory


class HostNoise(Record):
    """How much a fixed piece of work varies on this machine, from one repetition to the next."""

    repetitions: int
    compute_spread: float  # relative: (90th − 10th percentile) / median
    compute_worst: float  # relative: slowest / median − 1
    memory_spread: float
    memory_worst: float


def measure_noise(repetitions: int = REPETITIONS) -> HostNoise:
    """Interleaves a compute-bound and a memory-bound piece of work; takes about five seconds."""
    block = bytes(COMPUTE_BYTES)
    source = np.ones(MEMORY_BYTES // 8)
    target = np.empty_like(source)
    compute_s = np.empty(repetitions)
    memory_s = np.empty(repetitions)
    for index in range(-3, repetitions):  # three unmeasured rounds first: page faults, clocks that rise
        compute = _timed(lambda: hashlib.sha256(block).digest())
        memory = _timed(lambda: np.copyto(target, source))
        if index >= 0:
            compute_s[index], memory_s[index] = compute, memory
    return HostNoise(
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
