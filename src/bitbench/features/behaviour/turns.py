"""Turns until the first invalid JSON or tool call: curves of each config, and each variant beside its baseline.

A conversation breaks at its first answer with a fault; one without a fault was watched to its last turn and is censored
there. All configs are asked the same prompts in every turn. The unquantized model breaks some conversations, too:
only the difference from it says something about quantization, by a log-rank test, and by how many valid turns are lost
conversation by conversation.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from zlib import crc32

import numpy as np

from bitbench.analysis.intervals import Resampler, sample, with_interval
from bitbench.analysis.quality import baseline_of
from bitbench.analysis.results.estimate import Estimate
from bitbench.features.behaviour.equivalence import measured_under
from bitbench.features.behaviour.survival import Lifetimes, compare_survival, survival
from bitbench.features.behaviour.types import (
    Conversations,
    ConversationSurvival,
    Survival,
    TurnComparison,
    TurnFault,
    TurnVerdict,
)
from bitbench.records.quality import Condition, ConversationRecord
from bitbench.records.study_records import StudyRecords
from bitbench.study.plan import Config, Plan

# Of the baseline's conversations, after their first turn. With 6 of 24 left, a variant that breaks all of them is just
# told apart (6 against 0 of 24: p = 0.02); with fewer, not even that is.
LEAST_VALID = 0.25
MOST_FAULTS = 3  # kinds that are told

Records = Sequence[ConversationRecord]


def summarize_turns(of: StudyRecords) -> Conversations | None:
    """None where no config has conversations enough for a curve."""
    known = measured_under(Condition.ALONE, of)
    rows = curves_of({config: known[config].conversations for config in of.plan.quality if config in known}, of.plan)
    return Conversations(rows=rows) if rows else None


def curves_of(of: Mapping[Config, Records], plan: Plan) -> tuple[ConversationSurvival, ...]:
    """Of those with conversations enough, in the order given."""
    lives = {config: _lifetimes(own) for config, own in of.items() if own}
    confidence = plan.study.measure.confidence
    curves = {config: survival(config, lived, confidence) for config, lived in lives.items()}
    drawn = {config: curve for config, curve in curves.items() if curve is not None}
    pairs = list(_pairs(of, drawn, plan))
    p_values = [pair.p_value for pair in compare_survival(lives, pairs)]
    against = {
        config: _against(drawn[baseline], p_value, _fewer(config, of[config], of[baseline], plan), 1 - confidence)
        for (config, baseline), p_value in zip(pairs, p_values, strict=True)
    }
    return tuple(
        ConversationSurvival(
            config=config,
            turns=max(conversation.turns for conversation in of[config]),
            survival=curve,
            valid_turns=float(np.mean([conversation.valid_turns for conversation in of[config]])),
            faults=tuple(_faults(of[config])),
            against=against.get(config),
        )
        for config, curve in drawn.items()
    )


def _lifetimes(conversations: Records) -> Lifetimes:
    return Lifetimes(
        ended=tuple(conversation.broke_at for conversation in conversations if conversation.broke_at is not None),
        lasted=tuple(conversation.turns for conversation in conversations if conversation.broke_at is None),
    )


def _pairs(
    of: Mapping[Config, Records], drawn: Mapping[Config, Survival], plan: Plan
) -> Iterator[tuple[Config, Config]]:
    for config in drawn:
        baseline = baseline_of(config, plan)
        if baseline not in (None, config) and baseline in drawn and _same(of[config], of[baseline]):
            yield config, baseline


def _same(own: Records, other: Records) -> bool:
    """The same scripts: what is compared conversation by conversation."""
    return {(script.name, script.turns) for script in own} == {(script.name, script.turns) for script in other}


def _fewer(config: Config, own: Records, others: Records, plan: Plan) -> Estimate:
    """Valid turns that the others have more, mean over conversations."""
    valid = {conversation.name: conversation.valid_turns for conversation in own}
    lost = [float(other.valid_turns - valid[other.name]) for other in others]
    resampler = Resampler(np.random.default_rng([plan.study.seed, crc32(config.name.encode())]))
    return with_interval(sample([lost], resampler), plan.study.measure.confidence, float)


def _against(baseline: Survival, p_value: float, fewer: Estimate, alpha: float) -> TurnComparison:
    verdict = _verdict(p_value, fewer.value, _left_after_first(baseline), alpha)
    return TurnComparison(baseline=baseline.config, p_value=p_value, fewer=fewer, verdict=verdict)


def _verdict(p_value: float, fewer: float, left: float, alpha: float) -> TurnVerdict:
    if left < LEAST_VALID:
        return "inconclusive"
    if p_value >= alpha:
        return "no difference found"
    return "sooner" if fewer > 0 else "later"


def _left_after_first(curve: Survival) -> float:
    return next((step.share for step in reversed(curve.steps) if step.at <= 1), 1.0)


def _faults(conversations: Records) -> Iterator[TurnFault]:
    answers = (answer for conversation in conversations for answer in conversation.answers)
    broken = [(answer.fault, answer.text) for answer in answers if answer.fault is not None]
    counted = Counter(fault for fault, _ in broken)
    for fault, count in counted.most_common(MOST_FAULTS):
        example = next(text for found, text in broken if found == fault)
        yield TurnFault(fault=fault, conversations=count, example=example)
