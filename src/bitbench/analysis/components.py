"""How much do starts vary, and how much trials? From the same differences that ratios are made of.

A block's difference of two configs has the variance 2·σ_start² + 2·σ_trial² / R, that of two trials of one round
2·σ_trial². What all configs of a block share is in neither. Trials of a config that follow each other instead of
alternating meet the machine at different speeds: these then count as variation of starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np

from bitbench.analysis.contrasts import Way, find_contrasts
from bitbench.analysis.log_speeds import LogSpeeds


@dataclass(frozen=True)
class VarianceComponents:
    """Relative standard deviations of one config's figure."""

    start_sd: float  # from one start to the next
    trial_sd: float  # from one trial to the next within a start


def variance_components(study: Mapping[str, LogSpeeds]) -> VarianceComponents | None:
    """Pooled over pairs and workloads; None where no pair has two blocks, or no block two rounds."""
    found = [ways[Way.DIRECT] for speeds in study.values() if Way.DIRECT in (ways := find_contrasts(speeds))]
    weights = [int((own.blocks - 1).sum()) for own in found]
    of_rounds = np.concatenate([own.from_rounds.ravel() for own in found]) if found else np.empty(0)
    rounds = np.concatenate([own.rounds.ravel() for own in found]) if found else np.empty(0)
    known = np.isfinite(of_rounds)
    if not known.any():
        return None
    between = sum(own.pooled_variance * weight for own, weight in zip(found, weights, strict=True)) / sum(weights)
    of_trials = float(np.average(of_rounds[known] * rounds[known], weights=rounds[known] - 1))
    by_rounds = of_trials * float(np.mean(1 / rounds[rounds > 0]))
    return VarianceComponents(start_sd=sqrt(max(between - by_rounds, 0.0) / 2), trial_sd=sqrt(of_trials / 2))
