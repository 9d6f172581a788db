"""Latencies in a few kilobytes, whatever their number: percentiles with a known error, and sums of sketches."""

import math
from itertools import pairwise
from typing import Self

import numpy as np
import numpy.typing as npt
from pydantic import model_validator

from bitbench.study.base import Record

RELATIVE_ERROR = 0.01  # of every percentile
LOWEST_S, HIGHEST_S = 1e-6, 1e5  # what lies outside is counted at the edge

# Bin i holds (LOWEST_S × RATIO^(i-1), LOWEST_S × RATIO^i]; a value between its edges in proportion to them is within
# RELATIVE_ERROR of all that it holds (the mapping of DDSketch, Masson et al., VLDB 2019).
_RATIO = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_BINS = math.ceil(math.log(HIGHEST_S / LOWEST_S) / math.log(_RATIO)) + 1


class SketchCounts(Record):
    """A sketch as it travels: only bins that hold something."""

    bins: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _could_be_counted(self) -> Self:
        is_ordered = all(before < after for before, after in pairwise((-1, *self.bins, _BINS)))
        if not is_ordered or len(self.bins) != len(self.counts) or not all(0 < count < 2**40 for count in self.counts):
            raise ValueError("the bins of a sketch are damaged")
        return self


class LatencySketch:
    def __init__(self) -> None:
        self._counts: npt.NDArray[np.int64] = np.zeros(_BINS, dtype=np.int64)

    def add(self, seconds: float) -> None:
        self._counts[_bin(seconds)] += 1

    def add_all(self, seconds: npt.NDArray[np.float64]) -> None:
        places = np.ceil(np.log(np.clip(seconds, LOWEST_S, HIGHEST_S) / LOWEST_S) / math.log(_RATIO))
        self._counts += np.bincount(places.astype(np.int64), minlength=_BINS)

    def merge(self, other: SketchCounts) -> None:
        np.add.at(self._counts, list(other.bins), other.counts)

    @property
    def count(self) -> int:
        return int(self._counts.sum())

    def quantile(self, share: float) -> float | None:
        """The value below which this share of all lies, within RELATIVE_ERROR; None where there is none.

        Between two values in proportion, as `numpy.quantile` of all of them: where each is within the error, so is what
        lies between.
        """
        reached = np.cumsum(self._counts)
        if reached[-1] == 0:
            return None
        rank = share * float(reached[-1] - 1)
        below, above = (
            LOWEST_S * 2 * _RATIO ** int(np.searchsorted(reached, place, side="right")) / (1 + _RATIO)
            for place in (math.floor(rank), math.ceil(rank))
        )
        return below + (above - below) * (rank - math.floor(rank))

    def counts(self) -> SketchCounts:
        (bins,) = np.nonzero(self._counts)
        return SketchCounts(bins=tuple(bins.tolist()), counts=tuple(self._counts[bins].tolist()))

    @classmethod
    def of(cls, *parts: SketchCounts) -> Self:
        sketch = cls()
        for part in parts:
            sketch.merge(part)
        return sketch


def _bin(seconds: float) -> int:
    return math.ceil(math.log(min(max(seconds, LOWEST_S), HIGHEST_S) / LOWEST_S) / math.log(_RATIO))
