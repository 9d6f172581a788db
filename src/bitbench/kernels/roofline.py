"""What this machine can do at most, measured by the bench itself: reading memory, and multiplying."""

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitbench.kernels.case import Pool

READ_BYTES = 256 * 2**20  # per reading: far more than a core's own caches
READINGS = 8
SQUARE = 2048  # a matrix product of this size is bound by arithmetic
PRODUCTS = 5


def measure(pool: "Pool") -> dict[str, list[float]]:
    """Several readings of each: bytes/s read, bfloat16 flop/s, int8 op/s. A roof is the best: it is not exceeded."""
    return {"read_bytes_per_s": _read(pool), "flops_per_s": _multiply(), "int8_ops_per_s": _multiply_int8()}


def _read(pool: "Pool") -> list[float]:
    """By two readers: a sum, and a matrix-vector product, which torch spreads over threads more evenly."""
    import torch

    vector = torch.ones(4096, dtype=torch.bfloat16)
    found = []
    for turn in range(READINGS):
        numbers = pool.bytes_at(turn * READ_BYTES, READ_BYTES).view(torch.int64)
        matrix = pool.bfloat16_at(turn * READ_BYTES // 2, READ_BYTES // 2).view(-1, 4096)
        readers: tuple[Callable[[], object], ...] = (numbers.sum, partial(torch.mv, matrix, vector))
        found.append(max(READ_BYTES / _seconds(reader) for reader in readers))
    return found


def _multiply() -> list[float]:
    import torch

    matrix = torch.randn(SQUARE, SQUARE).bfloat16()
    return [2 * SQUARE**3 / _seconds(lambda: matrix @ matrix) for _ in range(PRODUCTS)]


def _multiply_int8() -> list[float]:
    """Empty where torch has no such product on this device."""
    import torch

    matrix = torch.randint(-128, 128, (SQUARE, SQUARE), dtype=torch.int8)
    try:
        return [2 * SQUARE**3 / _seconds(lambda: torch._int_mm(matrix, matrix)) for _ in range(PRODUCTS)]
    except (NotImplementedError, RuntimeError):
        return []


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
