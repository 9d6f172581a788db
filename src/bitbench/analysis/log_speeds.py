"""The figures of one workload, laid out as they were measured: by config, block and round; and what a ratio of two is.

A block contains one fresh start of each config, a round one trial of each. Where trials of a config follow each
other instead of alternating, a round is the trial's place among those of its start that count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp, isfinite, log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bitbench.analysis.distributions import t_p_value, t_reach
from bitbench.analysis.results.estimate import Estimate
from bitbench.study.plan import Config

Floats = npt.NDArray[np.float64]


class TrialKey(NamedTuple):
    """Which trial of a workload: of which config, in which block and round."""

    config: Config
    block: int
    round: int


@dataclass(frozen=True, eq=False)
class LogSpeeds:
    """log(figure) where more is better, −log(figure) where less is: larger always means faster."""

    configs: tuple[Config, ...]
    values: Floats  # config × block × round; NaN where there is no trial that counts


def log_speeds(figures: Mapping[TrialKey, float | None], *, higher_is_better: bool) -> LogSpeeds:
    """A figure that is missing or not positive has no logarithm, and is taken as missing."""
    configs = tuple(dict.fromkeys(turn.config for turn in figures))
    sign = 1.0 if higher_is_better else -1.0
    return LogSpeeds(configs, spread_out({turn: sign * _log(figure) for turn, figure in figures.items()}, configs))


def spread_out(values: Mapping[TrialKey, float], configs: tuple[Config, ...]) -> Floats:
    """As an array of config × block × round; blocks and rounds that no config has take no place."""
    row = {config: place for place, config in enumerate(configs)}
    block = {number: place for place, number in enumerate(sorted({turn.block for turn in values}))}
    round_ = {number: place for place, number in enumerate(sorted({turn.round for turn in values}))}
    out = np.full((len(row), len(block), len(round_)), np.nan)
    for turn, value in values.items():
        out[row[turn.config], block[turn.block], round_[turn.round]] = value
    return out


def _log(figure: float | None) -> float:
    return log(figure) if figure is not None and isfinite(figure) and figure > 0 else np.nan


@dataclass(frozen=True, kw_only=True)
class LogRatio:
    """A ratio of two speeds as a difference of logarithms, so that B against A is A against B with the sign turned:
    Student's t around `log_mean`."""

    log_mean: float
    standard_error: float
    degrees_of_freedom: float

    @cached_property
    def p_value(self) -> float:
        """Two-sided, of equal speeds."""
        if self.standard_error == 0:
            return float(self.log_mean == 0)
        return t_p_value(self.degrees_of_freedom, self.log_mean / self.standard_error)

    def half_width(self, confidence: float) -> float:
        """Of the interval, on the scale of logarithms."""
        return t_reach(self.degrees_of_freedom, confidence) * self.standard_error

    def ratio(self, confidence: float) -> Estimate:
        half = self.half_width(confidence)
        return Estimate(
            value=exp(self.log_mean),
            low=exp(self.log_mean - half),
            high=exp(self.log_mean + half),
            confidence=confidence,
            p_value=self.p_value,
        )
