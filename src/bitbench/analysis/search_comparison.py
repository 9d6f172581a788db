"""Two searches against each other: the highest rates that met the same objectives, and limits on their change.

Each search has an interval of its own, from its posterior. That of the ratio follows from both by the method of
variance estimates recovery (Zou and Donner 2008), on logarithms: what each side can be off, added in squares.
"""

from collections.abc import Sequence
from math import exp, hypot, log

from bitbench.analysis.changes import MAX_RATE, GateCondition, Pair, change_verdict
from bitbench.analysis.rate_search import rate_search_answer, rate_trials
from bitbench.analysis.results.comparison import SEARCH, ChangeVerdict, ComparedPoint, Comparison, GateResult, Replicate
from bitbench.analysis.results.estimate import Basis, Estimate, Verdict
from bitbench.analysis.results.summary import MetricDefinition, RateAnswer
from bitbench.records.folder import StudyRecords
from bitbench.study.plan import Point
from bitbench.study.workload import Workload
from bitbench.util.errors import CannotCompareError

DEFINITION = MetricDefinition(
    label="Highest rate",
    name="highest rate that meets the objectives",
    unit="req/s",
    higher_is_better=True,
    definition="The highest rate of requests at which trials meet the objectives of the search.",
)
# What a search itself chooses, and what names it.
_CHOSEN = ("name", "arrival", "duration", "requests")
_SHAPE = tuple(field for field in Workload.model_fields if field not in _CHOSEN)


def are_searches(before: StudyRecords, after: StudyRecords) -> bool:
    return before.lock.search is not None and after.lock.search is not None


def refuse_incomparable_searches(before: StudyRecords, after: StudyRecords) -> None:
    """Raises CannotCompareError where the two searched for something else."""
    if before.study.objectives != after.study.objectives:
        raise CannotCompareError(f"{before.name} and {after.name} searched under other objectives (--slo)")
    first, second = before.study.workloads[0], after.study.workloads[0]
    differing = [field for field in _SHAPE if getattr(first, field) != getattr(second, field)]
    if first.arrival.kind != second.arrival.kind:
        differing.append("arrival")
    if differing:
        raise CannotCompareError(f"the requests of the two searches are not the same: {', '.join(differing)} differ")


def compare_searches(
    before: StudyRecords, after: StudyRecords, conditions: Sequence[GateCondition], confidence: float
) -> Comparison:
    """The rates that were found; limits are judged at once."""
    first, second = (Point(config=side.plan.configs[0], workload=SEARCH) for side in (before, after))
    pair, sides = Pair(first, second), (before, after)
    found = _compared(pair, *(_answer(side, confidence) for side in sides))
    single = 1 - (1 - confidence) / max(len(conditions), 1)
    judged = [_answer(side, single) for side in sides] if conditions else []
    return Comparison(
        baseline=before.name,
        candidate=after.name,
        confidence=confidence,
        definitions={MAX_RATE: DEFINITION},
        points=() if found is None else (found,),
        gates=tuple(_gate(condition, pair, *judged) for condition in conditions),
    )


def _compared(pair: Pair, first: RateAnswer, second: RateAnswer) -> ComparedPoint | None:
    """None where a side has no rate at all."""
    before, after = _estimate(first), _estimate(second)
    if before is None or after is None:
        return None
    ratio = _ratio(first, second)
    return ComparedPoint(
        baseline=pair.before,
        candidate=pair.after,
        metric=MAX_RATE,
        before=before,
        after=after,
        ratio=ratio,
        verdict=change_verdict(ratio, ChangeVerdict.CARRIES_MORE, ChangeVerdict.CARRIES_LESS),
    )


def _gate(condition: GateCondition, pair: Pair, first: RateAnswer, second: RateAnswer) -> GateResult:
    ratio = _ratio(first, second)
    if ratio is None or ratio.interval is None:
        lacking = "baseline" if None in (first.rate, first.low, first.high) else "candidate"
        verdict, reason = Verdict.INCONCLUSIVE, f"the search of the {lacking} found no rate with an interval"
    else:
        verdict = condition.check(ratio)
        reason = "the interval contains the limit" if verdict is Verdict.INCONCLUSIVE else ""
    judged = condition.result(pair, ratio, verdict, reason)
    return judged.model_copy(update={"unit": Replicate.TRIALS})


def _answer(side: StudyRecords, confidence: float) -> RateAnswer:
    limits = side.lock.search
    assert limits is not None, "it is a search"
    return rate_search_answer(
        rate_trials(side.study, side.trials), limits.model_copy(update={"confidence": confidence})
    )


def _estimate(found: RateAnswer) -> Estimate | None:
    if found.rate is None:
        return None
    bounded = found.low is not None and found.high is not None
    return Estimate(
        value=found.rate,
        low=found.low if bounded else None,
        high=found.high if bounded else None,
        confidence=found.confidence,
        basis=Basis(starts=1, trials=found.trials),
    )


def _ratio(before: RateAnswer, after: RateAnswer) -> Estimate | None:
    """after / before; without an interval where one of the two has none."""
    if before.rate is None or after.rate is None:
        return None
    ratio = after.rate / before.rate
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return Estimate(value=ratio)
    below = hypot(log(after.rate / after.low), log(before.high / before.rate))
    above = hypot(log(after.high / after.rate), log(before.rate / before.low))
    return Estimate(value=ratio, low=ratio * exp(-below), high=ratio * exp(above), confidence=before.confidence)
