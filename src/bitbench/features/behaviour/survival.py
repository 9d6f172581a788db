"""How long greedy texts stay the baseline's, or conversations valid: Kaplan-Meier curves, and log-rank tests.

A text diverges at its first token that is another one. One that is the baseline's to its end was watched for only so
long, so it is censored there: it counts as the same up to its length, and says nothing about what would follow. Every
variant continues the same beginnings, which the tests do not use: shared beginnings make two curves more alike than
chance does, so what is claimed holds, and some differences are missed.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any

from bitbench.analysis.families import holm
from bitbench.analysis.quality import first_difference
from bitbench.features.behaviour.types import Survival, SurvivalPair, SurvivalStep
from bitbench.records.quality import Answer
from bitbench.study.plan import Config

if TYPE_CHECKING:
    from scipy.stats import CensoredData  # a second of imports: only where a curve is drawn

FEWEST = 8  # with fewer, the interval of a curve covers nearly everything


@dataclass(frozen=True)
class Lifetimes:
    """Tokens until a text diverged, or turns until a conversation broke; `lasted` are those that did not to their
    end."""

    ended: tuple[int, ...]
    lasted: tuple[int, ...]

    @property
    def watched(self) -> int:
        return len(self.ended) + len(self.lasted)

    @property
    def data(self) -> "CensoredData":
        from scipy.stats import CensoredData

        return CensoredData(uncensored=self.ended, right=self.lasted)


def lifetimes(answers: Sequence[Answer], baseline: Sequence[Answer]) -> Lifetimes:
    """Of the texts that both sides wrote."""
    others = {answer.prompt: answer.tokens for answer in baseline}
    both = [(answer.tokens, others[answer.prompt]) for answer in answers if answer.prompt in others]
    places = [(first_difference(tokens, other), len(other)) for tokens, other in both]
    return Lifetimes(
        ended=tuple(place for place, _ in places if place is not None),
        lasted=tuple(length for place, length in places if place is None),
    )


def survival(config: Config, of: Lifetimes, confidence: float) -> Survival | None:
    """None where there are too few to draw a curve."""
    if of.watched < FEWEST:
        return None
    from scipy.stats import ecdf

    curve = ecdf(of.data).sf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # no interval where none or all have ended: see `_ends`
        interval: Any = curve.confidence_interval(confidence_level=confidence, method="log-log")
    rows = zip(
        curve.quantiles, curve.probabilities, interval.low.probabilities, interval.high.probabilities, strict=True
    )
    steps = [
        _step(int(at), float(share), (float(low), float(high)), of.watched, confidence) for at, share, low, high in rows
    ]
    return Survival(
        config=config,
        watched=of.watched,
        ended=len(of.ended),
        median=_half((step.at, step.share) for step in steps),
        median_low=_half((step.at, step.low) for step in steps),
        median_high=_half((step.at, step.high) for step in steps),
        steps=tuple(steps),
    )


def compare_survival(of: Mapping[Config, Lifetimes], pairs: Iterable[tuple[Config, Config]]) -> list[SurvivalPair]:
    """Whether one of two lasts longer."""
    asked = list(pairs)
    p_values = [_p_value(of[config], of[other]) for config, other in asked]
    return [
        SurvivalPair(one=config, other=other, p_value=p_value)
        for (config, other), p_value in zip(asked, holm(p_values), strict=True)
    ]


def _p_value(own: Lifetimes, other: Lifetimes) -> float:
    if not (own.ended or other.ended):
        return 1.0  # nothing to tell them apart by
    from scipy.stats import logrank

    return float(logrank(x=own.data, y=other.data).pvalue)


def _step(at: int, share: float, interval: tuple[float, float], watched: int, confidence: float) -> SurvivalStep:
    low, high = interval
    if isnan(low) or isnan(high):
        low, high = _ends(share, watched, confidence)
    return SurvivalStep(at=at, share=share, low=low, high=high)


def _ends(share: float, watched: int, confidence: float) -> tuple[float, float]:
    """Where none or all have ended: the exact binomial interval."""
    rest = ((1 - confidence) / 2) ** (1 / watched)
    return (rest, 1.0) if share == 1.0 else (0.0, 1.0 - rest)


def _half(falls: Iterable[tuple[int, float]]) -> int | None:
    """From when on no more than half are left."""
    return next((at for at, share in falls if share <= 0.5), None)
