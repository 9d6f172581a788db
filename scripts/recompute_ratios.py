"""Ratios with their intervals by docs/statistics.md, for `recompute`. Imports nothing of bitbench."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from recompute_records import Config, Study, Trial, starts_of
from recompute_t import CONFIDENCE, t_quantile

LENDING_LIMIT = 6.0  # most degrees of freedom beyond a pair's own
LOWER_IS_BETTER = ("latency_s", "ttft_s", "tpot_s")
Interval = tuple[float, float | None, float | None]  # value, low, high


def ratio_to_baseline(study: Study, config: Config, workload: str) -> Interval | None:
    """Return how many times as good as its baseline a config is: from common blocks, else from the means."""
    baseline = study.baseline_of(config)
    own_model = [
        trial for trial in study.trials if study.model(trial.config) == study.model(config)
    ]
    trials = [
        trial for trial in own_model if trial.workload == workload and study.metric in trial.metrics
    ]
    configs = list(dict.fromkeys(trial.config for trial in trials))
    if baseline not in configs or config not in configs:
        return None
    sign = -1.0 if study.metric in LOWER_IS_BETTER else 1.0
    differences = Pairs(log_speeds(trials, study.metric, sign), configs)
    paired = differences.ratio(config, baseline)
    return paired or unpaired_ratio(trials, config, baseline, study.metric, sign)


LogSpeeds = dict[Config, dict[int, dict[int, float]]]  # by config, block and round


def log_speeds(trials: Sequence[Trial], metric: str, sign: float) -> LogSpeeds:
    """Return the logarithm of each trial, larger where it is faster, by config, block and round."""
    speeds: LogSpeeds = {}
    taken = {
        (trial.config, trial.block, trial.round) for trial in trials if trial.round is not None
    }
    places: dict[tuple[Config, int], int] = {}
    for trial in trials:
        round_ = trial.round
        if round_ is None:
            round_ = places.get((trial.config, trial.block), 0)
            while (trial.config, trial.block, round_) in taken:
                round_ += 1
            places[trial.config, trial.block] = round_ + 1
        blocks = speeds.setdefault(trial.config, {}).setdefault(trial.block, {})
        blocks[round_] = sign * math.log(trial.metrics[metric])
    return speeds


@dataclass(frozen=True)
class Pair:
    """Two configs that met in two blocks or more."""

    first: Config
    second: Config
    by_block: Mapping[int, float]  # mean difference of log speeds
    from_rounds: Sequence[float]  # variances of these, by the rounds alone

    @property
    def blocks(self) -> int:
        return len(self.by_block)

    @property
    def variance(self) -> float:
        return statistics.variance(self.by_block.values())


class Pairs:
    """All pairs of a workload, with the variances that they share."""

    def __init__(self, speeds: LogSpeeds, configs: Sequence[Config]) -> None:
        found = [paired(speeds, *both) for both in combinations(configs, 2)]
        self._pairs = [pair for pair in found if pair.blocks > 1]

    def ratio(self, config: Config, baseline: Config) -> Interval | None:
        """Return config / baseline with its interval; None if they have no two blocks in common."""
        with_baseline = [pair for pair in self._pairs if baseline in (pair.first, pair.second)]
        others = [pair for pair in self._pairs if baseline not in (pair.first, pair.second)]
        own = [pair for pair in with_baseline if config in (pair.first, pair.second)]
        if not own:
            return None
        (pair,) = own
        variance, freedom = pool_of_baseline(with_baseline, others)
        spare = pair.blocks - 1
        freedom = min(max(freedom, spare), spare + LENDING_LIMIT)
        moderated = (freedom * variance + spare * pair.variance) / (freedom + spare)
        from_rounds = statistics.fmean(pair.from_rounds) if pair.from_rounds else 0.0
        error = math.sqrt(max(moderated, pair.variance, from_rounds) / pair.blocks)
        mean = statistics.fmean(pair.by_block.values())
        log_mean = mean if pair.first == config else -mean
        half = t_quantile(freedom, (1 + CONFIDENCE) / 2) * error
        return math.exp(log_mean), math.exp(log_mean - half), math.exp(log_mean + half)


def paired(speeds: LogSpeeds, first: Config, second: Config) -> Pair:
    """Return the differences of two configs in the blocks in which they have a round in common."""
    by_block: dict[int, float] = {}
    from_rounds: list[float] = []
    for block in speeds[first].keys() & speeds[second].keys():
        own, other = speeds[first][block], speeds[second][block]
        rounds = [own[round_] - other[round_] for round_ in own.keys() & other.keys()]
        if rounds:
            by_block[block] = statistics.fmean(rounds)
        if len(rounds) > 1:
            from_rounds.append(statistics.variance(rounds) / len(rounds))
    return Pair(first, second, by_block, from_rounds)


def pool(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Return the variance that pairs share, and its degrees of freedom: each config has a mean, each block a shift."""
    if not pairs:
        return 0.0, 0.0
    weights = [pair.blocks - 1 for pair in pairs]
    variance = sum(
        pair.variance * weight for pair, weight in zip(pairs, weights, strict=True)
    ) / sum(weights)
    blocks = {block for pair in pairs for block in pair.by_block}
    spare = sum(
        count_configs(pair for pair in pairs if block in pair.by_block) - 1 for block in blocks
    )
    return variance, spare - count_configs(pairs) + 1


