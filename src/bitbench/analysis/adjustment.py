"""Taking the speed of the machine out of the figures, as far as a probe between the trials saw it.

A probe is a fixed piece of work, timed before and after each trial while all engines rest. Configs depend on the
machine's speed to different degrees, so each has a slope of its own. Few rounds say little about it; it is shrunk
towards the slope that all have in common:

    γ    = Σ x·y / Σ x²        x, y: centred within each start; s²: variance of what it leaves
    γ_c  = k·Sxy_c/Sxx_c + (1 − k)·γ,   k = Sxx_c / (Sxx_c + s² / SLOPE_SD²)
    y'   = y − γ_c·(x − x̄)     x̄: over all trials of the workload, so ratios are those at the study's mean speed

The probe is a covariate and a diagnosis, never a reason to drop a trial.
"""

from dataclasses import dataclass

import numpy as np

from bitbench.analysis.distributions import f_tail
from bitbench.analysis.log_speeds import Floats, LogSpeeds
from bitbench.analysis.pairs import Flags

SLOPE_SD = 0.35  # of the slopes of configs: those of twelve kernels against the mean of the others were 0.43 to 1.5
LEAST_ROUNDS = 8  # of each config, over all blocks; the slope of fewer is noise
GUARD_LEVEL = 0.01


@dataclass(frozen=True, eq=False)
class Adjustment:
    """Figures at the machine's mean speed. `explained` is None where nothing was adjusted."""

    speeds: LogSpeeds
    explained: float | None  # share of the variance within starts that the probe accounts for


def machine_speed(before_s: Floats, after_s: Floats) -> Floats:
    """log speed of the machine around each trial, from the probe's seconds; all config × block × round.

    An engine may leave something behind that slows the probe: where the readings after some config differ from
    those after others, only the reading before counts, which the configs of a random order share alike.
    """
    before, after = np.log(before_s), np.log(after_s)
    return -before if _depends_on_config(after) else -(before + after) / 2


def adjust(speeds: LogSpeeds, machine: Floats) -> Adjustment:
    """`machine`: as from `machine_speed`. A trial without a reading is taken to have met the mean of its block."""
    values = speeds.values
    there = np.isfinite(values)
    if not np.isfinite(machine[there]).any() or there.sum((1, 2)).min() < LEAST_ROUNDS:
        return Adjustment(speeds, None)
    x = _complete(np.where(there, machine, np.nan), there)
    x_centred, y_centred = _centred(x, there), _centred(values, there)
    slopes = _slopes(x_centred, y_centred, degrees_of_freedom=int(there.sum() - there.any(2).sum() - 1))
    total = float((y_centred**2).sum())
    if slopes is None or total == 0:
        return Adjustment(speeds, None)
    left = float(((y_centred - slopes * x_centred) ** 2).sum())
    return Adjustment(LogSpeeds(speeds.configs, values - slopes * (x - x[there].mean())), 1 - left / total)


def _slopes(x: Floats, y: Floats, degrees_of_freedom: int) -> Floats | None:
    """One per config, shaped to be multiplied with values; None where the machine was always alike."""
    sxy, sxx = (x * y).sum((1, 2)), (x * x).sum((1, 2))
    if sxx.sum() == 0:
        return None
    common = sxy.sum() / sxx.sum()
    noise = ((y - common * x) ** 2).sum() / max(degrees_of_freedom, 1)
    # k·Sxy/Sxx + (1 − k)·γ with k = Sxx/(Sxx + prior), written so that Sxx may be 0.
    prior = noise / SLOPE_SD**2
    slopes = (sxy + prior * common) / np.where(sxx + prior > 0, sxx + prior, 1.0)
    return np.asarray(slopes[:, np.newaxis, np.newaxis])


def _complete(readings: Floats, there: Flags) -> Floats:
    """Missing readings of trials from the mean of their block, or of all."""
    known = np.isfinite(readings)
    counts = known.sum((0, 2))
    of_block = np.where(counts > 0, np.nansum(readings, axis=(0, 2)) / np.maximum(counts, 1), np.nanmean(readings))
    return np.where(there & ~known, of_block[np.newaxis, :, np.newaxis], readings)


def _centred(values: Floats, there: Flags) -> Floats:
    """Within each start; 0 where there is no trial."""
    counts = np.maximum(there.sum(2, keepdims=True), 1)
    means = np.where(there, values, 0.0).sum(2, keepdims=True) / counts
    return np.where(there, values - means, 0.0)


def _depends_on_config(after: Floats) -> bool:
    """F test of configs, with rounds as blocks: the machine's own drift is shared by the readings of a round."""
    by_round = after.reshape(len(after), -1)
    complete = by_round[:, np.isfinite(by_round).all(0)]
    configs, rounds = complete.shape
    if configs < 2 or rounds < 2:
        return False
    centred = complete - complete.mean(0)
    effects = centred.mean(1, keepdims=True)
    between = rounds * float((effects**2).sum()) / (configs - 1)
    within = float(((centred - effects) ** 2).sum()) / ((configs - 1) * (rounds - 1))
    if within == 0:
        return bool(between > 0)
    return f_tail(configs - 1, (configs - 1) * (rounds - 1), between / within) < GUARD_LEVEL
