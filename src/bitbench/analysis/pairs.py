"""How much faster one config is than another, from differences of log speeds within blocks, with degrees of freedom
lent by other pairs.

A block contains one fresh start of each config, a round one trial of each. Where trials of a config follow each other
instead of alternating, a round is the trial's place among those of its start that count.

Configs of a workload vary about alike, so they lend to each other in full (as in limma; Smyth 2004). Workloads may
not: trials of one request vary more than trials of 64. Each lends in proportion to how well its variance agrees with
that of the workload itself, (smaller / larger)², and then half, because the workloads of one start share its luck.
Without that proportion a workload with twice the spread of its neighbours made false claims in up to 12 % of
simulated studies; with it in at most 5 %, and the calm ones keep their narrow intervals.

Configs that run in the same block share the mood of the machine, so their difference is known better than either
figure. Of each pair a block gives one number, the mean over common rounds of the difference of log speeds:

    m = mean of b such numbers,   s² = their variance,   f = squared standard error of m from the rounds alone
    se² = max((d0·S² + (b − 1)·s²) / (d0 + b − 1) / b,  s² / b,  f),   df = d0 + b − 1

**Lent degrees of freedom.** Two or three blocks say little about s². The pooled variance S² of other pairs is worth d0
further degrees of freedom: those that the other configs of the workload add and then, up to the limit, some of other
workloads (see `lending`). s² / b is a floor for configs that vary more than the others, f for blocks that agree by
luck.

**Shifts.** Configs that were not resident together have no round in common. The baseline is beside every shift, so
they are compared by way of it, block by block: d_ij = d_i0 − d_j0. Such differences vary more; they lend only to each
other.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from math import exp, isfinite, log, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bitbench.analysis.intervals import t_p_value, t_reach
from bitbench.analysis.results.estimate import Estimate
from bitbench.study.plan import Config

Floats = npt.NDArray[np.float64]


class TrialKey(NamedTuple):
    """Which trial of a workload: of which config, in which block and round."""

    config: Config
    block: int
    round: int


@dataclass(frozen=True, eq=False)
class LogSpeeds:
    """log(figure) where more is better, −log(figure) where less is: larger always means faster."""

    configs: tuple[Config, ...]
    values: Floats  # config × block × round; NaN where there is no trial that counts


def log_speeds(figures: Mapping[TrialKey, float | None], *, higher_is_better: bool) -> LogSpeeds:
    """A figure that is missing or not positive has no logarithm, and is taken as missing."""
    configs = tuple(dict.fromkeys(turn.config for turn in figures))
    sign = 1.0 if higher_is_better else -1.0
    return LogSpeeds(configs, paired_values({turn: sign * _log(figure) for turn, figure in figures.items()}, configs))


def paired_values(values: Mapping[TrialKey, float], configs: tuple[Config, ...]) -> Floats:
    """As an array of config × block × round; blocks and rounds that no config has take no place."""
    row = {config: place for place, config in enumerate(configs)}
    block = {number: place for place, number in enumerate(sorted({turn.block for turn in values}))}
    round_ = {number: place for place, number in enumerate(sorted({turn.round for turn in values}))}
    out = np.full((len(row), len(block), len(round_)), np.nan)
    for turn, value in values.items():
        out[row[turn.config], block[turn.block], round_[turn.round]] = value
    return out


def _log(figure: float | None) -> float:
    return log(figure) if figure is not None and isfinite(figure) and figure > 0 else np.nan


@dataclass(frozen=True, kw_only=True)
class LogRatio:
    """A ratio of two speeds as a difference of logarithms, so that B against A is A against B with the sign turned:
    Student's t around `log_mean`."""

    log_mean: float
    standard_error: float
    degrees_of_freedom: float

    @cached_property
    def p_value(self) -> float:
        """Two-sided, of equal speeds."""
        if self.standard_error == 0:
            return float(self.log_mean == 0)
        return t_p_value(self.degrees_of_freedom, self.log_mean / self.standard_error)

    def half_width(self, confidence: float) -> float:
        """Of the interval, on the scale of logarithms."""
        return t_reach(self.degrees_of_freedom, confidence) * self.standard_error

    def ratio(self, confidence: float) -> Estimate:
        half = self.half_width(confidence)
        return Estimate(
            value=exp(self.log_mean),
            low=exp(self.log_mean - half),
            high=exp(self.log_mean + half),
            confidence=confidence,
            p_value=self.p_value,
        )


# Nothing varies quite alike: more than this many degrees of freedom narrow an interval by little (Student's t falls
# from 2.31 at 8 to 1.96) and would drown what a pair itself says of its variance.
LENDING_LIMIT = 8.0
SHARE_OF_OTHER_WORKLOADS = 0.5


