"""Did quality get worse? The same text, scored on both sides, compared token by token."""

from collections.abc import Sequence
from dataclasses import dataclass

from bitbench.analysis.changes import GateCondition, Pair, change_verdict
from bitbench.analysis.divergence import Scores
from bitbench.analysis.quality import (
    PERPLEXITY,
    RISE,
    last_quality_by_config,
    quality_estimates,
    short_quality_scores,
)
from bitbench.analysis.results.comparison import QUALITY, ChangeVerdict, ComparedPoint, GateResult, Unpaired
from bitbench.analysis.results.estimate import Estimate, Verdict
from bitbench.records.folder import StudyRecords
from bitbench.records.quality import QualityRecord
from bitbench.study.plan import Config, Point

# A rise below this is no loss that anybody would act on; it keeps another order of summation from being called worse.
SMALLEST_RISE = 0.001


@dataclass(frozen=True)
class MeasuredQuality:
    """The scored tokens of a config, and which text they are of."""

    windows_hash: str
    scores: Scores


@dataclass(frozen=True)
class QualityComparison:
    points: tuple[ComparedPoint, ...] = ()
    gates: tuple[GateResult, ...] = ()
    unpaired: tuple[Unpaired, ...] = ()


def quality_pairs(
    sides: tuple[StudyRecords, StudyRecords], pairs: Sequence[tuple[Config, Config]]
) -> list[tuple[Config, Config]]:
    """Those that at least one side measured."""
    before, after = (_scored(side) for side in sides)
    return [(own, other) for own, other in dict.fromkeys(pairs) if own in before or other in after]


def _scored(side: StudyRecords) -> dict[Config, QualityRecord]:
    """Those that left scored tokens."""
    found = last_quality_by_config(side)
    return {config: record for config, record in found.items() if record.scores_file is not None and record.corpus}


def _measured(side: StudyRecords, config: Config) -> MeasuredQuality | None:
    record = _scored(side).get(config)
    if record is None or record.corpus is None:
        return None
    return MeasuredQuality(record.corpus.windows_hash, short_quality_scores(side, record))


def compare_quality(
    sides: tuple[StudyRecords, StudyRecords],
    pairs: Sequence[tuple[Config, Config]],
    conditions: Sequence[GateCondition],
    *,
    confidence: float,
    asked: int,
) -> QualityComparison:
    """`asked`: how many limits are judged at once, those of speed included. `conditions` are those of perplexity."""
    points: list[ComparedPoint] = []
    gates: list[GateResult] = []
    unpaired: list[Unpaired] = []
    for own, other in quality_pairs(sides, pairs):
        first, second = _measured(sides[0], own), _measured(sides[1], other)
        pair, reason = Pair(_point(own), _point(other)), _why_not(first, second, sides)
        if reason is not None or first is None or second is None:
            unpaired.append(Unpaired(point=pair.after, reason=reason or "", was_lost=second is None))
            gates += [condition.result(pair, None, Verdict.INCONCLUSIVE, reason or "") for condition in conditions]
            continue
        points.append(_compared(pair, first, second, confidence))
        wide = quality_estimates(second.scores, first.scores, 1 - (1 - confidence) / asked)[RISE]
        gates += [_judged(condition, pair, wide) for condition in conditions]
    return QualityComparison(tuple(points), tuple(gates), tuple(unpaired))


def _why_not(
    first: MeasuredQuality | None, second: MeasuredQuality | None, sides: tuple[StudyRecords, StudyRecords]
) -> str | None:
    for measured, side in ((first, sides[0]), (second, sides[1])):
        if measured is None:
            return f"was not measured in {side.name}"
        if not measured.scores.is_finite:
            return f"has log-probabilities in {side.name} that are not finite"
    if first and second and first.windows_hash != second.windows_hash:
        return "was measured on another text, or with another tokenizer"
    return None


def _compared(pair: Pair, first: MeasuredQuality, second: MeasuredQuality, confidence: float) -> ComparedPoint:
    found = quality_estimates(second.scores, first.scores, confidence)
    ratio = _ratio(found[RISE])
    before = found[PERPLEXITY].value / ratio.value  # without intervals: that of the ratio is paired, and much narrower
    return ComparedPoint(
        baseline=pair.before,
        candidate=pair.after,
        metric=PERPLEXITY,
        before=Estimate(value=before),
        after=Estimate(value=found[PERPLEXITY].value),
        ratio=ratio.inverse,
        verdict=change_verdict(ratio, ChangeVerdict.WORSE, ChangeVerdict.BETTER, SMALLEST_RISE),
    )


def _ratio(rise: Estimate) -> Estimate:
    low, high = rise.interval or (None, None)
    return Estimate(
        value=1 + rise.value,
        low=None if low is None else 1 + low,
        high=None if high is None else 1 + high,
        confidence=rise.confidence,
    )


def _judged(condition: GateCondition, pair: Pair, rise: Estimate) -> GateResult:
    ratio, reason = _ratio(rise), ""
    verdict = condition.check(ratio)
    if ratio.interval is None:
        reason = "too few windows of text for an interval"
    elif verdict is Verdict.INCONCLUSIVE:
        reason = "the interval contains the limit; more windows of text would narrow it"
    return condition.result(pair, ratio, verdict, reason)


def _point(config: Config) -> Point:
    return Point(config=config, workload=QUALITY)
