"""Differences of two configs, block by block: all that `pairs` and `components` need to know of the figures."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bitbench.analysis.log_speeds import Floats, LogSpeeds
from bitbench.study.plan import Config

Places = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]


class Way(StrEnum):
    """How two configs met."""

    DIRECT = "in common rounds"
    BASELINE = "by way of the baseline"  # in at least one of their blocks


@dataclass(frozen=True, eq=False)
class Contrasts:
    """Pairs that met in one way, each in at least two blocks."""

    first: Places
    second: Places
    by_block: Floats  # pair × block: difference of log speeds; NaN where the two did not meet
    from_rounds: Floats  # variance of each of these by its rounds alone; NaN where it is of one round
    rounds: Places  # of each of these

    @cached_property
    def blocks(self) -> Places:
        return np.asarray(np.isfinite(self.by_block).sum(1))

    @cached_property
    def variances(self) -> Floats:
        """Of the differences of each pair, over its blocks."""
        return np.asarray(np.nanvar(self.by_block, axis=1, ddof=1))

    @cached_property
    def pooled_variance(self) -> float:
        weights = self.blocks - 1
        return float((self.variances * weights).sum() / weights.sum())

    @cached_property
    def spare(self) -> int:
        """Degrees of freedom that are left when each config has a mean and each block a shift."""
        there = np.isfinite(self.by_block)
        in_blocks = sum(self._free_differences(there[:, block]) for block in range(there.shape[1]))
        return in_blocks - self._free_differences(np.any(there, axis=1))

    def _free_differences(self, chosen: Flags) -> int:
        """n − 1 of n configs that are linked by these pairs; of several such sets, the sum.

        Sets without a link are what is left of a block whose baseline crashed.
        """
        first, second = self.first[chosen], self.second[chosen]
        size = int(self.second.max(initial=-1)) + 1
        met = np.zeros((size, size), dtype=np.bool_)
        met[first, second] = met[second, first] = True
        left = np.any(met, axis=1)
        free = 0
        while left.any():
            linked = np.arange(size) == left.argmax()
            while (grown := linked | np.any(met[linked], axis=0)).sum() > linked.sum():
                linked = grown
            free += int(linked.sum()) - 1
            left &= ~linked
        return free


def find_contrasts(speeds: LogSpeeds, baseline: Config | None = None) -> dict[Way, Contrasts]:
    """All pairs with at least two blocks. Without a baseline only those that met in rounds."""
    first, second = np.triu_indices(len(speeds.configs), 1)
    found = _differences(speeds.values[first] - speeds.values[second])
    has_detour = np.zeros(len(first), dtype=np.bool_)
    if baseline in speeds.configs:
        detour = _detour(speeds.values, speeds.configs.index(baseline), first, second)
        taken = np.isnan(found.means) & np.isfinite(detour.means)
        found = _Differences(*(np.where(taken, new, old) for new, old in zip(detour, found, strict=True)))
        has_detour = np.any(taken, axis=1)
    enough = np.isfinite(found.means).sum(1) > 1
    chosen = {Way.DIRECT: enough & ~has_detour, Way.BASELINE: enough & has_detour}
    return {
        way: Contrasts(first[own], second[own], found.means[own], found.variances[own], found.rounds[own])
        for way, own in chosen.items()
        if own.any()
    }


class _Differences(NamedTuple):
    """Of some pairs, by block."""

    means: Floats
    variances: Floats  # of these means
    rounds: Places


def _differences(by_round: Floats) -> _Differences:
    """NaN where there is no round, or for the variance only one."""
    rounds = np.isfinite(by_round).sum(2)
    means = np.nansum(by_round, axis=2) / np.where(rounds > 0, rounds, np.nan)
    squares = np.nansum((by_round - means[:, :, np.newaxis]) ** 2, axis=2)
    return _Differences(means, squares / np.where(rounds > 1, (rounds - 1) * rounds, np.nan), rounds)


def _detour(values: Floats, baseline: int, first: Places, second: Places) -> _Differences:
    """d_i0 − d_j0: the baseline's rounds with one are not those with the other, so the variances add up."""
    to_baseline = _differences(values - values[baseline])
    to_baseline.means[baseline] = np.nan  # a pair with the baseline itself has no other way
    return _Differences(
        to_baseline.means[first] - to_baseline.means[second],
        to_baseline.variances[first] + to_baseline.variances[second],
        np.minimum(to_baseline.rounds[first], to_baseline.rounds[second]),
    )
