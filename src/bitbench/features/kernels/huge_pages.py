"""Memory in huge pages, for weights that every product reads from end to end.

With pages of 4 KB the processor looks up a new address every 1,638 vectors and its prefetchers stop there: a product
from memory then takes a fifth longer, and a small one up to twice as long. Linux gives huge pages to who asks for them
(`madvise`); elsewhere this is ordinary memory.
"""

import mmap

import numpy as np
import numpy.typing as npt

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
