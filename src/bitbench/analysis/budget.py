"""What a budget buys: how many blocks of how many rounds, and how exact ratios will then be.

Only blocks average over starts, and a block costs a start of every config; rounds average over trials and cost
little. For B blocks of R rounds a ratio is known, on the scale of logarithms, to about

    t(df, 97.5 %) · √(2·(σ_start² + σ_trial² / R) / B),    df as in `pairs`, of one workload

With B given, R follows from the budget; the B with the smallest such half width is taken. Once blocks were run, each
with rounds of its own, the same is asked of what is left: σ_trial² / R is then the mean over all B blocks.

**How much do starts vary, and how much trials?** By the differences that ratios are made of: a block's difference of
two configs has the variance 2·σ_start² + 2·σ_trial² / R, that of two trials of one round 2·σ_trial². What all configs
of a block share is in neither. Trials of a config that follow each other instead of alternating meet the
machine at different speeds: these then count as variation of starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, floor, inf, sqrt

import numpy as np

from bitbench.analysis.intervals import t_reach
from bitbench.analysis.pairs import LogSpeeds, find_contrasts, lent_degrees_of_freedom
from bitbench.study.study import FEWEST_BLOCKS


@dataclass(frozen=True)
class VarianceComponents:
    """Relative standard deviations of one config's figure."""

    start_sd: float  # from one start to the next
    trial_sd: float  # from one trial to the next within a start


# Before anything was measured: 494 trials of five studies on two cores of a cloud machine, less what blocks share.
FIRST_GUESS = VarianceComponents(start_sd=0.06, trial_sd=0.11)
# Two or three blocks may agree by luck; a plan that takes starts for exactly equal would never pay for another one.
LEAST_START_SD = 0.02
MOST_BLOCKS = 64  # beyond that t is normal to 2 %, and a study with so many starts needs no advice


@dataclass(frozen=True)
class Design:
    """What is to be measured, and how long its parts take."""

    configs: int
    starts_s: float  # once per block: start, warm-up and stop of each config
    round_s: float  # one trial of each config on each workload


@dataclass(frozen=True)
class BlockPlan:
    """`half_width` of a ratio between two configs is on the scale of logarithms."""

    blocks: int
    rounds: int
    half_width: float
    seconds: float

    @property
    def relative_half_width(self) -> float:
        """0.15: a ratio is known to about ±15 %."""
        return exp(self.half_width) - 1


def plan_blocks(
    design: Design,
    budget_s: float,
    confidence: float,
    components: VarianceComponents = FIRST_GUESS,
    *,
    done: Sequence[int] = (),
    fewest: int = FEWEST_BLOCKS,
    most: int = MOST_BLOCKS,
    most_rounds: float = inf,
) -> BlockPlan | None:
    """Of so many blocks, and of three at least where there may be as many, those included that are `done`, with so many
    rounds each; the rounds and seconds of a plan, and the budget, are of the others. None where that does not pay for
    the fewest with one round."""
    fewest = max(fewest, 2, min(FEWEST_BLOCKS, most), len(done) + 1)
    plans = []
    for blocks in range(fewest, max(fewest, min(most, MOST_BLOCKS)) + 1):
        block_s = budget_s / (blocks - len(done))
        rounds = floor(min((block_s - design.starts_s) / design.round_s, most_rounds))
        if rounds < 1:
            break
        plans.append(_plan(design, blocks, rounds, confidence, components, done=done))
    return min(plans, key=lambda plan: plan.half_width, default=None)


def plan_confirmation_blocks(
    design: Design,
    left_s: float,
    confidence: float,
    components: VarianceComponents,
    *,
    target: float,
) -> BlockPlan:
    """Of two configs: with the least of a quarter, a half and all of the time that is left with which a ratio will
    be known to the target; with all of it where none does. Where that pays for nothing, it takes the least it can."""
    plans = [
        plan_blocks(design, share * left_s, confidence, components) for share in (0.25, 0.5, 1.0)
    ]
    known = [plan for plan in plans if plan is not None]
    precise = [plan for plan in known if plan.relative_half_width <= target]
    if precise:
        return precise[0]
    return known[-1] if known else _plan(design, FEWEST_BLOCKS, 1, confidence, components)


def variance_components(study: Mapping[str, LogSpeeds]) -> VarianceComponents | None:
    """Pooled over pairs and workloads; None where no pair has two blocks, or no block two rounds."""
    every = [find_contrasts(speeds) for speeds in study.values()]
    found = [contrasts for contrasts in every if contrasts.blocks.size]
    weights = [int((own.blocks - 1).sum()) for own in found]
    of_rounds = np.concatenate([own.from_rounds.ravel() for own in found]) if found else np.empty(0)
    rounds = np.concatenate([own.rounds.ravel() for own in found]) if found else np.empty(0)
    known = np.isfinite(of_rounds)
    if not known.any():
        return None
    between = sum(
        own.pool.variance * weight for own, weight in zip(found, weights, strict=True)
    ) / sum(weights)
    of_trials = float(np.average(of_rounds[known] * rounds[known], weights=rounds[known] - 1))
    by_rounds = of_trials * float(np.mean(1 / rounds[rounds > 0]))
    return VarianceComponents(
        start_sd=sqrt(max(between - by_rounds, 0.0) / 2), trial_sd=sqrt(of_trials / 2)
    )


def measured_variance_components(study: Mapping[str, LogSpeeds]) -> VarianceComponents:
    """To plan the rest of a study with; the first guess where it has too few blocks."""
    found = variance_components(study)
    if found is None:
        return FIRST_GUESS
    return VarianceComponents(max(found.start_sd, LEAST_START_SD), found.trial_sd)


def _plan(
    design: Design,
    blocks: int,
    rounds: int,
    confidence: float,
    components: VarianceComponents,
    *,
    done: Sequence[int] = (),
) -> BlockPlan:
    new = blocks - len(done)
    per_trial = (sum(1 / each for each in done) + new / rounds) / blocks
    variance = 2 * (components.start_sd**2 + components.trial_sd**2 * per_trial) / blocks
    half_width = t_reach(
        lent_degrees_of_freedom(design.configs, blocks) + blocks - 1, confidence
    ) * sqrt(variance)
    return BlockPlan(blocks, rounds, half_width, new * (design.starts_s + rounds * design.round_s))


def another_block_fits(elapsed_s: float, next_s: float, budget_s: float) -> bool:
    """`next_s`: of a block as long as the last one."""
    return elapsed_s + next_s <= budget_s
