"""What may be claimed about the configs of a workload, all claims of a kind at once, and what each look at a running
study may spend on it.

Three questions, each a family of its own with its own allowed error:

1. Against the baseline: which configs are faster, which slower? Holm over the C − 1 ratios.
2. Which may be the best? A config is out when some other is above it at a one-sided α / (C − 1) (Hsu 1984, by the
   union bound); the set contains the true best.
3. The full ranking: Holm over all pairs.

**Equal within a margin.** Where that is asked for, a ratio whose whole interval lies within the margin is closed as
equal. Each ratio could then be claimed wrongly in one way or another, whatever is true, so Holm's later and easier
steps have no ground to stand on: families 1 and 3 use Bonferroni's level for all their claims.

A claim that was made at an earlier look stays (see `looks`).

A study is analysed after each block from the third on: of two blocks no data can say which config varies more. Each
analysis gives chance another opportunity, so the allowed error is divided: up to time t of a budget T, at most
α·(t/T)³ is spent, and the last one takes what is left. The sum never exceeds α, so whatever is claimed at any of them
is right with 95 % confidence (union bound), however many there were. The cube leaves most of it for the end, when most
is known.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations
from math import log

from bitbench.analysis.budget import another_block_fits
from bitbench.analysis.pairs import PairedRatio, PairTable
from bitbench.analysis.results.summary import AgainstBaseline
from bitbench.study.plan import Config
from bitbench.study.study import FEWEST_BLOCKS

Ordered = tuple[Config, Config]  # (faster, slower)


@dataclass(frozen=True)
class Claims:
    """All that is claimed about one workload so far."""

    configs: tuple[Config, ...]
    against_baseline: Mapping[Config, AgainstBaseline]  # of all but the baseline; empty without one
    possible_bests: frozenset[Config]
    told_apart: frozenset[Ordered]
    equal_pairs: frozenset[frozenset[Config]] = field(default_factory=frozenset)

    @property
    def ordered(self) -> frozenset[Ordered]:
        """What families 2 and 3 say together: where one possible best is left, it is faster than each other."""
        if len(self.possible_bests) != 1:
            return self.told_apart
        (best,) = self.possible_bests
        others = {
            other
            for other in self.configs
            if other != best and (other, best) not in self.told_apart
        }
        return self.told_apart | {(best, other) for other in others}


def nothing_claimed(configs: Sequence[Config], baseline: Config | None) -> Claims:
    others = [config for config in configs if config != baseline] if baseline in configs else []
    return Claims(
        configs=tuple(configs),
        against_baseline=dict.fromkeys(others, AgainstBaseline.UNDECIDED),
        possible_bests=frozenset(configs),
        told_apart=frozenset(),
    )


def claim(
    table: PairTable,
    baseline: Config | None,
    alpha: float,
    *,
    equal_within: float | None = None,
    earlier: Claims | None = None,
) -> Claims:
    """`alpha`: what each family may spend at this look. `equal_within`: 0.1 stands for 10 %."""
    before = earlier or nothing_claimed(table.configs, baseline)
    pairs = list(combinations(before.configs, 2))
    apart, equal = _claimed([claimable_pair(table, *pair) for pair in pairs], alpha, equal_within)
    return Claims(
        configs=before.configs,
        against_baseline=_against_baseline(table, baseline, before, alpha, equal_within),
        possible_bests=_possible_bests(table, before, alpha),
        told_apart=before.told_apart
        | {_ordered(pair) for pair in apart if not _is_closed(pair, before)},
        equal_pairs=before.equal_pairs
        | {frozenset((pair.first, pair.second)) for pair in equal if not _is_closed(pair, before)},
    )


def _against_baseline(
    table: PairTable,
    baseline: Config | None,
    before: Claims,
    alpha: float,
    equal_within: float | None,
) -> dict[Config, AgainstBaseline]:
    if baseline is None:
        return dict(before.against_baseline)
    asked = [claimable_pair(table, config, baseline) for config in before.against_baseline]
    apart, equal = _claimed(asked, alpha, equal_within)
    new = {pair.first: AgainstBaseline.EQUAL for pair in equal}
    new |= {
        pair.first: AgainstBaseline.FASTER if pair.log_mean > 0 else AgainstBaseline.SLOWER
        for pair in apart
    }
    return {
        config: new.get(config, said) if said is AgainstBaseline.UNDECIDED else said
        for config, said in before.against_baseline.items()
    }


def claimable_pair(table: PairTable, first: Config, second: Config) -> PairedRatio | None:
    """None where the two have too few blocks for a claim."""
    pair = table.between(first, second)
    return None if pair is None or pair.blocks < FIRST_LOOK else pair


def _claimed(
    asked: Sequence[PairedRatio | None], alpha: float, equal_within: float | None
) -> tuple[list[PairedRatio], list[PairedRatio]]:
    """Pairs that differ, and pairs that are equal. One that cannot be compared counts as asked all the same."""
    if equal_within is None:
        adjusted = holm([1.0 if pair is None else pair.p_value for pair in asked])
        return [
            pair for pair, p_value in zip(asked, adjusted, strict=True) if pair and p_value < alpha
        ], []
    level = alpha / max(len(asked), 1)
    known = [pair for pair in asked if pair]
    apart = [pair for pair in known if pair.p_value < level]
    within = (
        pair
        for pair in known
        if abs(pair.log_mean) + pair.half_width(1 - level) <= log(1 + equal_within)
    )
    return apart, [pair for pair in within if pair.p_value >= level]


def _possible_bests(table: PairTable, before: Claims, alpha: float) -> frozenset[Config]:
    level = alpha / max(len(before.configs) - 1, 1)
    known = [pair for pair in table.pairs if pair.blocks >= FIRST_LOOK]
    beaten = {_ordered(pair)[1] for pair in known if pair.p_value / 2 < level}
    # Claims of two looks may contradict each other, once in a while; there always is a best.
    return (before.possible_bests - beaten) or before.possible_bests


def _ordered(pair: PairedRatio) -> Ordered:
    return (pair.first, pair.second) if pair.log_mean > 0 else (pair.second, pair.first)


def _is_closed(pair: PairedRatio, claims: Claims) -> bool:
    both = (pair.first, pair.second)
    return (
        both in claims.told_apart
        or both[::-1] in claims.told_apart
        or frozenset(both) in claims.equal_pairs
    )


def tested_at(p_values: Sequence[float], error: float) -> list[float]:
    """The level at which Holm's procedure tests each, in the order given, where it may be wrong in this share of cases.

    An interval at 1 − level excludes "equal" exactly where the procedure rejects it, so that both say the same.
    """
    levels = [error] * len(p_values)
    level, rejects = error, True
    for step, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if rejects:  # the first that is not rejected ends the procedure
            level = error / (len(p_values) - step)
            rejects = p_values[place] < level
        levels[place] = level
    return levels


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values in the order given: any false answer is then as rare as the allowed error (Holm 1979)."""
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    for step, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        reached = max(reached, min(1.0, (len(p_values) - step) * p_values[place]))
        adjusted[place] = reached
    return adjusted


