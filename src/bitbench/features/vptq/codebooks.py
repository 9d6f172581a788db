"""Codebooks in plain numpy: the nearest entry for many vectors, weighted k-means, entries refitted to the layer's
output, stages of several.

The error tr((W - Q) H (W - Q)^T) is quadratic in the entries, since Q is linear in them. Conjugate gradients solve it
without ever forming the matrix of the system.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bitbench.features.vptq.layout import Doubles, Floats

# `out = a @ b` for dense float32 arrays. Who has a quicker one than numpy's brings it: torch's was three times as quick
# for vectors of 8.
Dot: TypeAlias = Callable[[Floats, Floats, Floats], object]
Places: TypeAlias = npt.NDArray[np.int64]

# A tile of scores stays in the second cache: 128 x 2048 numbers are 1 MB.
_ROWS = 128
_ENTRIES = 2048


class Search:
    """Among fixed centroids [C, v]. |x - c|^2 is smallest where x c - |c|^2 / 2 is largest: one product does it."""

    def __init__(self, centroids: Floats, dot: Dot = np.dot) -> None:
        halves = -0.5 * np.square(centroids).sum(axis=1, keepdims=True)
        table = np.concatenate([centroids, halves], axis=1, dtype=np.float32).T
        starts = range(0, len(centroids), _ENTRIES)
        self._tiles = [np.ascontiguousarray(table[:, start : start + _ENTRIES]) for start in starts]
        self._dot = dot

    def nearest(self, vectors: Floats) -> Places:
        """Index per row of [n, v]; the first of several that are equally near."""
        extended = np.ones((len(vectors), vectors.shape[1] + 1), dtype=np.float32)
        extended[:, :-1] = vectors
        found = np.empty(len(vectors), dtype=np.int64)
        for start in range(0, len(vectors), _ROWS):
            found[start : start + _ROWS] = self._of_rows(extended[start : start + _ROWS])
        return found

    def _of_rows(self, rows: Floats) -> Places:
        each = np.arange(len(rows))
        best, place = np.full(len(rows), -np.inf, dtype=np.float32), np.zeros(len(rows), dtype=np.int64)
        for number, tile in enumerate(self._tiles):
            scores = np.empty((len(rows), tile.shape[1]), dtype=np.float32)
            self._dot(rows, tile, scores)
            here = scores.argmax(axis=1)
            better = scores[each, here] > best
            best = np.where(better, scores[each, here], best)
            place = np.where(better, here + number * _ENTRIES, place)
        return place


def kmeans(
    vectors: Floats, weights: Floats, entries: int, rng: np.random.Generator, *, iterations: int, dot: Dot = np.dot
) -> Floats:
    """Centroids [entries, v] that make sum(weight * |vector - nearest|^2) small.

    Starts from vectors drawn by their weight. With no more vectors than entries each is its own centroid.
    """
    if len(vectors) <= entries:
        own = np.zeros((entries, vectors.shape[1]), dtype=np.float32)
        own[: len(vectors)] = vectors
        return own
    share = weights.astype(np.float64) + 1e-9 * weights.max()  # a column that calibration never met weighs nothing
    centroids = vectors[rng.choice(len(vectors), entries, replace=False, p=share / share.sum())]
    for _ in range(iterations):
        places = Search(centroids, dot).nearest(vectors)
        centroids = _centres(vectors, share, places, centroids)
    return centroids


def _sums_by_place(vectors: Doubles | Floats, places: Places, entries: int) -> Doubles:
    """[entries, v]: the sum of the vectors that share a place."""
    return np.stack([np.bincount(places, part, entries) for part in vectors.T], axis=1)


def _centres(vectors: Floats, weights: Doubles, places: Places, centroids: Floats) -> Floats:
    """Weighted means; an entry that no vector chose moves to one of the vectors that are worst off."""
    entries = len(centroids)
    total = np.bincount(places, weights, entries)
    means = _sums_by_place(vectors * weights[:, np.newaxis], places, entries)
    chosen = total > 0
    means[chosen] /= total[chosen, np.newaxis]
    if empty := entries - int(chosen.sum()):
        loss = weights * np.square(vectors - centroids[places]).sum(axis=1)
        means[~chosen] = vectors[np.argpartition(loss, -empty)[-empty:]]
    return means.astype(np.float32)


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
        return _sums_by_place(vectors, self.places.ravel(), len(self.centroids)).astype(np.float32)


def combine_codebooks(books: Sequence[Book], entries: Sequence[Floats], shape: tuple[int, int]) -> Floats:
    """The columns [in, outputs] that the books give together."""
    total = np.zeros(shape, dtype=np.float32)
    for book, values in zip(books, entries, strict=True):
        total[book.columns] += book.values(values)
    return total


def refit_codebooks(books: Sequence[Book], columns: Floats, hessian: Floats, *, iterations: int) -> list[Floats]:
    """New centroids, one array per book. Unused entries stay as they are."""
    system = _System(books, columns.shape, hessian)
    now = [book.centroids.copy() for book in books]
    residual = system.spread(hessian @ (columns - combine_codebooks(books, now, columns.shape)))
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
        return self.spread(self._hessian @ combine_codebooks(self._books, entries, self._shape))

    def precondition(self, entries: Sequence[Floats]) -> list[Floats]:
        return [np.divide(value, part, dtype=np.float32) for value, part in zip(entries, self._diagonal, strict=True)]


def _inner(left: Sequence[Floats], right: Sequence[Floats]) -> float:
    return float(sum(np.vdot(a.astype(np.float64), b) for a, b in zip(left, right, strict=True)))


class Coder:
    """For `columns` columns from `first` on, in stored order. A vector becomes the sum of one entry per stage."""

    def __init__(self, vector: int, first: int, columns: int, dot: Dot = np.dot) -> None:
        self.vector, self.first, self.columns = vector, first, columns
        self._dot = dot
        self._stages: list[Floats] = []  # [entries, v] each
        self._searches: list[Search] = []
        self._places: list[Places] = []  # [columns, blocks] each

    @property
    def stages(self) -> tuple[Floats, ...]:
        return tuple(self._stages)

    @property
    def places(self) -> tuple[Places, ...]:
        return tuple(self._places)

    @property
    def books(self) -> list[Book]:
        return [Book(entries, places, self.first) for entries, places in zip(self._stages, self._places, strict=True)]

    def add_stage(self, centroids: Floats, outputs: int) -> None:
        self._stages.append(centroids)
        self._searches.append(Search(centroids, self._dot))
        self._places.append(np.zeros((self.columns, outputs // self.vector), dtype=np.int64))

    def replace_stages(self, stages: Sequence[Floats]) -> None:
        """Other entries under the same indices."""
        self._stages = list(stages)
        self._searches = [Search(centroids, self._dot) for centroids in stages]

    def encode(self, k: int, wanted: Floats) -> Floats:
        """Stage by stage, each the nearest to what those before it have left."""
        left = wanted.reshape(-1, self.vector)
        for entries, search, places in zip(self._stages, self._searches, self._places, strict=True):
            places[k - self.first] = search.nearest(left)
            left = left - entries[places[k - self.first]]
        return wanted - left.ravel()

    def improve(self, k: int, wanted: Floats) -> Floats:
        """Each stage anew while the others stay: no vector comes further from what is wanted."""
        vectors = wanted.reshape(-1, self.vector)
        parts = [entries[places[k - self.first]] for entries, places in zip(self._stages, self._places, strict=True)]
        for stage, (entries, search, places) in enumerate(zip(self._stages, self._searches, self._places, strict=True)):
            others = sum(part for number, part in enumerate(parts) if number != stage)
            places[k - self.first] = search.nearest(vectors - others)
            parts[stage] = entries[places[k - self.first]]
        return np.asarray(sum(parts), dtype=np.float32).ravel()
