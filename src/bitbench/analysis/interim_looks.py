"""When a running study may look at its results, what each look may spend, and which configs continue after it.

A study looks after each block from the second on. Each look gives chance another opportunity, so the allowed error is
divided: up to time t of a budget T, at most α·t/T is spent, and the last look takes what is left. The sum never exceeds
α, so whatever is claimed at any look is right with 95 % confidence (union bound), however many looks there were.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bitbench.analysis.families import Claims
from bitbench.analysis.results.summary import AgainstBaseline
from bitbench.study.plan import Config

FIRST_LOOK = 2  # blocks: one difference has no variance


@dataclass(frozen=True)
class Look:
    """After `blocks` blocks; `alpha` is what each family of claims may spend."""

    blocks: int
    elapsed_s: float
    alpha: float
    is_last: bool  # another block, as long as this one, would not fit into the budget, or is not asked for


class End(StrEnum):
    """Why a study starts no further block."""

    DECIDED = "every question is decided"
    BUDGET = "the next block does not fit into the budget"


def looks(
    block_ends_s: Sequence[float],
    budget_s: float,
    alpha: float,
    kept_back_s: Sequence[float] | None = None,
    *,
    most_blocks: int | None = None,
) -> list[Look]:
    """The looks after the blocks that are complete, by the time since the first start at which each ended.

    None follows the last one, even if a block was completed after it. `kept_back_s`: of the budget, for what follows
    the last look, as each block shows it. `most_blocks`: no more are run, whatever the budget has left.
    """
    found: list[Look] = []
    spent = 0.0
    for blocks in range(FIRST_LOOK, len(block_ends_s) + 1):
        elapsed_s = block_ends_s[blocks - 1]
        next_s = elapsed_s - block_ends_s[blocks - 2] + (kept_back_s[blocks - 1] if kept_back_s else 0.0)
        is_last = not another_fits(elapsed_s, next_s, budget_s) or blocks == most_blocks
        reached = alpha if is_last else alpha * elapsed_s / budget_s
        found.append(Look(blocks, elapsed_s, reached - spent, is_last))
        spent = reached
        if is_last:
            break
    return found


def another_fits(elapsed_s: float, next_s: float, budget_s: float) -> bool:
    """`next_s`: of a block as long as the last one, and of what is kept back for after it."""
    return elapsed_s + next_s <= budget_s


def continuing(claims: Claims, baseline: Config | None) -> tuple[Config, ...]:
    """The configs of a workload that are not decided yet.

    A config whose ratio to the baseline is undecided; two that may both be the best, unless they are known to be
    equal within the margin; the baseline, while any config is to be compared with it.
    """
    undecided = {config for config, said in claims.against_baseline.items() if said is AgainstBaseline.UNDECIDED}
    rivals = {
        config
        for config in claims.possible_bests
        for other in claims.possible_bests
        if config != other and frozenset((config, other)) not in claims.equal_pairs
    }
    reference = {baseline} if undecided else set()
    return tuple(config for config in claims.configs if config in undecided | rivals | reference)


def end(claims: Mapping[str, Claims], baseline: Config | None, look: Look) -> End | None:
    """Of a study, by what is claimed of each workload; None: another block follows."""
    if not any(continuing(of_workload, baseline) for of_workload in claims.values()):
        return End.DECIDED
    return End.BUDGET if look.is_last else None
