"""Whether a variant is equivalent to its baseline within a margin, and how many of its conversations stay sound.

The **noise floor** is the divergence of a baseline from itself on the same engine when only what should not matter is
changed: another start. Without one it counts as 0, which makes a variant look worse and never better.

A variant is *equivalent* if its divergence exceeds the floor by less than the study's margin, with the study's
confidence and whatever the missing probability mass may add: the upper bound of the variant less the lower bound of
the floor, window by window, has an upper end below the margin. It is *different* if the lower bound less the upper
bound of the floor has a lower end beyond it. Otherwise it is *inconclusive*, for lack of text or of mass.

A conversation breaks at its first answer with a fault. All configs are asked the same prompts in every turn. The
unquantized model breaks some conversations, too: the exact test of pairs (McNemar) compares which conversations break
on one side alone, corrected for all variants of the study (Holm).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf

import numpy as np

from bitbench.analysis.claims import holm
from bitbench.analysis.divergence import (
    Divergence,
    Floats,
    Integers,
    Scores,
    bound_divergence,
    divergence_interval,
    lacks_mass,
    window_means,
)
from bitbench.analysis.quality import (
    quality_baseline,
    same_text,
    short_quality_scores,
)
from bitbench.analysis.results.estimate import Estimate, Verdict, check_against_limit
from bitbench.analysis.results.summary import TaskFlips
from bitbench.analysis.tasks import task_flips
from bitbench.features.behaviour.types import (
    Behaviour,
    Conversations,
    ConversationShare,
    Equivalence,
    EquivalenceVerdict,
    NoiseFloor,
    TurnComparison,
    TurnVerdict,
)
from bitbench.records.folder import StudyRecords
from bitbench.records.quality import Condition, ConversationRecord, QualityRecord
from bitbench.records.trial import Outcome
from bitbench.study.plan import Config, Plan
from bitbench.study.quality import Quality


def summarize_behaviour(of: StudyRecords) -> Behaviour | None:
    """None where a study has no noise floor."""
    known = _Known(of)
    floors = known.floors()
    if not floors:
        return None
    return Behaviour(
        floors=tuple(floor.shown for floor in floors), equivalence=dict(known.equivalences(floors))
    )


def _measured_under(condition: Condition, of: StudyRecords) -> dict[Config, QualityRecord]:
    """The last measurement of each config that succeeded."""
    fine = (record for record in of.quality if record.outcome is Outcome.OK)
    return {record.config: record for record in fine if record.condition is condition}


@dataclass(frozen=True)
class _WindowDivergence:
    """Both bounds of a divergence in each window that it was measured in."""

    windows: Integers
    lower: Floats
    upper: Floats

    @classmethod
    def of(cls, window: Integers, tokens: Divergence) -> "_WindowDivergence":
        return cls(
            np.unique(window),
            window_means(window, tokens.lower),
            window_means(window, tokens.upper),
        )

    def beyond(self, floor: "_WindowDivergence | None") -> "_WindowDivergence":
        """Return what exceeds a floor; its own mean stands for windows that it lacks."""
        if floor is None:
            return self
        least = np.full(len(self.windows), floor.lower.mean())
        most = np.full(len(self.windows), floor.upper.mean())
        own = np.isin(self.windows, floor.windows)
        least[own] = floor.lower
        most[own] = floor.upper
        return _WindowDivergence(self.windows, self.lower - most, self.upper - least)

    def estimate(self, confidence: float, least_value: float = 0.0) -> Estimate:
        return divergence_interval(self.lower, self.upper, confidence, least_value)


@dataclass(frozen=True)
class _Floor:
    shown: NoiseFloor
    by_window: _WindowDivergence


class _Known:
    """What was measured well enough to be compared, by config."""

    def __init__(self, of: StudyRecords) -> None:
        self._plan: Plan = of.plan
        self._confidence = of.plan.study.measure.confidence
        self._alone = _measured_under(Condition.ALONE, of)
        self._restarted = _measured_under(Condition.RESTARTED, of)
        self._scores: Callable[[str], Scores] = cache(
            lambda record_id: short_quality_scores(of, by_id[record_id])
        )
        by_id = {record.id: record for record in of.quality}

    def floors(self) -> list[_Floor]:
        found = [self._floor(config) for config in self._alone if config in self._restarted]
        return [floor for floor in found if floor is not None]

    def equivalences(self, floors: list[_Floor]) -> Iterator[tuple[str, Equivalence]]:
        """Yield the verdict of each quantized variant; none in a study without any floor."""
        quality = self._plan.study.quality or Quality()
        for config, baseline in self._quantized():
            found = self._divergence(self._alone[baseline], self._alone[config]) if floors else None
            if found is None:
                continue
            floor = _own_floor(baseline, floors)
            excess = found.beyond(floor.by_window if floor else None).estimate(
                self._confidence, -inf
            )
            verdict = _verdict(excess, quality.equivalence_margin)
            yield (
                config.name,
                Equivalence(
                    baseline=baseline,
                    floor=floor.shown if floor else None,
                    excess=excess,
                    verdict=verdict,
                    lacks_mass=verdict == "inconclusive"
                    and lacks_mass(excess, quality.equivalence_margin),
                ),
            )

    def _quantized(self) -> Iterator[tuple[Config, Config]]:
        """Each with its baseline, in the order of the plan."""
        for config in self._plan.quality:
            baseline = quality_baseline(config, self._plan)
            if baseline not in (None, config) and config in self._alone and baseline in self._alone:
                yield config, baseline

    def _floor(self, config: Config) -> _Floor | None:
        found = self._divergence(self._alone[config], self._restarted[config])
        if found is None:
            return None
        return _Floor(NoiseFloor(config=config, divergence=found.estimate(self._confidence)), found)

    def _divergence(self, own: QualityRecord, other: QualityRecord) -> _WindowDivergence | None:
        """Return it in the windows of the second; None where they cannot be compared."""
        if not same_text(own, other):
            return None
        changed = self._scores(other.id)
        first = self._scores(own.id).among(np.unique(changed.window))
        if not (first.is_finite and changed.is_finite):
            return None
        return _WindowDivergence.of(first.window, bound_divergence(first, changed))


def _own_floor(baseline: Config, floors: Sequence[_Floor]) -> _Floor | None:
    """Return the one floor that counts: the baseline's on its own engine; None where none was measured."""
    return next((floor for floor in floors if floor.shown.config == baseline), None)


