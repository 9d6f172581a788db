"""What this machine can do at most, measured by the bench itself: reading memory, and multiplying."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitbench.kernels.case import Pool

READ_BYTES = 256 * 2**20  # per reading: far more than a core's own caches
READINGS = 3
SQUARE = 2048  # a matrix product of this size is bound by arithmetic
PRODUCTS = 2


def measure(pool: "Pool", known: Mapping[str, float]) -> dict[str, float]:
    """Bytes/s read and bfloat16 flop/s: the best of a few readings and of what is known already.

    A roof is what is not exceeded, and on a shared machine it comes and goes: so it is measured again and again.
    """
    found = {"read_bytes_per_s": _read(pool), "flops_per_s": _multiply()}
    return {name: max(value, known.get(name, 0.0)) for name, value in found.items()}


def _read(pool: "Pool") -> float:
    """By two readers: a sum, and a matrix-vector product, which torch spreads over threads more evenly."""
    import torch

    vector = torch.ones(4096, dtype=torch.bfloat16)
    best = 0.0
    for turn in range(READINGS):
        numbers = pool.bytes_at(turn * READ_BYTES, READ_BYTES).view(torch.int64)
        matrix = pool.bfloat16_at(turn * READ_BYTES // 2, READ_BYTES // 2).view(-1, 4096)
        readers: tuple[Callable[[], object], ...] = (numbers.sum, partial(torch.mv, matrix, vector))
        best = max(best, *(READ_BYTES / _seconds(reader) for reader in readers))
    return best


def _multiply() -> float:
    import torch

    matrix = torch.randn(SQUARE, SQUARE).bfloat16()
    return 2 * SQUARE**3 / min(_seconds(lambda: matrix @ matrix) for _ in range(PRODUCTS))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
