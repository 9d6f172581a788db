"""Random numbers that follow from a trial's seed alone."""

from zlib import crc32

import numpy as np


def generator(seed: tuple[int, ...], purpose: str) -> np.random.Generator:
    """One stream of numbers for each purpose, so that a workload that uses one more keeps the others."""
    return np.random.default_rng((*seed, crc32(purpose.encode())))
