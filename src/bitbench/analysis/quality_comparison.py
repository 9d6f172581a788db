"""Did quality get worse? The same text, scored on both sides, compared token by token."""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from bitbench.analysis.divergence import Scores
from bitbench.analysis.gate import GateCondition
from bitbench.analysis.quality import PERPLEXITY, RISE, estimates_of, last_alone, short_scores
from bitbench.analysis.results.comparison import QUALITY, ComparedPoint, GateOutcome, GateResult, Unpaired, Verdict
from bitbench.analysis.results.summary import Estimate, Interval, QualityEstimate, Ratio
from bitbench.records.quality import QualityRecord
from bitbench.records.study_records import StudyRecords
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
    return [(one, other) for one, other in dict.fromkeys(pairs) if one in before or other in after]


def _scored(side: StudyRecords) -> dict[Config, QualityRecord]:
    """Those that left scored tokens."""
    found = last_alone(side)
    return {one: record for one, record in found.items() if record.scores_file is not None and record.corpus}


def _measured(side: StudyRecords, config: Config) -> MeasuredQuality | None:
    record = _scored(side).get(config)
    if record is None or record.corpus is None:
        return None
    return MeasuredQuality(record.corpus.windows_hash, short_scores(side, record))


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
    for one, other in quality_pairs(sides, pairs):
        first, second = _measured(sides[0], one), _measured(sides[1], other)
        reason = _why_not(first, second, sides)
        if reason is not None or first is None or second is None:
            unpaired.append(Unpaired(point=_point(other), reason=reason or "", was_lost=second is None))
            gates += [_unsure(condition, one, other, reason or "") for condition in conditions]
            continue
        points.append(_compared(one, other, first, second, confidence))
        wide = _estimates(one, first, second, 1 - (1 - confidence) / asked)[RISE]
        gates += [_judged(condition, one, other, wide) for condition in conditions]
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


def _estimates(
    config: Config, first: MeasuredQuality, second: MeasuredQuality, confidence: float
) -> dict[str, QualityEstimate]:
    seed = [crc32(config.name.encode())]
    return estimates_of(second.scores, first.scores, confidence, seed)


def _compared(
    one: Config, other: Config, first: MeasuredQuality, second: MeasuredQuality, confidence: float
) -> ComparedPoint:
    found = _estimates(one, first, second, confidence)
    ratio = _ratio(found[RISE])
    before = found[PERPLEXITY].value / ratio.value
    return ComparedPoint(
        baseline=_point(one),
        candidate=_point(other),
        metric=PERPLEXITY,
        before=_plain(before),
        after=_plain(found[PERPLEXITY].value),
        ratio=ratio,
        verdict=_verdict(ratio),
    )


def _verdict(ratio: Ratio) -> Verdict:
    if ratio.interval is None:
        return Verdict.UNKNOWN
    if ratio.interval.low > 1 + SMALLEST_RISE:
        return Verdict.WORSE
    return Verdict.BETTER if ratio.interval.high < 1 - SMALLEST_RISE else Verdict.TIE


def _ratio(rise: QualityEstimate) -> Ratio:
    interval = rise.interval
    if interval is not None:
        interval = Interval(low=1 + interval.low, high=1 + interval.high, confidence=interval.confidence)
    return Ratio(value=1 + rise.value, interval=interval, p_value=None)


def _judged(condition: GateCondition, one: Config, other: Config, rise: QualityEstimate) -> GateResult:
    ratio, limit = _ratio(rise), condition.limit
    outcome, reason = GateOutcome.UNSURE, "the interval contains the limit; more windows of text would narrow it"
    if ratio.interval is None:
        reason = "too few windows of text for an interval"
    elif (ratio.interval.high < limit) if condition.is_below else (ratio.interval.low > limit):
        outcome, reason = GateOutcome.FAILED, ""
    elif (ratio.interval.low >= limit) if condition.is_below else (ratio.interval.high <= limit):
        outcome, reason = GateOutcome.PASSED, ""
    return _unsure(condition, one, other, reason).model_copy(update={"outcome": outcome, "ratio": ratio})


def _unsure(condition: GateCondition, one: Config, other: Config, reason: str) -> GateResult:
    return GateResult(
        condition=condition.text,
        metric=PERPLEXITY,
        baseline=_point(one),
        candidate=_point(other),
        outcome=GateOutcome.UNSURE,
        ratio=None,
        reason=reason,
    )


def _point(config: Config) -> Point:
    return Point(config=config, workload=QUALITY)


def _plain(value: float) -> Estimate:
    """Without an interval of its own: that of the ratio is paired and much narrower."""
    return Estimate(
        mean=value,
        interval=None,
        relative_half_width=None,
        n_instances=1,
        n_trials=1,
        trial_sd=None,
        standard_error=None,
        degrees_of_freedom=None,
        covers_starts=True,  # log-probabilities do not vary from start to start as times do
    )
