"""What this machine can do at most, measured by the bench itself: reading memory, and multiplying."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from bitbench.features.kernels.case import WeightPool
    from bitbench.features.kernels.device import Device

READINGS = 3
PRODUCTS = 2
FIRST_SQUARE = 256  # twice the side takes eight times as long
LONGEST_PRODUCT_S = 2.0


def measure(pool: "WeightPool", device: "Device") -> dict[str, list[float]]:
    """A few readings of each: bytes/s read, flop/s in bfloat16 and on a CPU in float32, int8 op/s.

    A roof is the best reading: it is not exceeded. On a shared machine it comes and goes, so it is read again.
    """
    float32 = _multiply(device, "float32") if device.name == "cpu" else []
    int8 = _multiply_int8(device)
    if max(int8, default=0.0) < max(float32, default=0.0):
        int8 = []  # torch goes from number to number, and no engine would: it says nothing about the processor
    return {
        "read_bytes_per_s": _read(pool, device),
        "flops_per_s": _multiply(device, "bfloat16"),
        "float32_flops_per_s": float32,
        "int8_ops_per_s": int8,
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

    def matrix(size: int) -> "torch.Tensor":
        return torch.randn(size, size, device=device.name).to(getattr(torch, dtype))

    return _products(device, matrix, torch.matmul)


def _multiply_int8(device: "Device") -> list[float]:
    """Empty where torch has no such product on this device."""
    import torch

    def matrix(size: int) -> "torch.Tensor":
        return torch.randint(-128, 128, (size, size), dtype=torch.int8, device=device.name)

    try:
        return _products(device, matrix, torch._int_mm)
    except (NotImplementedError, RuntimeError):
        return []


def _products(
    device: "Device",
    matrix_of: "Callable[[int], torch.Tensor]",
    product: "Callable[[torch.Tensor, torch.Tensor], object]",
) -> list[float]:
    """Operations per second. Of a smaller square where the device's own would take too long: torch multiplies int8
    number by number on a processor without instructions for it, a hundred times slower than float32."""
    size, matrix = FIRST_SQUARE, matrix_of(FIRST_SQUARE)
    while size < device.square and device.seconds(partial(product, matrix, matrix)) * 8 < LONGEST_PRODUCT_S:
        size, matrix = 2 * size, matrix_of(2 * size)
    return [2 * size**3 / device.seconds(partial(product, matrix, matrix)) for _ in range(PRODUCTS)]
