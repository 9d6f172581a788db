"""Weighted k-means, in plain numpy and reproducible from its random generator."""

import numpy as np

from bitbench.features.vptq.layout import Doubles, Floats
from bitbench.features.vptq.nearest import Dot, Places, Search


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


def sums_by_place(vectors: Doubles | Floats, places: Places, entries: int) -> Doubles:
    """[entries, v]: the sum of the vectors that share a place."""
    return np.stack([np.bincount(places, part, entries) for part in vectors.T], axis=1)


def _centres(vectors: Floats, weights: Doubles, places: Places, centroids: Floats) -> Floats:
    """Weighted means; an entry that no vector chose moves to one of the vectors that are worst off."""
    entries = len(centroids)
    total = np.bincount(places, weights, entries)
    means = sums_by_place(vectors * weights[:, np.newaxis], places, entries)
    chosen = total > 0
    means[chosen] /= total[chosen, np.newaxis]
    if empty := entries - int(chosen.sum()):
        loss = weights * np.square(vectors - centroids[places]).sum(axis=1)
        means[~chosen] = vectors[np.argpartition(loss, -empty)[-empty:]]
    return means.astype(np.float32)
