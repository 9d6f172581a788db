"""The number of blocks and rounds that a budget pays for, and the precision of the ratios.

Only blocks average over starts, and a block costs a start of every config. Rounds average over
trials and cost little. For B blocks of R rounds, the half width of a ratio on the log scale is
about

    t(df, 97.5 %) · √(2·(σ_start² + σ_trial² / R) / B),    df as in `pairs`, of one workload

For a given B, R follows from the budget. The B with the smallest half width is chosen. Once blocks
have been run, each with its own number of rounds, the same choice is made for the rest: σ_trial² /
R is then the mean over all B blocks.

**Variation of starts and of trials.** Both are estimated from the differences that ratios are made
of. A block's difference of two configs has the variance 2·σ_start² + 2·σ_trial² / R. The difference
of two trials of one round has the variance 2·σ_trial². Neither contains the variation that all
configs of a block share. Trials of a config that follow each other instead of alternating meet the
machine at different speeds, which then counts as variation of starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, floor, inf, sqrt

import numpy as np

from bitbench.analysis.intervals import compute_t_reach
from bitbench.analysis.pairs import LogSpeeds, estimate_pooled_freedom, find_contrasts
from bitbench.study.study import FEWEST_BLOCKS


@dataclass(frozen=True)
class VarianceComponents:
    """The relative standard deviations of one config's metric."""

    start_sd: float  # from one start to the next
    trial_sd: float  # from one trial to the next within a start


# Before anything was measured: 494 trials of five studies on two cores of a cloud machine, without
# the variation that blocks share.
FIRST_GUESS = VarianceComponents(start_sd=0.06, trial_sd=0.11)
# Two or three blocks may agree by luck. A plan that assumes exactly equal starts would never pay
# for another one.
LEAST_START_SD = 0.02
MOST_BLOCKS = 64  # beyond that t is normal to 2 %, and a study with so many starts needs no advice


@dataclass(frozen=True)
class Design:
    """The number of configs to measure, and how long the parts of a block take."""

    configs: int
    starts_s: float  # once per block: start, warm-up and stop of each config
    round_s: float  # one trial of each config on each workload


@dataclass(frozen=True)
class BlockPlan:
    """A number of blocks and rounds. `half_width` of a ratio is on the log scale."""

    blocks: int
    rounds: int
    half_width: float
    seconds: float

    @property
    def relative_half_width(self) -> float:
        """Return the half width as a share: 0.15 means about ±15 %."""
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
    """Return the plan with the smallest half width that the budget pays for.

    `done` has the rounds of each block that was run. `fewest` and `most` count these blocks too. At
    least three blocks are planned if `most` allows it. The budget, and the rounds and seconds of
    the plan, are for the other blocks. Return None if the budget does not pay for the fewest blocks
    with one round.
    """
    fewest = max(fewest, 2, min(FEWEST_BLOCKS, most), len(done) + 1)
    plans = []
    for blocks in range(fewest, max(fewest, min(most, MOST_BLOCKS)) + 1):
        block_s = budget_s / (blocks - len(done))
        rounds = floor(min((block_s - design.starts_s) / design.round_s, most_rounds))
        if rounds < 1:
            break
        plans.append(_make_block_plan(design, blocks, rounds, confidence, components, done=done))
    return min(plans, key=lambda plan: plan.half_width, default=None)


def plan_confirmation_blocks(
    design: Design,
    left_s: float,
    confidence: float,
    components: VarianceComponents,
    *,
    target: float,
) -> BlockPlan:
    """Return a plan to confirm the difference of two configs in the time that is left.

    It takes the least of a quarter, a half and all of the time with which a ratio reaches the
    target precision. If none does, it takes all of the time. If the time pays for nothing, it takes
    the smallest plan.
    """
    best = None
    for share in (0.25, 0.5, 1.0):
        plan = plan_blocks(design, share * left_s, confidence, components)
        if plan is not None:
            best = plan
            if plan.relative_half_width <= target:
                break
    return best or _make_block_plan(design, FEWEST_BLOCKS, 1, confidence, components)


def estimate_variance_components(study: Mapping[str, LogSpeeds]) -> VarianceComponents | None:
    """Return the components pooled over pairs and workloads.

    Return None if no pair has two blocks, or no block has two rounds.
    """
    contrasts = []
    for speeds in study.values():
        of_workload = find_contrasts(speeds)
        if of_workload.blocks.size:
            contrasts.append(of_workload)
    if not contrasts:
        return None
    from_rounds = np.concatenate([workload.from_rounds.ravel() for workload in contrasts])
    rounds = np.concatenate([workload.rounds.ravel() for workload in contrasts])
    is_repeated = np.isfinite(from_rounds)
    if not is_repeated.any():
        return None
    weights = []
    weighted_variances = []
    for workload in contrasts:
        weight = int((workload.blocks - 1).sum())
        weights.append(weight)
        weighted_variances.append(workload.pool.variance * weight)
    between = sum(weighted_variances) / sum(weights)
    repeated = rounds[is_repeated]
    of_trials = float(np.average(from_rounds[is_repeated] * repeated, weights=repeated - 1))
    by_rounds = of_trials * float(np.mean(1 / rounds[rounds > 0]))
    return VarianceComponents(
        start_sd=sqrt(max(between - by_rounds, 0.0) / 2), trial_sd=sqrt(of_trials / 2)
    )


def choose_variance_components(study: Mapping[str, LogSpeeds]) -> VarianceComponents:
    """Return the components to plan the rest of a study with.

    This is the first guess if the study has too few blocks.
    """
    components = estimate_variance_components(study)
    if components is None:
        return FIRST_GUESS
    return VarianceComponents(max(components.start_sd, LEAST_START_SD), components.trial_sd)


def _make_block_plan(
    design: Design,
    blocks: int,
    rounds: int,
    confidence: float,
    components: VarianceComponents,
    *,
    done: Sequence[int] = (),
) -> BlockPlan:
    new = blocks - len(done)
    per_trial = (sum(1 / done_rounds for done_rounds in done) + new / rounds) / blocks
    variance = 2 * (components.start_sd**2 + components.trial_sd**2 * per_trial) / blocks
    freedom = estimate_pooled_freedom(design.configs, blocks) + blocks - 1
    half_width = compute_t_reach(freedom, confidence) * sqrt(variance)
    return BlockPlan(blocks, rounds, half_width, new * (design.starts_s + rounds * design.round_s))


def has_time_for_block(elapsed_s: float, next_s: float, budget_s: float) -> bool:
    """Return True if a block of `next_s` seconds, as long as the last one, fits into the budget."""
    return elapsed_s + next_s <= budget_s