def count_configs(pairs: Iterable[Pair]) -> int:
    """Return how many configs some pairs are made of."""
    return len({config for pair in pairs for config in (pair.first, pair.second)})


def pool_of_baseline(with_baseline: Sequence[Pair], others: Sequence[Pair]) -> tuple[float, float]:
    """Return the shared variance of pairs with the baseline: a sum of its own and that of the others (Welch)."""
    variance, own_freedom = pool(with_baseline)
    other_variance, other_freedom = pool(others)
    configs = len(with_baseline)
    blocks = max(pair.blocks for pair in with_baseline)
    of_others = min(other_variance / 2 * (configs - 1) / configs, variance)
    parts = (variance - of_others) ** 2 / (blocks - 1)
    if other_freedom:
        parts += of_others**2 / other_freedom
    return variance, variance**2 / parts if parts else own_freedom


# Ratios of configs that shared no two blocks


def unpaired_ratio(
    trials: Sequence[Trial], config: Config, baseline: Config, metric: str, sign: float
) -> Interval | None:
    """Return the ratio of two means; Welch's interval if both have several starts."""
    sides = [
        starts_of([trial for trial in trials if trial.config == own], metric)
        for own in (config, baseline)
    ]
    own_mean, other_mean = (
        statistics.fmean(map(statistics.fmean, side.values())) for side in sides
    )
    log_mean = sign * math.log(own_mean / other_mean)
    if min(len(side) for side in sides) < 2:
        return math.exp(log_mean), None, None
    errors = [(squared_error_of_log(list(side.values())), len(side) - 1) for side in sides]
    squared = sum(error for error, _ in errors)
    parts = sum(error**2 / freedom for error, freedom in errors)
    freedom = squared**2 / parts if parts else sum(freedom for _, freedom in errors)
    half = t_quantile(freedom, (1 + CONFIDENCE) / 2) * math.sqrt(squared)
    return math.exp(log_mean), math.exp(log_mean - half), math.exp(log_mean + half)


def squared_error_of_log(starts: Sequence[Sequence[float]]) -> float:
    """Return the squared error of the mean log: by starts, and at least what the trials explain."""
    logs = [[math.log(value) for value in start] for start in starts]
    count = len(logs)
    between = statistics.variance(statistics.fmean(start) for start in logs) / count
    spare = sum(len(start) - 1 for start in logs)
    if not spare:
        return between
    within = sum(statistics.pvariance(start) * len(start) for start in logs) / spare
    return max(between, within * sum(1 / len(start) for start in logs) / count**2)