FIRST_LOOK = FEWEST_BLOCKS
SPENDING_POWER = 3


@dataclass(frozen=True)
class Look:
    """After `blocks` blocks; `alpha` is what each family of claims may spend."""

    blocks: int
    alpha: float
    is_last: bool  # another block, as long as this one, would not fit into the budget, or is not asked for


class End(StrEnum):
    """Why a study starts no further block."""

    DECIDED = "every question is decided"
    BUDGET = "the next block does not fit into the budget"


def claim_looks(
    block_ends_s: Sequence[float],
    budget_s: float,
    alpha: float,
    *,
    fewest_blocks: int = 2,
    most_blocks: int | None = None,
) -> list[Look]:
    """The looks after the blocks that are complete, by the time since the first start at which each ended.

    None follows the last one, even if a block was completed after it. `fewest_blocks` are run in any case, and looked
    at together; `most_blocks`: no more are run, whatever the budget has left. A study that ends before the first look
    has one with nothing to claim.
    """
    moments = []
    for blocks in range(max(2, fewest_blocks), len(block_ends_s) + 1):
        elapsed_s = block_ends_s[blocks - 1]
        next_s = elapsed_s - block_ends_s[blocks - 2]
        is_last = not another_block_fits(elapsed_s, next_s, budget_s) or blocks == most_blocks
        if is_last or blocks >= FIRST_LOOK:
            moments.append((blocks, elapsed_s / budget_s, is_last))
    return spend(alpha, moments)


def spend(alpha: float, moments: Iterable[tuple[int, float, bool]]) -> list[Look]:
    """`moments`: after how many blocks, at which share of what the study may take, and whether it is the last."""
    found: list[Look] = []
    spent = 0.0
    for blocks, share, is_last in moments:
        reached = alpha if is_last else alpha * share**SPENDING_POWER
        found.append(Look(blocks, reached - spent, is_last))
        spent = reached
        if is_last:
            break
    return found


def configs_with_open_claims(claims: Claims, baseline: Config | None) -> tuple[Config, ...]:
    """The configs of a workload that are not decided yet.

    A config whose ratio to the baseline is undecided; two that may both be the best, unless they are known to be
    equal within the margin; the baseline, while any config is to be compared with it.
    """
    undecided = {
        config
        for config, said in claims.against_baseline.items()
        if said is AgainstBaseline.UNDECIDED
    }
    rivals = {
        config
        for config in claims.possible_bests
        for other in claims.possible_bests
        if config != other and frozenset((config, other)) not in claims.equal_pairs
    }
    reference = {baseline} if undecided else set()
    return tuple(config for config in claims.configs if config in undecided | rivals | reference)


def end_by_claims(claims: Mapping[str, Claims], baseline: Config | None, look: Look) -> End | None:
    """Of a study, by what is claimed of each workload; None: another block follows."""
    if not any(configs_with_open_claims(of_workload, baseline) for of_workload in claims.values()):
        return End.DECIDED
    return End.BUDGET if look.is_last else None
