"""Codebooks of one or more stages, and which entry of each a vector has been given."""

from collections.abc import Sequence

import numpy as np

from bitbench.features.vptq.layout import Floats
from bitbench.features.vptq.nearest import Dot, Places, Search
from bitbench.features.vptq.refit import Book


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
