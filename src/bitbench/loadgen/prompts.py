"""Prompts of exact length that no cache has seen."""

import numpy as np
import numpy.typing as npt

from bitbench.loadgen.randomness import generator
from bitbench.ports import Vocabulary

Ids = npt.NDArray[np.int64]


class PromptSource:
    """Random token ids, of words where they are known, reproducible from the seed and the number of the request.

    No two prompts of a trial begin with the same token (as long as the vocabulary lasts; then not with the same two),
    so not even a part of one can come out of a prefix cache. Special ids never appear: an end-of-text inside a prompt
    would change the work.
    """

    def __init__(self, vocabulary: Vocabulary, seed: tuple[int, ...]) -> None:
        words = _usable(np.array(vocabulary.words, dtype=np.int64), vocabulary)
        self._allowed = words if words.size else _usable(np.arange(vocabulary.size), vocabulary)
        if self._allowed.size == 0:
            raise ValueError(
                f"all {vocabulary.size} token ids of the vocabulary are special: no prompt can be generated"
            )
        self._seed = seed
        self._first = np.random.default_rng(seed).permutation(self._allowed)

    def prompt(self, request: int, tokens: int) -> Ids:
        """Begins as no other request's prompt does."""
        draw = np.random.default_rng((*self._seed, request)).integers(self._allowed.size, size=tokens)
        ids = self._allowed[draw]
        times, place = divmod(request, self._first.size)
        begin = self._first.take([place, place + times + 1], mode="wrap")
        ids[:2] = begin[:tokens]
        return ids

    def passage(self, name: str, tokens: int) -> Ids:
        """Always the same for the same name: what several prompts have in common."""
        return self._allowed[generator(self._seed, name).integers(self._allowed.size, size=tokens)]


def _usable(ids: Ids, vocabulary: Vocabulary) -> Ids:
    return ids[(ids >= 0) & (ids < vocabulary.size) & ~np.isin(ids, vocabulary.excluded)]
