"""The devices on which cases run: their clocks and their rooflines.

The worker imports this module in an environment with torch.
"""

import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from bitbench.features.kernels.case import WeightPool


_MILLI = 1e-3
# Bytes written before every timed call, as in Triton's own bench. They are more than any
# second-level cache holds, and they keep the device busy while the host sends the call.
FILLER_BYTES = 256 * 2**20
FILLER_CACHES = 2  # for a device whose cache is larger
MOST_FILLERS = 64  # about 10 ms: a call that takes longer to send does not wait for the device


class Device(Protocol):
    """A device with a clock."""

    name: str  # torch's name for it
    # Of the last cache, if torch reports it. A case rotates over a multiple of it in weights.
    cache_bytes: int

    # Bytes of one roofline reading: far more than caches hold, so its start takes little time.
    read_bytes: int
    square: int  # size of a matrix product that is bound by arithmetic

    def facts(self) -> dict[str, str | None]:
        """Return the facts of the device for a record."""

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the seconds of one call. The caller has run it once, since that may compile."""


class Cpu:
    """The processor, timed with the host's clock."""

    name = "cpu"
    cache_bytes = 0  # torch does not report it
    read_bytes = 256 * 2**20
    square = 2048

    def facts(self) -> dict[str, str | None]:
        return {"device": self.name, "device_name": None, "cuda": None}

    def seconds(self, work: Callable[[], object]) -> float:
        start = time.perf_counter_ns()
        work()
        return (time.perf_counter_ns() - start) / 1e9


class Cuda:
    """A CUDA device, timed with two events in the stream around a single call.

    NOT YET RUN ON A GPU. Rounds stay interleaved, and every round has its own time. Events alone
    would also time the host, which needs tens of microseconds to send a call that takes the device
    five. So the device gets other work first. The amount grows until the whole call is in the
    stream before the device reaches the first event.
    """

    name = "cuda"
    read_bytes = 512 * 2**20
    square = 8192

    def __init__(self, torch: ModuleType) -> None:
        self._cuda = torch.version.cuda
        properties = torch.cuda.get_device_properties(self.name)
        self._model = str(properties.name)
        self.cache_bytes = int(properties.L2_cache_size)
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        size = max(FILLER_BYTES, FILLER_CACHES * self.cache_bytes)
        self._filler = torch.empty(size, dtype=torch.uint8, device=self.name)

    def facts(self) -> dict[str, str | None]:
        return {"device": self.name, "device_name": self._model, "cuda": self._cuda}

    def seconds(self, work: Callable[[], object]) -> float:
        fillers = 1
        while not self._is_sent_in_time(work, fillers) and fillers < MOST_FILLERS:
            fillers *= 2
        return float(self._start.elapsed_time(self._end)) * _MILLI

    def _is_sent_in_time(self, work: Callable[[], object], fillers: int) -> bool:
        """Return True if the device was still busy with fillers when the call was in the stream."""
        for _ in range(fillers):
            self._filler.zero_()
        self._start.record()
        work()
        self._end.record()
        in_time = not self._start.query()
        self._end.synchronize()
        return in_time


def open_device(name: str, torch: ModuleType) -> Device:
    """Return the device with this name. Raise RuntimeError with advice if torch does not see it."""
    if name == Cpu.name:
        return Cpu()
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"torch {torch.__version__} sees no CUDA device; if nvidia-smi shows one, recreate "
            "this environment with: bitbench env create transformers"
        )
    return Cuda(torch)


READINGS = 3
PRODUCTS = 2
FIRST_SQUARE = 256  # twice the side takes eight times as long
LONGEST_PRODUCT_S = 2.0


def measure_device_roof(pool: "WeightPool", device: "Device") -> dict[str, list[float]]:
    """Return a few readings of each rate of the roofline.

    These are bytes/s read, flop/s in bfloat16, flop/s in float32 on a CPU, and int8 op/s. The best
    reading is the roofline, because nothing exceeds it. On a shared machine the rates vary, so they
    are measured repeatedly.
    """
    float32 = _measure_float_rate(device, "float32") if device.name == "cpu" else []
    int8 = _measure_int8_rate(device)
    if max(int8, default=0.0) < max(float32, default=0.0):
        # torch multiplies number by number here, which no engine would do.
        int8 = []
    return {
        "read_bytes_per_s": _measure_read_rate(pool, device),
        "flops_per_s": _measure_float_rate(device, "bfloat16"),
        "float32_flops_per_s": float32,
        "int8_ops_per_s": int8,
    }


def _measure_read_rate(pool: "WeightPool", device: "Device") -> list[float]:
    """Return bytes/s by the faster of two readers.

    These are a sum, and a matrix-vector product, which torch spreads over threads more evenly.
    """
    import torch

    vector = torch.ones(4096, dtype=torch.bfloat16, device=device.name)
    size = device.read_bytes
    rates = []
    for turn in range(READINGS):
        numbers = pool.bytes_at(turn * size, size).view(torch.int64)
        matrix = pool.bfloat16_at(turn * size // 2, size // 2).view(-1, 4096)
        readers: tuple[Callable[[], object], ...] = (numbers.sum, partial(torch.mv, matrix, vector))
        rates.append(max(size / device.seconds(reader) for reader in readers))
    return rates


def _measure_float_rate(device: "Device", dtype: str) -> list[float]:
    import torch

    def matrix(size: int) -> "torch.Tensor":
        return torch.randn(size, size, device=device.name).to(getattr(torch, dtype))

    return _measure_product_rate(device, matrix, torch.matmul)


def _measure_int8_rate(device: "Device") -> list[float]:
    """Return int8 op/s, or an empty list if torch has no such product on this device."""
    import torch

    def matrix(size: int) -> "torch.Tensor":
        return torch.randint(-128, 128, (size, size), dtype=torch.int8, device=device.name)

    try:
        return _measure_product_rate(device, matrix, torch._int_mm)
    except (NotImplementedError, RuntimeError):
        return []


def _measure_product_rate(
    device: "Device",
    matrix_of: "Callable[[int], torch.Tensor]",
    product: "Callable[[torch.Tensor, torch.Tensor], object]",
) -> list[float]:
    """Return operations per second of a few matrix products.

    The matrices are smaller than the device's own size if that would take too long. torch
    multiplies int8 number by number on a processor without instructions for it, which is a hundred
    times slower than float32.
    """
    size = FIRST_SQUARE
    work = _make_square_product(size, matrix_of, product)
    while size < device.square and device.seconds(work) * 8 < LONGEST_PRODUCT_S:
        size *= 2
        work = _make_square_product(size, matrix_of, product)
    return [2 * size**3 / device.seconds(work) for _ in range(PRODUCTS)]


def _make_square_product(
    size: int,
    matrix_of: "Callable[[int], torch.Tensor]",
    product: "Callable[[torch.Tensor, torch.Tensor], object]",
) -> Callable[[], object]:
    matrix = matrix_of(size)
    return partial(product, matrix, matrix)
