"""What a kernel case is, and what cases build on: memory in huge pages, instruction sets. Imported by the worker,
too: numpy, and nothing else of ours.

With pages of 4 KB the processor looks up a new address every 1,638 vectors and its prefetchers stop there: a product
from memory then takes a fifth longer, and a small one up to twice as long. Linux gives huge pages to who asks for
them (`madvise`); elsewhere this is ordinary memory.

A case module is imported by the worker in an environment with torch; it imports torch itself.

A case is found among what features offer as `kernel_cases`, so another package can add its own.
"""

import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


_HUGE = 2 * 2**20
_CACHE_LINE = 64
_CHUNK = 16 * _HUGE  # address space; what is not written to takes no memory


class Arena:
    """Places arrays one after the other. A chunk is given back when the last array in it is gone."""

    def __init__(self) -> None:
        self._free = np.empty(0, dtype=np.uint8)

    def place(self, array: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """A copy of it that begins at a cache line."""
        if self._free.nbytes < array.nbytes:
            self._free = _huge_pages(max(_CHUNK, -(-array.nbytes // _HUGE) * _HUGE))
        placed = self._free[: array.nbytes].reshape(array.shape)
        placed[...] = array
        self._free = self._free[-(-array.nbytes // _CACHE_LINE) * _CACHE_LINE :]
        return placed


def _huge_pages(size: int) -> npt.NDArray[np.uint8]:
    memory = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory has small pages
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, dtype=np.uint8)
    return whole[-whole.ctypes.data % _HUGE :][:size]


def kernel_case_isas() -> tuple[str, ...]:
    """Those that this processor runs, best first, from the one that BITBENCH_ISA names on.

    Empty without the native part. Raises ValueError where BITBENCH_ISA names one that it does not run.
    """
    try:
        from bitbench._native import vptq_isas
    except ImportError:
        return ()
    return tuple(vptq_isas())


@dataclass(frozen=True)
class KernelShape:
    """Weights of a linear layer: W is [out_features, in_features]."""

    in_features: int
    out_features: int

    def __str__(self) -> str:
        return f"{self.in_features}x{self.out_features}"


class WeightPool(Protocol):
    """The device's memory with random content that cases cut their weights from, larger than all of its caches.

    Filling gigabytes anew for each shape would take longer than timing it.
    """

    def bytes_at(self, offset: int, count: int) -> "torch.Tensor":
        """uint8; wraps around at the end."""

    def huge_page_bytes_at(self, offset: int, count: int) -> "torch.Tensor":
        """The same in huge pages, for cases that would ask for these in a model too."""

    def bfloat16_at(self, offset: int, count: int) -> "torch.Tensor":
        """Normally distributed; wraps around at the end."""

    def float32_at(self, offset: int, count: int) -> "torch.Tensor":
        """The same memory, two numbers read as one: normally distributed, too."""

    @property
    def threads(self) -> int: ...


@dataclass(frozen=True)
class Prepared:
    """A case for one shape, with as many copies of its weights as were asked for."""

    run: Callable[["torch.Tensor", int], "torch.Tensor"]  # (x [batch, in], copy) -> y [batch, out]
    reference: Callable[[slice], npt.NDArray[np.float64]]  # rows of copy 0 [rows, in]; they start at multiples of 64
    weight_bytes: int  # of one copy: weights, scales, codebooks
    isa: str | None = None  # the instruction set that it runs on, where the case has several


class Case(Protocol):
    name: str
    needs: tuple[str, ...]  # words for a person: what it does not run without
    devices: tuple[str, ...]  # as torch spells them; on another one it is left out unless it is named
    dtype: str  # of activations and results when it is timed
    check_dtype: str  # of activations and results when it is checked: float32 where the case takes it
    allowed_error: float  # relative to the norm of the reference's result
    batches: tuple[int, int]  # smallest and largest that it takes
    labels: dict[str, int]  # further columns of the table, such as the size of a codebook
    on_request: bool  # left out unless it is named

    def why_not(self, shape: KernelShape) -> str | None:
        """Why it cannot run here or for this shape; None where it can."""

    def weight_bytes(self, shape: KernelShape) -> int: ...

    def prepare(self, shape: KernelShape, copies: int, pool: WeightPool) -> Prepared: ...


@dataclass(frozen=True)
class Traits:
    """The common answers; a case inherits them and changes what differs."""

    name: str = ""
    needs: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu",)
    dtype: str = "bfloat16"
    check_dtype: str = "bfloat16"
    allowed_error: float = 0.01  # a bfloat16 result is rounded to 8 bits: 0.2 %, with room for its accumulation
    batches: tuple[int, int] = (1, 4096)
    labels: dict[str, int] = field(default_factory=dict)
    on_request: bool = False

    def why_not(self, shape: KernelShape) -> str | None:  # noqa: ARG002
        return None
