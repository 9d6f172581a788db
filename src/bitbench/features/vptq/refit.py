"""Codebooks that are best for given indices: least squares in the output of the layer, not in its weights.

The error tr((W - Q) H (W - Q)^T) is quadratic in the entries, since Q is linear in them. Conjugate gradients solve it
without ever forming the matrix of the system.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bitbench.features.vptq.kmeans import sums_by_place
from bitbench.features.vptq.layout import Floats
from bitbench.features.vptq.nearest import Places


@dataclass(frozen=True)
class Book:
    """A codebook and who uses it: columns [first, first + n) of the stored order, added to what others give there."""

    centroids: Floats  # [C, v]
    places: Places  # [n, blocks]: the entry of each vector
    first: int = 0

    @property
    def columns(self) -> slice:
        return slice(self.first, self.first + len(self.places))

    def values(self, entries: Floats) -> Floats:
        """[n, outputs] as these entries would give it."""
        return entries[self.places].reshape(len(self.places), -1)

    def gather(self, gradient: Floats) -> Floats:
        """The transpose of `values`: what the columns [n, outputs] add up to, entry by entry."""
        vectors = gradient.reshape(-1, self.centroids.shape[1])
        return sums_by_place(vectors, self.places.ravel(), len(self.centroids)).astype(np.float32)


def combine(books: Sequence[Book], entries: Sequence[Floats], shape: tuple[int, int]) -> Floats:
    """The columns [in, outputs] that the books give together."""
    total = np.zeros(shape, dtype=np.float32)
    for book, values in zip(books, entries, strict=True):
        total[book.columns] += book.values(values)
    return total


def refit(books: Sequence[Book], columns: Floats, hessian: Floats, *, iterations: int) -> list[Floats]:
    """New centroids, one array per book. Unused entries stay as they are."""
    system = _System(books, columns.shape, hessian)
    now = [book.centroids.copy() for book in books]
    residual = system.spread(hessian @ (columns - combine(books, now, columns.shape)))
    ahead = system.precondition(residual)
    direction, slope = ahead, _inner(residual, ahead)
    for _ in range(iterations):
        if slope <= 0:
            break
        image = system.apply(direction)
        step = slope / _inner(direction, image)
        now = [value + step * part for value, part in zip(now, direction, strict=True)]
        residual = [value - step * part for value, part in zip(residual, image, strict=True)]
        ahead = system.precondition(residual)
        slope, before = _inner(residual, ahead), slope
        direction = [value + slope / before * part for value, part in zip(ahead, direction, strict=True)]
    return now


class _System:
    def __init__(self, books: Sequence[Book], shape: tuple[int, int], hessian: Floats) -> None:
        self._books, self._shape, self._hessian = books, shape, hessian
        curvature = np.repeat(np.diag(hessian)[:, np.newaxis], shape[1], axis=1)
        self._diagonal = [np.maximum(part, np.float32(1e-30)) for part in self.spread(curvature)]

    def spread(self, gradient: Floats) -> list[Floats]:
        return [book.gather(gradient[book.columns]) for book in self._books]

    def apply(self, entries: Sequence[Floats]) -> list[Floats]:
        return self.spread(self._hessian @ combine(self._books, entries, self._shape))

    def precondition(self, entries: Sequence[Floats]) -> list[Floats]:
        return [np.divide(value, part, dtype=np.float32) for value, part in zip(entries, self._diagonal, strict=True)]


def _inner(left: Sequence[Floats], right: Sequence[Floats]) -> float:
    return float(sum(np.vdot(a.astype(np.float64), b) for a, b in zip(left, right, strict=True)))
