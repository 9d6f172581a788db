"""Claims about the configs of a workload, and the error that each interim analysis may spend.

There are three questions. Each is a family of claims with its own allowed error:

1. Compared with the baseline, which configs are faster and which slower? Holm over the C − 1
   ratios.
2. Which may be the best? A config is excluded if another is above it at a one-sided α / (C − 1).
   This is by the union bound (Hsu 1984). The set contains the true best.
3. The full ranking: Holm over all pairs.

**Equal within a margin.** If a margin is requested, a ratio whose whole interval lies within it is
closed as equal. Each ratio could then be claimed wrongly in one way or another, whatever is true.
Holm's later and easier steps would then not be valid, so families 1 and 3 use Bonferroni's level
for all their claims.

A claim that was made in an earlier interim analysis stays.

A study is analyzed after each block from the third on: two blocks cannot show which config varies
more. Each analysis gives chance another opportunity, so the allowed error is divided. Up to time t
of a budget T, at most α·(t/T)³ is spent, and the last analysis takes what is left. The sum never
exceeds α. All claims of all analyses are therefore right with 95 % confidence (union bound),
however many analyses there are. The cube leaves most of the error for the end, when most is known.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations
from math import log

from bitbench.analysis.budget import has_time_for_block
from bitbench.analysis.pairs import PairedRatio, PairTable
from bitbench.analysis.results.summary import AgainstBaseline
from bitbench.study.plan import Config
from bitbench.study.study import FEWEST_BLOCKS

Ordered = tuple[Config, Config]  # (faster, slower)


@dataclass(frozen=True)
class Claims:
    """All claims about one workload so far."""

    configs: tuple[Config, ...]
    against_baseline: Mapping[Config, AgainstBaseline]  # of all but the baseline; empty without one
    possible_bests: frozenset[Config]
    told_apart: frozenset[Ordered]
    equal_pairs: frozenset[frozenset[Config]] = field(default_factory=frozenset)

    @property
    def ordered(self) -> frozenset[Ordered]:
        """Return the pairs that families 2 and 3 order together.

        If one possible best is left, it is faster than each other config.
        """
        if len(self.possible_bests) != 1:
            return self.told_apart
        (best,) = self.possible_bests
        pairs = set(self.told_apart)
        for other in self.configs:
            if other != best and (other, best) not in self.told_apart:
                pairs.add((best, other))
        return frozenset(pairs)


def make_undecided_claims(configs: Sequence[Config], baseline: Config | None) -> Claims:
    """Return the claims before the first analysis: every question is undecided."""
    against_baseline: dict[Config, AgainstBaseline] = {}
    if baseline is not None and baseline in configs:
        against_baseline = dict.fromkeys(configs, AgainstBaseline.UNDECIDED)
        del against_baseline[baseline]
    return Claims(
        configs=tuple(configs),
        against_baseline=against_baseline,
        possible_bests=frozenset(configs),
        told_apart=frozenset(),
    )


def update_claims(
    table: PairTable,
    baseline: Config | None,
    alpha: float,
    *,
    equal_within: float | None = None,
    earlier: Claims | None = None,
) -> Claims:
    """Return the earlier claims and those that this analysis adds.

    `alpha` is the error that each family may spend. `equal_within` is a relative margin: 0.1 means
    10 %.
    """
    before = earlier or make_undecided_claims(table.configs, baseline)
    pairs = [find_claimable_pair(table, *pair) for pair in combinations(before.configs, 2)]
    apart, equal = _test_pairs(pairs, alpha, equal_within)
    told_apart = {_order_pair(pair) for pair in apart if not _is_closed(pair, before)}
    equal_pairs = {
        frozenset((pair.first, pair.second)) for pair in equal if not _is_closed(pair, before)
    }
    return Claims(
        configs=before.configs,
        against_baseline=_collect_baseline_claims(table, baseline, before, alpha, equal_within),
        possible_bests=_collect_possible_bests(table, before, alpha),
        told_apart=before.told_apart | told_apart,
        equal_pairs=before.equal_pairs | equal_pairs,
    )


def _collect_baseline_claims(
    table: PairTable,
    baseline: Config | None,
    before: Claims,
    alpha: float,
    equal_within: float | None,
) -> dict[Config, AgainstBaseline]:
    claims = dict(before.against_baseline)
    if baseline is None:
        return claims
    pairs = [find_claimable_pair(table, config, baseline) for config in claims]
    apart, equal = _test_pairs(pairs, alpha, equal_within)
    new = dict.fromkeys((pair.first for pair in equal), AgainstBaseline.EQUAL)
    for pair in apart:
        is_faster = pair.log_mean > 0
        new[pair.first] = AgainstBaseline.FASTER if is_faster else AgainstBaseline.SLOWER
    for config, earlier in claims.items():
        if earlier is AgainstBaseline.UNDECIDED:
            claims[config] = new.get(config, earlier)
    return claims


def find_claimable_pair(table: PairTable, first: Config, second: Config) -> PairedRatio | None:
    """Return the ratio of two configs, or None if they have too few blocks for a claim."""
    pair = table.between(first, second)
    return None if pair is None or pair.blocks < FIRST_LOOK else pair


def _test_pairs(
    pairs: Sequence[PairedRatio | None], alpha: float, equal_within: float | None
) -> tuple[list[PairedRatio], list[PairedRatio]]:
    """Return the pairs that differ and the pairs that are equal.

    A pair that cannot be compared (None) still counts as tested.
    """
    apart: list[PairedRatio] = []
    equal: list[PairedRatio] = []
    if equal_within is None:
        p_values = [1.0] * len(pairs)
        for index, pair in enumerate(pairs):
            if pair:
                p_values[index] = pair.p_value
        for pair, p_value in zip(pairs, adjust_p_values(p_values), strict=True):
            if pair and p_value < alpha:
                apart.append(pair)
        return apart, equal
    level = alpha / max(len(pairs), 1)
    for pair in filter(None, pairs):
        if pair.p_value < level:
            apart.append(pair)
        elif abs(pair.log_mean) + pair.half_width(1 - level) <= log(1 + equal_within):
            equal.append(pair)
    return apart, equal


def _collect_possible_bests(table: PairTable, before: Claims, alpha: float) -> frozenset[Config]:
    level = alpha / max(len(before.configs) - 1, 1)
    beaten = set()
    for pair in table.pairs:
        if pair.blocks >= FIRST_LOOK and pair.p_value / 2 < level:
            beaten.add(_order_pair(pair)[1])
    # Claims of two analyses may contradict each other, which is rare. There always is a best.
    return (before.possible_bests - beaten) or before.possible_bests


def _order_pair(pair: PairedRatio) -> Ordered:
    return (pair.first, pair.second) if pair.log_mean > 0 else (pair.second, pair.first)


def _is_closed(pair: PairedRatio, claims: Claims) -> bool:
    both = (pair.first, pair.second)
    return (
        both in claims.told_apart
        or both[::-1] in claims.told_apart
        or frozenset(both) in claims.equal_pairs
    )


def _iter_by_p_value(p_values: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Yield the index of each p-value, smallest first, with the number of tests that are left."""
    left = len(p_values)
    for index in sorted(range(left), key=p_values.__getitem__):
        yield index, left
        left -= 1


