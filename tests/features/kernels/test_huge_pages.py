"""What is placed in huge pages is what was given, in its own cache lines, and really lies in huge pages."""

import gc
from pathlib import Path

import numpy as np
import pytest

from bitbench.features.kernels.case import Arena

SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_kib() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))


def test_arrays_keep_their_content_and_do_not_share_cache_lines() -> None:
    rng, arena = np.random.default_rng(0), Arena()
    given = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((3, 7), (1,), (64,), (5, 5, 5))]
    placed = [arena.place(array) for array in given]
    assert all(np.array_equal(one, other) for one, other in zip(given, placed, strict=True))
    starts = [array.ctypes.data for array in placed]
    assert all(start % 64 == 0 for start in starts)
    assert len(set(starts)) == len(starts)


def test_an_array_larger_than_a_chunk_is_placed_too() -> None:
    large = np.full(40 * 2**20 + 1, 7, dtype=np.uint8)
    assert int(Arena().place(large)[-1]) == 7


@pytest.mark.skipif(
    not SWITCH.exists() or "[never]" in SWITCH.read_text(encoding="utf-8"), reason="this kernel gives no huge pages"
)
def test_large_arrays_lie_in_huge_pages_until_they_are_gone() -> None:
    before = huge_kib()
    placed = [Arena().place(np.ones(32 * 2**20, dtype=np.uint8))]
    assert huge_kib() - before >= 16 * 1024  # at least half: the kernel may be short of them
    placed.clear()
    gc.collect()
    assert huge_kib() - before < 16 * 1024
