"""Whether a variant is indistinguishable from its baseline, and how long its texts stay so.

The **noise floor** is the divergence of the unquantized model from itself when only what should not matter is changed:
several requests at once instead of one, another start, or the same weights on another engine. What another start does
to a variant itself counts for it, too. A variant is *equivalent* when its own divergence exceeds the largest floor by
less than the study's margin, with the study's confidence: the upper end of the excess counts, window by window, so a
study with little text says "inconclusive" and never "equivalent". It is *within the floor* where it does not exceed it
significantly: the lower end of the excess is not above zero.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations
from zlib import crc32

import numpy as np

from bitbench.analysis.divergence import Floats, Integers, Scores, divergence
from bitbench.analysis.intervals import Resampler, sample, with_interval
from bitbench.analysis.quality import baseline_of, same_text, short_scores, window_means
from bitbench.analysis.results.estimate import Estimate, Verdict, check
from bitbench.features.behaviour.survival import Lifetimes, compare_survival, lifetimes, survival
from bitbench.features.behaviour.types import Behaviour, Equivalence, EquivalenceVerdict, NoiseFloor
from bitbench.records.quality import Condition, QualityRecord
from bitbench.records.study_records import StudyRecords
from bitbench.records.trial import Outcome
from bitbench.study.plan import Config, Plan
from bitbench.study.quality import Quality

TOGETHER, ANOTHER_START = "several requests at once", "another start"


def summarize_behaviour(of: StudyRecords) -> Behaviour | None:
    """None where a study has neither a noise floor nor continued texts."""
    known = _Known(of)
    floors = known.floors()
    lives = known.lifetimes()
    confidence = of.plan.study.measure.confidence
    curves = [survival(config, lived, confidence) for config, lived in lives.items()]
    drawn = [curve for curve in curves if curve is not None]
    if not (floors or drawn):
        return None
    return Behaviour(
        floors=tuple(floor.shown for floor in floors),
        equivalence=dict(known.equivalences(floors)),
        survival=tuple(drawn),
        pairs=tuple(compare_survival(lives, known.pairs([curve.config for curve in drawn]))),
    )


def measured_under(condition: Condition, of: StudyRecords) -> dict[Config, QualityRecord]:
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
        self._alone = measured_under(Condition.ALONE, of)
        self._changed = {
            ANOTHER_START: measured_under(Condition.RESTARTED, of),
            TOGETHER: measured_under(Condition.TOGETHER, of),
        }
        self._scores: Callable[[str], Scores] = cache(lambda record_id: short_scores(of, by_id[record_id]))
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
            excess = self._estimate(config, floor.excess(found[1]))
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
            config: lifetimes(self._alone[config].answers, self._alone[baseline].answers)
            for config, baseline in self._quantized()
        }

    def pairs(self, configs: list[Config]) -> Iterator[tuple[Config, Config]]:
        """Those of one baseline."""
        for config, other in combinations(configs, 2):
            if baseline_of(config, self._plan) == baseline_of(other, self._plan):
                yield config, other

    def _quantized(self) -> Iterator[tuple[Config, Config]]:
        """Each with its baseline, in the order of the plan."""
        for config in self._plan.quality:
            baseline = baseline_of(config, self._plan)
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
            shown = NoiseFloor(config=own.config, changed=changed, divergence=self._estimate(own.config, found[1]))
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

    def _estimate(self, config: Config, by_window: Floats) -> Estimate:
        seed = [self._plan.study.seed, crc32(config.name.encode())]
        drawn = sample([by_window.tolist()], Resampler(np.random.default_rng(seed)))
        return with_interval(drawn, self._plan.study.measure.confidence, float)

    def _is_baseline(self, config: Config) -> bool:
        return baseline_of(config, self._plan) == config


def _verdict(excess: Estimate, margin: float) -> EquivalenceVerdict:
    words: dict[Verdict, EquivalenceVerdict] = {Verdict.MET: "equivalent", Verdict.MISSED: "different"}
    return words.get(check(excess, margin), "inconclusive")
