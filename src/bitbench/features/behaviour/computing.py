"""Whether a variant is indistinguishable from its baseline, and how long its texts and conversations stay so.

A text diverges at its first token that is another one. One that is the baseline's to its end was watched for only so
long, so it is censored there: it counts as the same up to its length, and says nothing about what would follow. Every
variant continues the same beginnings, which the tests do not use: shared beginnings make two curves more alike than
chance does, so what is claimed holds, and some differences are missed.

The **noise floor** is the divergence of the unquantized model from itself when only what should not matter is
changed: several requests at once instead of one, another start, or the same weights on another engine. What another
start does to a variant itself counts for it, too. A variant is *equivalent* when its own divergence exceeds the
largest floor by less than the study's margin, with the study's confidence: the upper end of the excess counts, window
by window, so a study with little text says "inconclusive" and never "equivalent". It is *within the floor* where it
does not exceed it significantly: the lower end of the excess is not above zero.

A conversation breaks at its first answer with a fault; one without a fault was watched to its last turn and is
censored there. All configs are asked the same prompts in every turn. The unquantized model breaks some conversations,
too: only the difference from it says something about quantization, by a log-rank test, and by how many valid turns
are lost conversation by conversation.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from bitbench.analysis.claims import holm
from bitbench.analysis.intervals import mean_t_interval
from bitbench.analysis.quality import (
    Floats,
    Integers,
    Scores,
    divergence,
    first_answer_difference,
    quality_baseline,
    same_text,
    short_quality_scores,
    window_means,
)
from bitbench.analysis.results.estimate import Estimate, Verdict, check_against_limit
from bitbench.features.behaviour.types import (
    Behaviour,
    Conversations,
    ConversationSurvival,
    Equivalence,
    EquivalenceVerdict,
    NoiseFloor,
    Survival,
    SurvivalPair,
    SurvivalStep,
    TurnComparison,
    TurnFault,
    TurnVerdict,
)
from bitbench.records.folder import StudyRecords
from bitbench.records.quality import Answer, Condition, ConversationRecord, QualityRecord
from bitbench.records.trial import Outcome
from bitbench.study.plan import Config, Plan
from bitbench.study.quality import Quality

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


def behaviour_lifetimes(answers: Sequence[Answer], baseline: Sequence[Answer]) -> Lifetimes:
    """Of the texts that both sides wrote."""
    others = {answer.prompt: answer.tokens for answer in baseline}
    both = [(answer.tokens, others[answer.prompt]) for answer in answers if answer.prompt in others]
    places = [(first_answer_difference(tokens, other), len(other)) for tokens, other in both]
    return Lifetimes(
        ended=tuple(place for place, _ in places if place is not None),
        lasted=tuple(length for place, length in places if place is None),
    )


def behaviour_survival(config: Config, of: Lifetimes, confidence: float) -> Survival | None:
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


TOGETHER, ANOTHER_START = "several requests at once", "another start"


def summarize_behaviour(of: StudyRecords) -> Behaviour | None:
    """None where a study has neither a noise floor nor continued texts."""
    known = _Known(of)
    floors = known.floors()
    lives = known.lifetimes()
    confidence = of.plan.study.measure.confidence
    curves = [behaviour_survival(config, lived, confidence) for config, lived in lives.items()]
    drawn = [curve for curve in curves if curve is not None]
    if not (floors or drawn):
        return None
    return Behaviour(
        floors=tuple(floor.shown for floor in floors),
        equivalence=dict(known.equivalences(floors)),
        survival=tuple(drawn),
        pairs=tuple(compare_survival(lives, known.pairs([curve.config for curve in drawn]))),
    )


def _measured_under(condition: Condition, of: StudyRecords) -> dict[Config, QualityRecord]:
    """The last measurement of each config that succeeded."""
    fine = (record for record in of.quality if record.outcome is Outcome.OK)
    return {record.config: record for record in fine if record.condition is condition}


class _Floor:
    """A noise floor with its divergence in each window that it was measured in."""

    def __init__(self, shown: NoiseFloor, windows: Integers, by_window: Floats) -> None:
        self.shown = shown
        self._windows, self._by_window = windows, by_window

    def excess(self, by_window: Floats) -> Floats:
        """What is beyond it in each window; its own mean stands for windows that it lacks."""
        floor = np.full(len(by_window), self._by_window.mean())
        floor[self._windows] = self._by_window
        return np.asarray(by_window - floor)


class _Known:
    """What was measured well enough to be compared, by config."""

    def __init__(self, of: StudyRecords) -> None:
        self._plan: Plan = of.plan
        self._alone = _measured_under(Condition.ALONE, of)
        self._changed = {
            ANOTHER_START: _measured_under(Condition.RESTARTED, of),
            TOGETHER: _measured_under(Condition.TOGETHER, of),
        }
        self._scores: Callable[[str], Scores] = cache(lambda record_id: short_quality_scores(of, by_id[record_id]))
        by_id = {record.id: record for record in of.quality}

    def floors(self) -> list[_Floor]:
        return [floor for config in self._alone for floor in self._floors(config)]

    def equivalences(self, floors: list[_Floor]) -> Iterator[tuple[str, Equivalence]]:
        """Of each quantized variant that has a floor, or whose baseline has one."""
        quality = self._plan.study.quality or Quality()
        for config, baseline in self._quantized():
            own = [floor for floor in floors if floor.shown.config in (baseline, config)]
            found = self._divergence(self._alone[baseline], self._alone[config]) if own else None
            if found is None:
                continue
            floor = max(own, key=lambda floor: floor.shown.divergence.value)
            excess = self._estimate(floor.excess(found[1]))
            yield (
                config.name,
                Equivalence(
                    floor=floor.shown.changed,
                    floor_divergence=floor.shown.divergence.value,
                    excess=excess,
                    verdict=_verdict(excess, quality.equivalence_margin),
                    within_floor=excess.interval is not None and not excess.is_above(0),
                ),
            )

    def lifetimes(self) -> dict[Config, Lifetimes]:
        return {
            config: behaviour_lifetimes(self._alone[config].answers, self._alone[baseline].answers)
            for config, baseline in self._quantized()
        }

    def pairs(self, configs: list[Config]) -> Iterator[tuple[Config, Config]]:
        """Those of one baseline."""
        for config, other in combinations(configs, 2):
            if quality_baseline(config, self._plan) == quality_baseline(other, self._plan):
                yield config, other

    def _quantized(self) -> Iterator[tuple[Config, Config]]:
        """Each with its baseline, in the order of the plan."""
        for config in self._plan.quality:
            baseline = quality_baseline(config, self._plan)
            if baseline not in (None, config) and config in self._alone and baseline in self._alone:
                yield config, baseline

    def _floors(self, config: Config) -> Iterator[_Floor]:
        own = self._alone[config]
        for changed, records in self._changed.items():
            if config in records:
                yield from self._floor(own, records[config], changed)
        if not self._is_baseline(config):
            return
        model = self._plan.variant(config.variant).model
        for other, record in self._alone.items():
            is_same = self._is_baseline(other) and self._plan.variant(other.variant).model == model
            if other != config and is_same:
                yield from self._floor(own, record, other.name)

    def _floor(self, own: QualityRecord, other: QualityRecord, changed: str) -> Iterator[_Floor]:
        found = self._divergence(own, other)
        if found is not None:
            shown = NoiseFloor(config=own.config, changed=changed, divergence=self._estimate(found[1]))
            yield _Floor(shown, *found)

    def _divergence(self, own: QualityRecord, other: QualityRecord) -> tuple[Integers, Floats] | None:
        """The windows of the second, and the mean of each; None where they cannot be compared."""
        if not same_text(own, other):
            return None
        changed = self._scores(other.id)
        windows = np.unique(changed.window)
        first = self._scores(own.id).among(windows)
        if not (first.is_finite and changed.is_finite):
            return None
        return windows, window_means(first.window, divergence(first, changed))

    def _estimate(self, by_window: Floats) -> Estimate:
        return mean_t_interval(by_window.tolist(), self._plan.study.measure.confidence)

    def _is_baseline(self, config: Config) -> bool:
        return quality_baseline(config, self._plan) == config


def _verdict(excess: Estimate, margin: float) -> EquivalenceVerdict:
    words: dict[Verdict, EquivalenceVerdict] = {Verdict.MET: "equivalent", Verdict.MISSED: "different"}
    return words.get(check_against_limit(excess, margin), "inconclusive")


# Of the baseline's conversations, after their first turn. With 6 of 24 left, a variant that breaks all of them is just
# told apart (6 against 0 of 24: p = 0.02); with fewer, not even that is.
LEAST_VALID = 0.25
MOST_FAULTS = 3  # kinds that are told

Records = Sequence[ConversationRecord]


def summarize_turn_behaviour(of: StudyRecords) -> Conversations | None:
    """None where no config has conversations enough for a curve."""
    known = _measured_under(Condition.ALONE, of)
    rows = behaviour_over_turns(
        {config: known[config].conversations for config in of.plan.quality if config in known}, of.plan
    )
    return Conversations(rows=rows) if rows else None


def behaviour_over_turns(of: Mapping[Config, Records], plan: Plan) -> tuple[ConversationSurvival, ...]:
    """Of those with conversations enough, in the order given."""
    lives = {config: _lifetimes(own) for config, own in of.items() if own}
    confidence = plan.study.measure.confidence
    curves = {config: behaviour_survival(config, lived, confidence) for config, lived in lives.items()}
    drawn = {config: curve for config, curve in curves.items() if curve is not None}
    pairs = list(_pairs(of, drawn, plan))
    p_values = [pair.p_value for pair in compare_survival(lives, pairs)]
    against = {
        config: _against(drawn[baseline], p_value, _fewer(of[config], of[baseline], plan), 1 - confidence)
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
        baseline = quality_baseline(config, plan)
        if baseline not in (None, config) and baseline in drawn and _same(of[config], of[baseline]):
            yield config, baseline


def _same(own: Records, other: Records) -> bool:
    """The same scripts: what is compared conversation by conversation."""
    return {(script.name, script.turns) for script in own} == {(script.name, script.turns) for script in other}


def _fewer(own: Records, others: Records, plan: Plan) -> Estimate:
    """Valid turns that the others have more, mean over conversations."""
    valid = {conversation.name: conversation.valid_turns for conversation in own}
    lost = [float(other.valid_turns - valid[other.name]) for other in others]
    return mean_t_interval(lost, plan.study.measure.confidence)


def _against(baseline: Survival, p_value: float, fewer: Estimate, alpha: float) -> TurnComparison:
    left_after_first = next((step.share for step in reversed(baseline.steps) if step.at <= 1), 1.0)
    verdict: TurnVerdict = "sooner" if fewer.value > 0 else "later"
    if left_after_first < LEAST_VALID:
        verdict = "inconclusive"
    elif p_value >= alpha:
        verdict = "no difference found"
    return TurnComparison(baseline=baseline.config, p_value=p_value, fewer=fewer, verdict=verdict)


def _faults(conversations: Records) -> Iterator[TurnFault]:
    answers = (answer for conversation in conversations for answer in conversation.answers)
    broken = [(answer.fault, answer.text) for answer in answers if answer.fault is not None]
    counted = Counter(fault for fault, _ in broken)
    for fault, count in counted.most_common(MOST_FAULTS):
        example = next(text for found, text in broken if found == fault)
        yield TurnFault(fault=fault, conversations=count, example=example)
