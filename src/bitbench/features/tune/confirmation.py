"""The plan of a search's confirmation, from the rest of the budget: starts and rounds for speed,
and windows for quality.

The number of windows is fixed before the first one is scored, so no interim analysis biases the
result. It follows from the windows of the search. If their losses (nats per token) have the mean m
and the standard deviation s, and the limit is at ln(1 + limit), n windows decide with the
probability POWER if

    (z(97.5 %) + z(POWER)) · s / √n  ≤  | ln(1 + limit) − m |

Everything is fixed before the first start.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, log1p

import numpy as np

from bitbench.analysis.budget import (
    BlockPlan,
    Design,
    choose_variance_components,
    plan_confirmation_blocks,
)
from bitbench.analysis.intervals import compute_normal_quantile
from bitbench.analysis.precision import TARGET_PRECISION
from bitbench.analysis.quality import find_losses
from bitbench.analysis.ranking import collect_group_speeds, list_model_groups
from bitbench.features.tune.types import Tune
from bitbench.planning.estimate import Estimator
from bitbench.records.folder import StudyRecords
from bitbench.running.block_planner import STOP_S, TOUCH_S
from bitbench.study.plan import Config
from bitbench.study.quality import MOST_WINDOWS, Quality
from bitbench.study.study import Count, Measure, Study

POWER = 0.9
# Multiples of the search's windows. Few windows estimate their distance from the limit badly, so a
# plan by it alone is often too short. tests/features/tune/test_tune_run.py simulates how often a
# limit is decided.
LEAST_TIMES = 4
MOST_TIMES = 32


def count_confirmation_windows(
    losses: Sequence[float], limit: float, confidence: float, most: int
) -> int:
    """Return how many windows to score: a multiple of the number of `losses`, so that the windows
    halfway between the scored ones are fresh text. Return 0 if `most` is below that number."""
    scored = len(losses)
    distance = abs(log1p(limit) - float(np.mean(losses)))
    quantiles = compute_normal_quantile((1 + confidence) / 2) + compute_normal_quantile(POWER)
    per_root = quantiles * float(np.std(losses, ddof=1))
    needed = (per_root / distance) ** 2 if distance else inf
    times = min(max(needed / scored, LEAST_TIMES), MOST_TIMES)
    return scored * min(ceil(times), most // scored)


QUALITY_SHARE = 0.5  # largest share of the remaining time for quality


@dataclass(frozen=True)
class ConfirmationPlanner:
    """A planner of the confirmation of a search's winner against the baseline. `scored_as` is the
    config whose quality the search measured for the winner."""

    study: Study
    searched: StudyRecords
    estimator: Estimator  # has the times of the search's trials
    chosen: Config
    scored_as: Config
    baseline: Config
    left_s: float  # rest of the budget

    def plan(self) -> tuple[Measure, Quality | None]:
        """Return the settings for speed and for quality. Quality is None if the study does not
        limit its loss, if the search has not measured it, or if the text has too few other windows
        to score."""
        tune = self.study.section(Tune)
        quality = self.study.quality
        losses = find_losses(self.scored_as, self.searched)
        if tune is None or tune.max_quality_loss is None or quality is None or losses is None:
            return self._measure(self.left_s), None
        scored = len(losses.by_window)
        start_s = self.estimator.estimate_first_start_s(losses.baseline.config.engine) + STOP_S
        window_s = (losses.record.duration_s + losses.baseline.duration_s) / scored
        affordable = floor((QUALITY_SHARE * self.left_s - start_s) / max(window_s, 1e-6))
        # The most windows that fit halfway between others without overlap. 0 without a text.
        room = losses.record.corpus.room // 2 if losses.record.corpus else 0
        windows = count_confirmation_windows(
            losses.by_window.tolist(),
            tune.max_quality_loss,
            self.study.measure.confidence,
            min(room, max(affordable, scored), MOST_WINDOWS),
        )
        if windows == 0:
            return self._measure(self.left_s), None
        return self._measure(self.left_s - start_s - windows * window_s), _make_fresh_quality(
            quality, windows
        )

    def _measure(self, left_s: float) -> Measure:
        """Return fixed numbers of starts and rounds, so no interim analysis biases the result."""
        search = self.study.measure
        planned = self._blocks(left_s)
        rounds = min(planned.rounds, search.trials.max)
        return Measure(
            starts=Count(min=planned.blocks, max=planned.blocks),
            trials=Count(min=rounds, max=rounds),
            schedule=search.schedule,
            confidence=search.confidence,
            metric=search.metric,
        )

    def _blocks(self, left_s: float) -> BlockPlan:
        """Return the plan of blocks and rounds that fit into the time."""
        plan = self.searched.plan
        both = (self.chosen, self.baseline)
        points = [point for point in plan.points if point.config in both]
        trials_s = sum(map(self.estimator.trial_s, points))
        warm_ups_s = sum(map(self.estimator.estimate_warm_up_s, points))
        starts_s = sum(self.estimator.start_s(config.engine) + STOP_S for config in both)
        first_s = sum(
            self.estimator.estimate_first_start_s(config.engine) + STOP_S for config in both
        )
        # The first starts of a study take longer, and the confirmation is a study of its own.
        first_extra_s = max(0.0, first_s - starts_s)
        standings = {
            model_group: model_group.standing(self.searched.trials)
            for model_group in list_model_groups(plan)
        }
        return plan_confirmation_blocks(
            Design(configs=2, starts_s=starts_s + warm_ups_s, round_s=trials_s + 2 * TOUCH_S),
            left_s - first_extra_s,
            self.study.measure.confidence,
            choose_variance_components(collect_group_speeds(standings)),
            target=TARGET_PRECISION,
        )


def _make_fresh_quality(quality: Quality, windows: int) -> Quality:
    """Return the quality settings for the limit alone, on text halfway between the search's
    windows. With `times` as many windows, those start at `times * offset` of the new distances."""
    times = windows // quality.windows
    return quality.model_copy(
        update={
            "windows": windows,
            "offset": (times * quality.offset + 0.5) % 1,
            "answer_tokens": 0,
            "turns": None,
            "noise_floor": False,
            "tasks": (),
            "lengths": (),
        }
    )