def _verdict(excess: Estimate, margin: float) -> EquivalenceVerdict:
    words: dict[Verdict, EquivalenceVerdict] = {
        Verdict.MET: "equivalent",
        Verdict.MISSED: "different",
    }
    return words.get(check_against_limit(excess, margin), "inconclusive")


FEWEST = 8  # conversations; fewer tell nothing
# Of the baseline's conversations, valid to the end. With 6 of 24 left, a variant that breaks all of them is just told
# apart (p = 0.03); with fewer, not even that is.
LEAST_VALID = 0.25

Records = Sequence[ConversationRecord]


def summarize_turn_behaviour(of: StudyRecords) -> Conversations | None:
    """None where no config has conversations enough."""
    known = _measured_under(Condition.ALONE, of)
    rows = behaviour_over_turns(
        {config: known[config].conversations for config in of.plan.quality if config in known},
        of.plan,
    )
    return Conversations(rows=rows) if rows else None


def behaviour_over_turns(of: Mapping[Config, Records], plan: Plan) -> tuple[ConversationShare, ...]:
    """Of those with conversations enough, in the order given."""
    enough = {config: own for config, own in of.items() if len(own) >= FEWEST}
    confidence = plan.study.measure.confidence
    baselines = dict(_compared(enough, plan))
    flips = [
        _flips(enough[config], enough[baseline], confidence)
        for config, baseline in baselines.items()
    ]
    adjusted = holm([found.p_value for found in flips])
    against: dict[Config, TurnComparison] = {}
    for (config, baseline), found, p_value in zip(baselines.items(), flips, adjusted, strict=True):
        corrected = found.model_copy(update={"p_value": p_value})
        is_telling = _valid(enough[baseline]) >= LEAST_VALID * len(enough[baseline])
        verdict = _turn_verdict(corrected, 1 - confidence) if is_telling else "inconclusive"
        against[config] = TurnComparison(baseline=baseline, flips=corrected, verdict=verdict)
    return tuple(_share(config, own, against.get(config)) for config, own in enough.items())


def _share(config: Config, own: Records, against: TurnComparison | None) -> ConversationShare:
    return ConversationShare(
        config=config,
        turns=max(conversation.turns for conversation in own),
        conversations=len(own),
        valid=_valid(own),
        against=against,
    )


def _valid(own: Records) -> int:
    """Conversations without a fault."""
    return sum(conversation.broke_at is None for conversation in own)


def _compared(of: Mapping[Config, Records], plan: Plan) -> Iterator[tuple[Config, Config]]:
    """Each config with the baseline that was asked the same."""
    for config in of:
        baseline = quality_baseline(config, plan)
        if baseline not in (None, config) and baseline in of and _same(of[config], of[baseline]):
            yield config, baseline


def _flips(own: Records, others: Records, confidence: float) -> TaskFlips:
    is_valid = {conversation.name: conversation.broke_at is None for conversation in own}
    lost = sum(other.broke_at is None and not is_valid[other.name] for other in others)
    gained = sum(other.broke_at is not None and is_valid[other.name] for other in others)
    return task_flips(lost, gained, len(others), confidence)


def _turn_verdict(flips: TaskFlips, alpha: float) -> TurnVerdict:
    if flips.p_value >= alpha:
        return "no difference found"
    return "more" if flips.lost > flips.gained else "fewer"


def _same(own: Records, other: Records) -> bool:
    """The same scripts: what is compared conversation by conversation."""
    return {(script.name, script.turns) for script in own} == {
        (script.name, script.turns) for script in other
    }
