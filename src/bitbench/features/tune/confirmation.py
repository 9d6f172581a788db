"""What the confirmation of a search measures: starts and rounds for speed, windows for quality, from what is left of
the budget.

The number is fixed before the first of them is scored, so that no look bends the figures. It follows from windows
that were scored before: where their losses (nats per token) have the mean m and the standard deviation s, and the
limit is at ln(1 + limit), n windows decide with the probability POWER if

    (z(97.5 %) + z(POWER)) · s / √n  ≤  | ln(1 + limit) − m |

All of it is fixed before the first start.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, log1p

import numpy as np

from bitbench.analysis.budget import (
    BlockPlan,
    Design,
    measured_variance_components,
    plan_confirmation_blocks,
)
from bitbench.analysis.intervals import normal_quantile
from bitbench.analysis.precision import TARGET_PRECISION
from bitbench.analysis.quality import losses_of
from bitbench.analysis.ranking import model_group_speeds, ranking_model_groups
from bitbench.features.tune.types import Tune
from bitbench.planning.estimate import Estimator
from bitbench.records.folder import StudyRecords
from bitbench.running.block_planner import STOP_S, TOUCH_S
from bitbench.study.plan import Config
from bitbench.study.quality import MOST_WINDOWS, Quality
from bitbench.study.study import Count, Measure, Study

POWER = 0.9
# Of the windows that were scored before. Few of them know their own distance from the limit badly, so that a plan by
# it alone is often too short: tests/features/tune/test_tune_run.py simulates how often a limit is decided.
LEAST_TIMES, MOST_TIMES = 4, 32


def tune_confirmation_windows(
    losses: Sequence[float], limit: float, confidence: float, most: int
) -> int:
    """A multiple of the windows that `losses` are of, so that those halfway between them are others; no more than
    `most`, and 0 where that is less than there were."""
    distance, scored = abs(log1p(limit) - float(np.mean(losses))), len(losses)
    per_root = (normal_quantile((1 + confidence) / 2) + normal_quantile(POWER)) * float(
        np.std(losses, ddof=1)
    )
    needed = (per_root / distance) ** 2 if distance else inf
    times = min(max(needed / scored, LEAST_TIMES), MOST_TIMES)
    return scored * min(ceil(times), most // scored)


QUALITY_SHARE = 0.5  # of the time that is left, at most


@dataclass(frozen=True)
class ConfirmationPlanner:
    """Of the best of a search and its baseline. `scored_as`: whose quality the search measured for the best."""

    study: Study
    searched: StudyRecords
    estimator: Estimator  # that knows of the search's trials
    chosen: Config
    scored_as: Config
    baseline: Config
    left_s: float  # of the budget

    def plan(self) -> tuple[Measure, Quality | None]:
        """No quality where no limit asks for it, or the text has nothing fresh."""
        tune, asked = self.study.section(Tune), self.study.quality
        losses = losses_of(self.scored_as, self.searched)
        if tune is None or tune.max_quality_loss is None or asked is None or losses is None:
            return self._measure(self.left_s), None
        start_s = self.estimator.first_start_s(losses.baseline.config.engine) + STOP_S
        window_s = sum(record.duration_s for record in (losses.record, losses.baseline)) / len(
            losses.by_window
        )
        affordable = floor((QUALITY_SHARE * self.left_s - start_s) / max(window_s, 1e-6))
        # So many windows of the text lie between others and touch none of them; 0 where no text was scored.
        room = losses.record.corpus.room // 2 if losses.record.corpus else 0
        windows = tune_confirmation_windows(
            losses.by_window.tolist(),
            tune.max_quality_loss,
            self.study.measure.confidence,
            min(room, max(affordable, len(losses.by_window)), MOST_WINDOWS),
        )
        if windows == 0:
            return self._measure(self.left_s), None
        return self._measure(self.left_s - start_s - windows * window_s), _fresh(asked, windows)

    def _measure(self, left_s: float) -> Measure:
        """No look ends it early, so that nothing bends its figures."""
        old, planned = self.study.measure, self._blocks(left_s)
        rounds = min(planned.rounds, old.trials.max)
        return Measure(
            starts=Count(min=planned.blocks, max=planned.blocks),
            trials=Count(min=rounds, max=rounds),
            schedule=old.schedule,
            confidence=old.confidence,
            metric=old.metric,
        )

    def _blocks(self, left_s: float) -> BlockPlan:
        plan, both = self.searched.plan, (self.chosen, self.baseline)
        points = [point for point in plan.points if point.config in both]
        trials_s, warm_ups_s = (
            sum(map(self.estimator.trial_s, points)),
            sum(map(self.estimator.warm_up_s, points)),
        )
        starts_s = sum(self.estimator.start_s(config.engine) + STOP_S for config in both)
        first_s = sum(self.estimator.first_start_s(config.engine) + STOP_S for config in both)
        standings = {
            field: field.standing(self.searched.trials) for field in ranking_model_groups(plan)
        }
        return plan_confirmation_blocks(
            Design(configs=2, starts_s=starts_s + warm_ups_s, round_s=trials_s + 2 * TOUCH_S),
            left_s
            - max(
                0.0, first_s - starts_s
            ),  # a study's first starts take longer, and this is one of its own
            self.study.measure.confidence,
            measured_variance_components(model_group_speeds(standings)),
            target=TARGET_PRECISION,
        )


def _fresh(asked: Quality, windows: int) -> Quality:
    """Only what the limit needs, on text halfway between the windows of the search: with so many times as many, those
    lie at `times * offset` of the new distances."""
    times = windows // asked.windows
    return asked.model_copy(
        update={
            "windows": windows,
            "offset": (times * asked.offset + 0.5) % 1,
            "answer_tokens": 0,
            "turns": None,
            "noise_floor": False,
            "tasks": (),
            "lengths": (),
        }
    )