def compute_holm_levels(p_values: Sequence[float], error: float) -> list[float]:
    """Return the level at which Holm's procedure tests each p-value, in the order given.

    `error` is the allowed share of wrong answers. An interval at 1 − level excludes "equal" exactly
    if the procedure rejects it, so both say the same.
    """
    levels = [error] * len(p_values)
    level = error
    rejects = True
    for index, left in _iter_by_p_value(p_values):
        if rejects:  # the first that is not rejected ends the procedure
            level = error / left
            rejects = p_values[index] < level
        levels[index] = level
    return levels


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p-values in the order given.

    Any wrong answer among them is then as rare as the allowed error (Holm 1979).
    """
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    for index, left in _iter_by_p_value(p_values):
        reached = max(reached, min(1.0, left * p_values[index]))
        adjusted[index] = reached
    return adjusted


FIRST_LOOK = FEWEST_BLOCKS
SPENDING_POWER = 3


@dataclass(frozen=True)
class Look:
    """An interim analysis after `blocks` blocks. Each family of claims may spend `alpha`."""

    blocks: int
    alpha: float
    is_last: bool  # another block like this one does not fit into the budget or is not requested


class End(StrEnum):
    """Why a study starts no further block."""

    DECIDED = "every question is decided"
    BUDGET = "the next block does not fit into the budget"


def list_interim_analyses(
    block_ends_s: Sequence[float],
    budget_s: float,
    alpha: float,
    *,
    fewest_blocks: int = 2,
    most_blocks: int | None = None,
) -> list[Look]:
    """Return the interim analyses after the complete blocks.

    `block_ends_s` are the seconds from the first start to the end of each block. No analysis
    follows the last one, even if a block was completed after it. `fewest_blocks` are run in any
    case and analyzed together. No more than `most_blocks` are run, whatever the budget has left. A
    study that ends before the first analysis has one with nothing to claim.
    """
    moments = []
    for blocks in range(max(2, fewest_blocks), len(block_ends_s) + 1):
        elapsed_s = block_ends_s[blocks - 1]
        next_s = elapsed_s - block_ends_s[blocks - 2]
        is_last = not has_time_for_block(elapsed_s, next_s, budget_s) or blocks == most_blocks
        if is_last or blocks >= FIRST_LOOK:
            moments.append((blocks, elapsed_s / budget_s, is_last))
    return divide_error(alpha, moments)


def divide_error(alpha: float, moments: Iterable[tuple[int, float, bool]]) -> list[Look]:
    """Divide the error among interim analyses.

    Each moment has the number of blocks, the share of the study that is done, and whether it is the
    last one.
    """
    looks: list[Look] = []
    spent = 0.0
    for blocks, share, is_last in moments:
        reached = alpha if is_last else alpha * share**SPENDING_POWER
        looks.append(Look(blocks, reached - spent, is_last))
        spent = reached
        if is_last:
            break
    return looks


def list_undecided_configs(claims: Claims, baseline: Config | None) -> tuple[Config, ...]:
    """Return the configs of a workload that are not decided yet.

    These are configs whose ratio to the baseline is undecided, and the baseline while there are
    any. Two configs that may both be the best are also undecided, unless they are equal within the
    margin.
    """
    undecided: set[Config | None] = set()
    for config, comparison in claims.against_baseline.items():
        if comparison is AgainstBaseline.UNDECIDED:
            undecided.update((config, baseline))
    for pair in combinations(claims.possible_bests, 2):
        if frozenset(pair) not in claims.equal_pairs:
            undecided.update(pair)
    return tuple(config for config in claims.configs if config in undecided)


def end_by_claims(claims: Mapping[str, Claims], baseline: Config | None, look: Look) -> End | None:
    """Return why a study ends after an interim analysis, or None if another block follows.

    `claims` are by workload.
    """
    if not any(list_undecided_configs(of_workload, baseline) for of_workload in claims.values()):
        return End.DECIDED
    return End.BUDGET if look.is_last else None
