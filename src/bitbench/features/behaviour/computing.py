"""Decide whether a variant is equivalent to its baseline, and whether its conversations stay valid.

The **noise floor** is the divergence of a baseline from itself in another start on the same
engine. Nothing that should matter is changed. Without a floor it counts as 0, which makes a
variant look worse and never better.

A variant is *equivalent* if its divergence exceeds the floor by less than the study's margin. This
holds with the study's confidence and for any missing probability mass. The test takes the upper
bound of the variant less the lower bound of the floor, by window. Its upper end must be below the
margin. A variant is *different* if its lower bound less the upper bound of the floor has a lower
end above the margin. Otherwise it is *inconclusive*, because text or mass is missing.

A conversation breaks at its first answer with a fault. All configs get the same prompts in every
turn. The unquantized model also breaks some conversations. The exact test of pairs (McNemar)
compares which conversations break on one side alone. It is corrected for all variants of the study
(Holm).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf

import numpy as np

from bitbench.analysis.claims import adjust_p_values
from bitbench.analysis.divergence import (
    Divergence,
    Floats,
    Integers,
    Scores,
    compute_window_means,
    estimate_divergence,
    estimate_divergence_bounds,
    has_too_little_mass,
)
from bitbench.analysis.quality import (
    find_quality_baseline,
    has_same_text,
    read_short_scores,
)
from bitbench.analysis.results.estimate import Estimate, Verdict, check_against_limit
from bitbench.analysis.results.summary import TaskFlips
from bitbench.analysis.tasks import summarize_flips
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


def summarize_behaviour(records: StudyRecords) -> Behaviour | None:
    """Return floors and equivalence, or None if the study has no noise floor."""
    scored = _Known(records)
    floors = scored.floors()
    if not floors:
        return None
    return Behaviour(
        floors=tuple(floor.noise for floor in floors),
        equivalence=dict(scored.iter_equivalences(floors)),
    )


def _collect_measurements(
    condition: Condition, records: StudyRecords
) -> dict[Config, QualityRecord]:
    """Return the last successful measurement of each config."""
    last = {}
    for record in records.quality:
        if record.outcome is Outcome.OK and record.condition is condition:
            last[record.config] = record
    return last


@dataclass(frozen=True)
class _WindowDivergence:
    """The lower and upper bound of a divergence in each measured window."""

    windows: Integers
    lower: Floats
    upper: Floats

    @classmethod
    def of(cls, window: Integers, tokens: Divergence) -> "_WindowDivergence":
        return cls(
            np.unique(window),
            compute_window_means(window, tokens.lower),
            compute_window_means(window, tokens.upper),
        )

    def beyond(self, floor: "_WindowDivergence") -> "_WindowDivergence":
        """Return the excess over a floor. Windows that the floor lacks get its mean."""
        least = np.full(len(self.windows), floor.lower.mean())
        most = np.full(len(self.windows), floor.upper.mean())
        in_floor = np.isin(self.windows, floor.windows)
        least[in_floor] = floor.lower
        most[in_floor] = floor.upper
        return _WindowDivergence(self.windows, self.lower - most, self.upper - least)

    def estimate(self, confidence: float, least_value: float = 0.0) -> Estimate:
        return estimate_divergence(self.lower, self.upper, confidence, least_value)


@dataclass(frozen=True)
class _Floor:
    """A noise floor with its values by window."""

    noise: NoiseFloor
    by_window: _WindowDivergence


class _Known:
    """The measurements of a study that can be compared, by config."""

    def __init__(self, records: StudyRecords) -> None:
        self._plan: Plan = records.plan
        self._confidence = records.plan.study.measure.confidence
        self._alone = _collect_measurements(Condition.ALONE, records)
        self._restarted = _collect_measurements(Condition.RESTARTED, records)
        by_id = {record.id: record for record in records.quality}
        self._scores: Callable[[str], Scores] = cache(
            lambda record_id: read_short_scores(records, by_id[record_id])
        )

    def floors(self) -> list[_Floor]:
        """Return the noise floor of each config that was restarted."""
        floors = []
        for config, record in self._alone.items():
            if config not in self._restarted:
                continue
            divergence = self._compute_divergence(record, self._restarted[config])
            if divergence is not None:
                estimate = divergence.estimate(self._confidence)
                noise = NoiseFloor(config=config, divergence=estimate)
                floors.append(_Floor(noise, divergence))
        return floors

    def iter_equivalences(self, floors: Sequence[_Floor]) -> Iterator[tuple[str, Equivalence]]:
        """Yield each quantized variant with its verdict."""
        margin = (self._plan.study.quality or Quality()).equivalence_margin
        for config, baseline in self._quantized():
            divergence = self._compute_divergence(self._alone[baseline], self._alone[config])
            if divergence is None:
                continue
            floor = _find_floor(baseline, floors)
            noise = None
            if floor is not None:
                noise = floor.noise
                divergence = divergence.beyond(floor.by_window)
            excess = divergence.estimate(self._confidence, -inf)
            verdict = _judge_excess(excess, margin)
            equivalence = Equivalence(
                baseline=baseline,
                floor=noise,
                excess=excess,
                verdict=verdict,
                lacks_mass=verdict == "inconclusive" and has_too_little_mass(excess, margin),
            )
            yield config.name, equivalence

    def _quantized(self) -> Iterator[tuple[Config, Config]]:
        """Yield each compared config with its baseline, in the order of the plan."""
        for config in self._plan.quality:
            baseline = find_quality_baseline(config, self._plan)
            if baseline is None or baseline == config:
                continue
            if config in self._alone and baseline in self._alone:
                yield config, baseline

    def _compute_divergence(
        self, before: QualityRecord, after: QualityRecord
    ) -> _WindowDivergence | None:
        """Return the divergence in the windows of `after`, or None if they cannot be compared."""
        if not has_same_text(before, after):
            return None
        changed = self._scores(after.id)
        original = self._scores(before.id).select_windows(np.unique(changed.window))
        if not (original.is_finite and changed.is_finite):
            return None
        return _WindowDivergence.of(original.window, estimate_divergence_bounds(original, changed))


def _find_floor(baseline: Config, floors: Sequence[_Floor]) -> _Floor | None:
    """Return the floor of the baseline on its own engine, or None if it was not measured."""
    return next((floor for floor in floors if floor.noise.config == baseline), None)


def _judge_excess(excess: Estimate, margin: float) -> EquivalenceVerdict:
    verdicts: dict[Verdict, EquivalenceVerdict] = {
        Verdict.MET: "equivalent",
        Verdict.MISSED: "different",
    }
    return verdicts.get(check_against_limit(excess, margin), "inconclusive")


FEWEST = 8  # conversations: fewer show nothing
# Share of the baseline's conversations that must be valid to the end. With 6 of 24 valid, a variant
# that breaks all of them is just significantly different (p = 0.03). With fewer it is not.
LEAST_VALID = 0.25

Records = Sequence[ConversationRecord]


def summarize_turn_behaviour(records: StudyRecords) -> Conversations | None:
    """Return the conversations of each config, or None if no config has enough of them."""
    last = _collect_measurements(Condition.ALONE, records)
    conversations = {}
    for config in records.plan.quality:
        if config in last:
            conversations[config] = last[config].conversations
    rows = compare_conversations(conversations, records.plan)
    return Conversations(rows=rows) if rows else None


def compare_conversations(
    conversations: Mapping[Config, Records], plan: Plan
) -> tuple[ConversationShare, ...]:
    """Return a row for each config with enough conversations, in the given order."""
    enough: dict[Config, Records] = {}
    for config, scripts in conversations.items():
        if len(scripts) >= FEWEST:
            enough[config] = scripts
    confidence = plan.study.measure.confidence
    baselines = dict(_iter_compared(enough, plan))
    flips = []
    for config, baseline in baselines.items():
        flips.append(_count_flips(enough[config], enough[baseline], confidence))
    adjusted = adjust_p_values([pair.p_value for pair in flips])
    comparisons: dict[Config, TurnComparison] = {}
    for (config, baseline), pair, p_value in zip(baselines.items(), flips, adjusted, strict=True):
        corrected = pair.model_copy(update={"p_value": p_value})
        verdict: TurnVerdict = "inconclusive"
        if _count_valid(enough[baseline]) >= LEAST_VALID * len(enough[baseline]):
            verdict = _judge_turns(corrected, 1 - confidence)
        comparisons[config] = TurnComparison(baseline=baseline, flips=corrected, verdict=verdict)
    rows = []
    for config, scripts in enough.items():
        row = ConversationShare(
            config=config,
            turns=max(conversation.turns for conversation in scripts),
            conversations=len(scripts),
            valid=_count_valid(scripts),
            against=comparisons.get(config),
        )
        rows.append(row)
    return tuple(rows)


def _count_valid(conversations: Records) -> int:
    """Count the conversations without a fault."""
    return sum(conversation.broke_at is None for conversation in conversations)


def _iter_compared(
    conversations: Mapping[Config, Records], plan: Plan
) -> Iterator[tuple[Config, Config]]:
    """Yield each config with its baseline, if both had the same conversations."""
    for config, scripts in conversations.items():
        baseline = find_quality_baseline(config, plan)
        if baseline is None or baseline == config or baseline not in conversations:
            continue
        if _list_scripts(scripts) == _list_scripts(conversations[baseline]):
            yield config, baseline


def _list_scripts(conversations: Records) -> set[tuple[str, int]]:
    return {(conversation.name, conversation.turns) for conversation in conversations}


def _count_flips(conversations: Records, baseline: Records, confidence: float) -> TaskFlips:
    """Return how many conversations are valid for one of the two alone."""
    is_valid = {conversation.name: conversation.broke_at is None for conversation in conversations}
    lost = sum(other.broke_at is None and not is_valid[other.name] for other in baseline)
    gained = sum(other.broke_at is not None and is_valid[other.name] for other in baseline)
    return summarize_flips(lost, gained, len(baseline), confidence)


def _judge_turns(flips: TaskFlips, alpha: float) -> TurnVerdict:
    if flips.p_value >= alpha:
        return "no difference found"
    return "more" if flips.lost > flips.gained else "fewer"
