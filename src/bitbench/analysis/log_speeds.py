"""The figures of one workload, laid out as they were measured: by config, block and round.

A block contains one fresh start of each config, a round one trial of each. Where trials of a config follow each
other instead of alternating, a round is the trial's place among those of its start that count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
