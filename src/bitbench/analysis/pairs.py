"""How much faster one config is than another: randomised blocks, with moderated variances of log speeds.

A block contains one fresh start of each config, a round one trial of each. Where trials of a config follow each other
instead of alternating, a round is the trial's place among those of its start that count. Configs of a block share the
mood of the machine, so their difference is known better than either figure. Of each pair a block gives one number, the
mean over common rounds of the difference of log speeds:

    m = mean of b such numbers,   s² = their variance,   f = squared standard error of m from the rounds alone
    se² = max((d·S² + (b − 1)·s²) / (d + b − 1) / b,  s² / b,  f),   df = d

**Pooled variance.** Two or three blocks say little about s², so it is moderated by S², which is pooled over the pairs
of the workload and has d degrees of freedom (as in limma; Smyth 2004). S² contains s², which therefore adds none of its
own. s² / b is a floor for configs that vary more than the others, f for blocks that agree by luck.

**A noisy baseline.** All ratios to the baseline share its starts: where these vary more than those of the others, and
looked even by luck, all of the ratios are wrong at once. So pairs with the baseline have a pool of their own. Its S² is
a sum of two variances, the baseline's and the others', and has the degrees of freedom of such a sum (Welch, 1947).

Workloads of a study do not lend to each other: they share the starts, and with them their luck. With six workloads half
of the other five's degrees of freedom made false claims in 6 to 14 % of simulated studies.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, isfinite, log, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bitbench.analysis.intervals import t_p_value, t_reach
from bitbench.analysis.results.estimate import Estimate
from bitbench.study.plan import Config

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


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
    return LogSpeeds(
        configs,
        _paired_values({turn: sign * _log(figure) for turn, figure in figures.items()}, configs),
    )


def _paired_values(values: Mapping[TrialKey, float], configs: tuple[Config, ...]) -> Floats:
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


# Nothing varies quite alike, and what is lent drowns what a pair itself says of its variance.
LENDING_LIMIT = 6.0
SHARE_OF_OTHER_WORKLOADS = 0.5


@dataclass(frozen=True)
class Pool:
    """A variance, and the degrees of freedom that it rests on."""

    variance: float
    degrees_of_freedom: float


def lent_by_other_workloads(own: Pool, others: Iterable[Pool]) -> Pool:
    """What they lend together to the workload whose variance is `own`."""
    loans = [
        Pool(
            other.variance,
            SHARE_OF_OTHER_WORKLOADS * other.degrees_of_freedom * _agreement(own, other),
        )
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


@dataclass(frozen=True, eq=False)
class Contrasts:
    """Pairs that met in rounds of at least two blocks."""

    first: Places
    second: Places
    by_block: Floats  # pair × block: difference of log speeds; NaN where the two did not meet
    from_rounds: (
        Floats  # variance of each of these by its rounds alone; NaN where it is of one round
    )
    rounds: Places  # of each of these

    def part(self, chosen: Flags) -> "Contrasts":
        return Contrasts(
            self.first[chosen],
            self.second[chosen],
            self.by_block[chosen],
            self.from_rounds[chosen],
            self.rounds[chosen],
        )

    def of(self, config: int) -> Flags:
        return np.asarray((self.first == config) | (self.second == config))

    @cached_property
    def blocks(self) -> Places:
        return np.asarray(np.isfinite(self.by_block).sum(1))

    @cached_property
    def variances(self) -> Floats:
        """Of the differences of each pair, over its blocks."""
        return np.asarray(np.nanvar(self.by_block, axis=1, ddof=1))

    @cached_property
    def pool(self) -> Pool:
        """Of configs that vary alike: the degrees of freedom are those that are left when each config has a mean and
        each block a shift."""
        if not self.blocks.size:
            return Pool(0.0, 0.0)
        weights = self.blocks - 1
        variance = float((self.variances * weights).sum() / weights.sum())
        there = np.isfinite(self.by_block)
        spare = sum(
            self._configs(there[:, block]) - 1
            for block in range(there.shape[1])
            if there[:, block].any()
        )
        return Pool(variance, spare - self._configs(np.any(there, axis=1)) + 1)

    def _configs(self, pairs: Flags) -> int:
        return np.union1d(self.first[pairs], self.second[pairs]).size


def find_contrasts(speeds: LogSpeeds) -> Contrasts:
    """All pairs with at least two blocks."""
    first, second = np.triu_indices(len(speeds.configs), 1)
    found = _differences(speeds.values[first] - speeds.values[second])
    every = Contrasts(first, second, found.means, found.variances, found.rounds)
    return every.part(every.blocks > 1)


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
    return _Differences(
        means, squares / np.where(rounds > 1, (rounds - 1) * rounds, np.nan), rounds
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


def paired_ratios(
    study: Mapping[str, LogSpeeds], baseline: Config | None = None
) -> dict[str, PairTable]:
    """The pairs of each workload of a study."""
    tables = {}
    for workload, speeds in study.items():
        pairs: list[PairedRatio] = []
        for family in _families(speeds, baseline):
            pairs += _pairs(speeds.configs, family)
        tables[workload] = PairTable(speeds.configs, tuple(pairs))
    return tables


@dataclass(frozen=True)
class _Family:
    """Pairs that lend to each other."""

    contrasts: Contrasts
    pool: Pool


def _families(speeds: LogSpeeds, baseline: Config | None) -> tuple[_Family, _Family]:
    """Of the pairs with the baseline, and of all others."""
    found = find_contrasts(speeds)
    place = speeds.configs.index(baseline) if baseline in speeds.configs else -1
    with_baseline = found.of(place)
    own, others = found.part(with_baseline), found.part(~with_baseline)
    return _Family(own, _pool_of_baseline(own, others.pool)), _Family(others, others.pool)


def _pool_of_baseline(own: Contrasts, others: Pool) -> Pool:
    """S² of its pairs is a sum of its own variance and that of the others, so that its degrees of freedom are those of
    a sum. What of S² the others account for is known from their pairs."""
    configs = own.blocks.size
    if not configs:
        return Pool(0.0, 0.0)
    variance = own.pool.variance
    blocks = float(own.blocks.max())
    of_others = min(others.variance / 2 * (configs - 1) / configs, variance)
    parts = (variance - of_others) ** 2 / (blocks - 1)
    if others.degrees_of_freedom:
        parts += of_others**2 / others.degrees_of_freedom
    return Pool(variance, variance**2 / parts if parts else own.pool.degrees_of_freedom)


def lent_degrees_of_freedom(configs: int, blocks: int) -> float:
    """What a ratio to the baseline is lent by the other configs of its workload, where all of them vary alike and each
    runs in every block."""
    others = configs - 1
    known = (others + 1) ** 2 / others**2 + max(others - 1, 0) / others**2
    return min(LENDING_LIMIT, (4 / known - 1) * (blocks - 1))


def _pairs(configs: tuple[Config, ...], own: _Family) -> list[PairedRatio]:
    found = own.contrasts
    means = np.nanmean(found.by_block, axis=1)
    blocks = found.blocks
    freedom = np.clip(own.pool.degrees_of_freedom, blocks - 1, blocks - 1 + LENDING_LIMIT)
    moderated = (freedom * own.pool.variance + (blocks - 1) * found.variances) / (
        freedom + blocks - 1
    )
    known = np.isfinite(found.from_rounds).sum(1)
    from_rounds = np.nansum(found.from_rounds, axis=1) / np.maximum(known, 1)
    squared = np.maximum(np.maximum(moderated, found.variances), from_rounds) / blocks
    return [
        PairedRatio(
            first=configs[found.first[place]],
            second=configs[found.second[place]],
            log_mean=float(means[place]),
            standard_error=sqrt(float(squared[place])),
            degrees_of_freedom=float(freedom[place]),
            blocks=int(blocks[place]),
        )
        for place in range(len(means))
    ]
