"""Where cases run, who holds the clock, and what that device can do at most. Imported where torch is, in the worker;
torch comes in as an argument."""

import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from bitbench.features.kernels.case import WeightPool


_MILLI = 1e-3
# Written before every timed call, as Triton's own bench does: more than any second-level cache holds, and the device is
# busy with it while the host sends off the call.
FILLER_BYTES = 256 * 2**20
FILLER_CACHES = 2  # for a device whose cache is larger than that
MOST_FILLERS = 64  # some 10 ms: what takes the host longer to send off does not wait for the device, but works itself


class Device(Protocol):
    name: str  # as torch spells it
    cache_bytes: int  # of the last cache, where torch tells; the weights that a case rotates over are a multiple of it

    read_bytes: int  # what a reading of the roofline reads: far more than caches hold, and long against its start
    square: int  # a matrix product of this size is bound by arithmetic

    def facts(self) -> dict[str, str | None]:
        """What a record says about it."""

    def seconds(self, work: Callable[[], object]) -> float:
        """What one call takes on this device. Who compiles at the first call was called before."""


class Cpu:
    name = "cpu"
    cache_bytes = 0  # torch does not tell
    read_bytes = 256 * 2**20
    square = 2048

    def facts(self) -> dict[str, str | None]:
        return {"device": self.name, "device_name": None, "cuda": None}

    def seconds(self, work: Callable[[], object]) -> float:
        began = time.perf_counter_ns()
        work()
        return (time.perf_counter_ns() - began) / 1e9


class Cuda:
    """NOT YET RUN ON A GPU.

    The time between two events in the stream, around a single call: rounds stay interleaved, and every round has a
    time of its own. An event alone would also time the host, which needs tens of microseconds to send off what takes a
    device five. So the device gets something else to do first, until it turns out that it had not reached the first
    event when the whole call was in the stream.
    """

    name = "cuda"
    read_bytes = 512 * 2**20
    square = 8192

    def __init__(self, torch: ModuleType) -> None:
        self._cuda = torch.version.cuda
        properties = torch.cuda.get_device_properties(self.name)
        self._model, self.cache_bytes = str(properties.name), int(properties.L2_cache_size)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        size = max(FILLER_BYTES, FILLER_CACHES * self.cache_bytes)
        self._filler = torch.empty(size, dtype=torch.uint8, device=self.name)

    def facts(self) -> dict[str, str | None]:
        return {"device": self.name, "device_name": self._model, "cuda": self._cuda}

    def seconds(self, work: Callable[[], object]) -> float:
        fillers = 1
        while not self._sent_off_in_time(work, fillers) and fillers < MOST_FILLERS:
            fillers *= 2
        return float(self._start.elapsed_time(self._end)) * _MILLI

    def _sent_off_in_time(self, work: Callable[[], object], fillers: int) -> bool:
        """Whether the device was still busy with the fillers when all of the call was in the stream."""
        for _ in range(fillers):
            self._filler.zero_()
        self._start.record()
        work()
        self._end.record()
        in_time = not self._start.query()
        self._end.synchronize()
        return in_time


def open_device(name: str, torch: ModuleType) -> Device:
    """Raises RuntimeError with what to do where torch does not see it."""
    if name == Cpu.name:
        return Cpu()
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"torch {torch.__version__} sees no CUDA device; if nvidia-smi shows one, recreate this environment "
            f"with: bitbench env create transformers"
        )
    return Cuda(torch)


READINGS = 3
PRODUCTS = 2
FIRST_SQUARE = 256  # twice the side takes eight times as long
LONGEST_PRODUCT_S = 2.0


def measure_device_roof(pool: "WeightPool", device: "Device") -> dict[str, list[float]]:
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
    while (
        size < device.square
        and device.seconds(partial(product, matrix, matrix)) * 8 < LONGEST_PRODUCT_S
    ):
        size, matrix = 2 * size, matrix_of(2 * size)
    return [2 * size**3 / device.seconds(partial(product, matrix, matrix)) for _ in range(PRODUCTS)]
