"""Where cases run and who holds the clock. Imported where torch is, in the worker; torch comes in as an argument."""

import time
from collections.abc import Callable
from types import ModuleType
from typing import Protocol

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

    def __init__(self, torch: ModuleType, *, warm: bool) -> None:
        self._warm = warm
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
        if self._warm:
            work()  # the filler has emptied the cache
        self._start.record()
        work()
        self._end.record()
        in_time = not self._start.query()
        self._end.synchronize()
        return in_time


def open_device(name: str, torch: ModuleType, *, warm: bool) -> Device:
    """Raises RuntimeError with what to do where torch does not see it."""
    if name == Cpu.name:
        return Cpu()
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"torch {torch.__version__} sees no CUDA device; if nvidia-smi shows one, recreate this environment "
            f"with: bitbench env create transformers"
        )
    return Cuda(torch, warm=warm)
