"""What quantization does to behaviour: whether a variant is the baseline but for noise, and how long its texts stay so.

The **noise floor** is the divergence of the unquantized model from itself when only what should not matter is changed:
several requests at once instead of one, or the same weights on another engine. A variant is *equivalent* when its own
divergence exceeds the largest floor by less than the study's margin, with the study's confidence: the upper end of the
excess counts, window by window, so a study with little text says "inconclusive" and never "equivalent".
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations
from zlib import crc32

import numpy as np

from bitbench.analysis.divergence import Floats, Scores, divergence, scores_of
from bitbench.analysis.intervals import Resampler, sample
from bitbench.analysis.quality import baseline_of, same_text, window_means, with_interval
from bitbench.analysis.results.summary import QualityEstimate
from bitbench.features.behaviour.survival import Lifetimes, compare_survival, lifetimes, survival
from bitbench.features.behaviour.types import Behaviour, Equivalence, EquivalenceVerdict, NoiseFloor
from bitbench.records.quality import Condition, QualityRecord
from bitbench.records.study_records import StudyRecords
from bitbench.records.trial import Outcome
from bitbench.study.plan import Contender, Plan
from bitbench.study.quality import Quality

TOGETHER = "several requests at once"


def summarize_behaviour(of: StudyRecords) -> Behaviour | None:
    """None where a study has neither a noise floor nor continued texts."""
    known = _Known(of)
    floors = known.floors()
    lives = known.lifetimes()
    confidence = of.plan.study.measure.confidence
    curves = [survival(contender, one, confidence) for contender, one in lives.items()]
    drawn = [curve for curve in curves if curve is not None]
    if not (floors or drawn):
        return None
    return Behaviour(
        floors=tuple(floor.shown for floor in floors),
        equivalence=dict(known.equivalences(floors)),
        survival=tuple(drawn),
        pairs=tuple(compare_survival(lives, known.pairs([curve.contender for curve in drawn]))),
    )


def measured_under(condition: Condition, of: StudyRecords) -> dict[Contender, QualityRecord]:
    """The last measurement of each contender that succeeded."""
    fine = (record for record in of.quality if record.outcome is Outcome.OK)
    return {record.contender: record for record in fine if record.condition is condition}


class _Floor:
    """A noise floor with its divergence in each window."""

    def __init__(self, contender: Contender, changed: str, by_window: Floats, estimate: QualityEstimate) -> None:
        self.by_window = by_window
        self.shown = NoiseFloor(contender=contender, changed=changed, divergence=estimate)


class _Known:
    """What was measured well enough to be compared, by contender."""

    def __init__(self, of: StudyRecords) -> None:
        self._plan: Plan = of.plan
        self._alone = measured_under(Condition.ALONE, of)
        self._together = measured_under(Condition.TOGETHER, of)
        self._scores: Callable[[str], Scores] = cache(lambda record_id: scores_of(of.scores_of(by_id[record_id])))
        by_id = {record.id: record for record in of.quality}

    def floors(self) -> list[_Floor]:
        return [floor for contender in self._alone if self._is_baseline(contender) for floor in self._floors(contender)]

    def equivalences(self, floors: list[_Floor]) -> Iterator[tuple[str, Equivalence]]:
        """Of each quantized variant whose baseline has a floor."""
        quality = self._plan.study.quality or Quality()
        for contender, baseline in self._quantized():
            own = [floor for floor in floors if floor.shown.contender == baseline]
            by_window = self._divergence(self._alone[baseline], self._alone[contender]) if own else None
            if by_window is None:
                continue
            floor = max(own, key=lambda one: one.shown.divergence.value)
            excess = self._estimate(contender, by_window - floor.by_window)
            yield (
                contender.name,
                Equivalence(
                    floor=floor.shown.changed, excess=excess, verdict=_verdict(excess, quality.equivalence_margin)
                ),
            )

    def lifetimes(self) -> dict[Contender, Lifetimes]:
        return {
            contender: lifetimes(self._alone[contender].answers, self._alone[baseline].answers)
            for contender, baseline in self._quantized()
        }

    def pairs(self, contenders: list[Contender]) -> Iterator[tuple[Contender, Contender]]:
        """Those of one baseline."""
        for one, other in combinations(contenders, 2):
            if baseline_of(one, self._plan) == baseline_of(other, self._plan):
                yield one, other

    def _quantized(self) -> Iterator[tuple[Contender, Contender]]:
        """Each with its baseline, in the order of the plan."""
        for contender in self._plan.quality:
            baseline = baseline_of(contender, self._plan)
            if baseline not in (None, contender) and contender in self._alone and baseline in self._alone:
                yield contender, baseline

    def _floors(self, contender: Contender) -> Iterator[_Floor]:
        own = self._alone[contender]
        if contender in self._together:
            yield from self._floor(own, self._together[contender], TOGETHER)
        model = self._plan.variant(contender.variant).model
        for other, record in self._alone.items():
            is_same = self._is_baseline(other) and self._plan.variant(other.variant).model == model
            if other != contender and is_same:
                yield from self._floor(own, record, other.name)

    def _floor(self, own: QualityRecord, other: QualityRecord, changed: str) -> Iterator[_Floor]:
        by_window = self._divergence(own, other)
        if by_window is not None:
            yield _Floor(own.contender, changed, by_window, self._estimate(own.contender, by_window))

    def _divergence(self, own: QualityRecord, other: QualityRecord) -> Floats | None:
        """The mean of each window; None where they cannot be compared."""
        if not same_text(own, other):
            return None
        one, two = self._scores(own.id), self._scores(other.id)
        if not (one.is_finite and two.is_finite):
            return None
        return window_means(one.window, divergence(one, two))

    def _estimate(self, contender: Contender, by_window: Floats) -> QualityEstimate:
        seed = [self._plan.study.seed, crc32(contender.name.encode())]
        drawn = sample([by_window.tolist()], Resampler(np.random.default_rng(seed)))
        return with_interval(drawn, self._plan.study.measure.confidence, float)

    def _is_baseline(self, contender: Contender) -> bool:
        return baseline_of(contender, self._plan) == contender


def _verdict(excess: QualityEstimate, margin: float) -> EquivalenceVerdict:
    if excess.interval is None:
        return "inconclusive"
    if excess.interval.high <= margin:
        return "equivalent"
    return "different" if excess.interval.low > margin else "inconclusive"
