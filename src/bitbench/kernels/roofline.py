"""What this machine can do at most, measured by the bench itself: reading memory, and multiplying."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitbench.kernels.case import WeightPool
    from bitbench.kernels.device import Device

READINGS = 3
PRODUCTS = 2


def measure(pool: "WeightPool", device: "Device") -> dict[str, list[float]]:
    """A few readings of each: bytes/s read, flop/s in bfloat16 and on a CPU in float32, int8 op/s.

    A roof is the best reading: it is not exceeded. On a shared machine it comes and goes, so it is read again.
    """
    return {
        "read_bytes_per_s": _read(pool, device),
        "flops_per_s": _multiply(device, "bfloat16"),
        "float32_flops_per_s": _multiply(device, "float32") if device.name == "cpu" else [],
        "int8_ops_per_s": _multiply_int8(device),
    }


def _read(pool: "WeightPool", device: "Device") -> list[float]:
    """By two readers: a sum, and a matrix-vector product, which torch spreads over threads more evenly."""
    import torch

    vector = torch.ones(4096, dtype=torch.bfloat16, device=device.name)
    found, size = [], device.read_bytes
    for turn in range(READINGS):
        numbers = pool.bytes_at(turn * size, size).view(torch.int64)
        matrix = pool.bfloat16_at(turn * size // 2, size // 2).view(-1, 4096)
        readers: tuple[Callable[[], object], ...] = (numbers.sum, partial(torch.mv, matrix, vector))
        found.append(max(size / device.seconds(reader) for reader in readers))
    return found


def _multiply(device: "Device", dtype: str) -> list[float]:
    import torch

    size = device.square
    matrix = torch.randn(size, size, device=device.name).to(getattr(torch, dtype))
    return [2 * size**3 / device.seconds(lambda: matrix @ matrix) for _ in range(PRODUCTS)]


def _multiply_int8(device: "Device") -> list[float]:
    """Empty where torch has no such product on this device."""
    import torch

    size = device.square
    matrix = torch.randint(-128, 128, (size, size), dtype=torch.int8, device=device.name)
    try:
        return [2 * size**3 / device.seconds(lambda: torch._int_mm(matrix, matrix)) for _ in range(PRODUCTS)]
    except (NotImplementedError, RuntimeError):
        return []