@dataclass(frozen=True)
class Pool:
    """A variance, and the degrees of freedom that it rests on."""

    variance: float
    degrees_of_freedom: float


def lent_by_other_workloads(own: Pool, others: Iterable[Pool]) -> Pool:
    """What they lend together to the workload whose variance is `own`."""
    loans = [
        Pool(other.variance, SHARE_OF_OTHER_WORKLOADS * other.degrees_of_freedom * _agreement(own, other))
        for other in others
    ]
    return pool_variances(loans)


def pool_variances(pools: Iterable[Pool]) -> Pool:
    known = [pool for pool in pools if pool.degrees_of_freedom > 0]
    total = sum(pool.degrees_of_freedom for pool in known)
    if total == 0:
        return Pool(0.0, 0.0)
    return Pool(sum(pool.variance * pool.degrees_of_freedom for pool in known) / total, total)


def _agreement(own: Pool, other: Pool) -> float:
    smaller, larger = sorted((own.variance, other.variance))
    return (smaller / larger) ** 2 if larger > 0 else 1.0


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


@dataclass(frozen=True, kw_only=True)
class PairedRatio(LogRatio):
    """The speed of `first` / that of `second`: above 1 where `first` is faster, whatever the figure's own direction."""

    first: Config
    second: Config
    blocks: int

    def reversed(self) -> "PairedRatio":
        return replace(self, first=self.second, second=self.first, log_mean=-self.log_mean)


@dataclass(frozen=True)
class PairTable:
    """All pairs of one workload that have two blocks in common; `configs` also names those without such a pair."""

    configs: tuple[Config, ...]
    pairs: tuple[PairedRatio, ...]

    @cached_property
    def _by_name(self) -> dict[tuple[Config, Config], PairedRatio]:
        return {(pair.first, pair.second): pair for pair in self.pairs}

    def between(self, first: Config, second: Config) -> PairedRatio | None:
        """`first` / `second`, in whichever order the pair is kept."""
        if (kept := self._by_name.get((first, second))) is not None:
            return kept
        turned = self._by_name.get((second, first))
        return None if turned is None else turned.reversed()


def paired_ratios(study: Mapping[str, LogSpeeds], baseline: Config | None = None) -> dict[str, PairTable]:
    """The pairs of each workload of a study; workloads lend to each other."""
    contrasts = {workload: find_contrasts(speeds, baseline) for workload, speeds in study.items()}
    return {
        workload: PairTable(
            speeds.configs,
            tuple(
                pair
                for way, own in contrasts[workload].items()
                for pair in _pairs(speeds.configs, own, _loan(contrasts, workload, way))
            ),
        )
        for workload, speeds in study.items()
    }


def lent_degrees_of_freedom(configs: int, blocks: int) -> float:
    """What a pair is lent by the other configs of its workload, where each of them runs in every block."""
    return min(LENDING_LIMIT, (configs - 2) * (blocks - 1))


def _loan(contrasts: Mapping[str, Mapping[Way, Contrasts]], workload: str, way: Way) -> Pool:
    """From other workloads, of pairs that met in the same way."""
    pools = {name: Pool(own[way].pooled_variance, own[way].spare) for name, own in contrasts.items() if way in own}
    own = pools.pop(workload)
    return lent_by_other_workloads(own, pools.values())


def _pairs(configs: tuple[Config, ...], own: Contrasts, others: Pool) -> list[PairedRatio]:
    means = np.nanmean(own.by_block, axis=1)
    blocks = own.blocks
    from_own = np.clip(own.spare - (blocks - 1), 0, LENDING_LIMIT)
    from_others = np.minimum(LENDING_LIMIT - from_own, others.degrees_of_freedom)
    freedom = from_own + from_others + blocks - 1
    lent = from_own * own.pooled_variance + from_others * others.variance
    moderated = (lent + (blocks - 1) * own.variances) / freedom
    known = np.isfinite(own.from_rounds).sum(1)
    from_rounds = np.nansum(own.from_rounds, axis=1) / np.maximum(known, 1)
    squared = np.maximum(np.maximum(moderated, own.variances), from_rounds) / blocks
    return [
        PairedRatio(
            first=configs[own.first[place]],
            second=configs[own.second[place]],
            log_mean=float(means[place]),
            standard_error=sqrt(float(squared[place])),
            degrees_of_freedom=float(freedom[place]),
            blocks=int(blocks[place]),
        )
        for place in range(len(means))
    ]
