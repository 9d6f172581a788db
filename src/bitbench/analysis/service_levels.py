"""What a service may promise: an objective, held against everything that was measured of a point.

A percentile is that of the requests of all trials (`percentiles`), and is met only where its interval has an upper end.
A mean is that of the trials. In either case the interval decides, never the figure alone, and one start decides
nothing about the next. Of a server that bitbench did not start its trials decide.
"""

from math import ceil

from bitbench.analysis.percentiles import events_for_an_upper_end
from bitbench.analysis.results.estimate import Estimate, Finding, PercentileEstimate, Verdict, check
from bitbench.analysis.results.summary import PointSummary
from bitbench.records.trial import Outcome
from bitbench.study.metrics import OBJECTIVES, Metric
from bitbench.study.objective import Objective

CONTAINS = "its interval contains the limit"
NOT_MEASURED = "it was not measured"
ONE_START = "one start does not cover a restart"


def judge_objective(objective: Objective, point: PointSummary) -> Finding:
    metric = OBJECTIVES[objective.name]
    tail, mean = point.tails.get(metric.column), point.metrics.get(metric.column)
    if tail is not None:
        verdict = check(tail, objective.limit)
        reason = _what_would_tell(tail) if verdict is Verdict.INCONCLUSIVE else ""
    elif mean is not None:
        verdict, reason = judge_trials(
            mean, objective.limit, was_running=point.was_running, too_few=_too_few(metric, point)
        )
        if objective.statistic != "mean":
            mean = mean.model_copy(update={"note": "per trial"})
    elif any(run.holds is False and run.failed_requests for run in point.runs):
        verdict, reason = Verdict.MISSED, "requests failed"
    else:
        verdict, reason = Verdict.INCONCLUSIVE, NOT_MEASURED
    return Finding(
        name=objective.name, unit="s", limit=objective.limit, estimate=tail or mean, verdict=verdict, reason=reason
    )


def judge_trials(
    known: Estimate | None, limit: float, *, was_running: bool = False, too_few: str = ""
) -> tuple[Verdict, str]:
    """Of a mean over trials: the verdict, and why it is inconclusive. `too_few`: why a limit cannot be met by what was
    kept; that it is missed can be seen, since what few requests say of a tail is too low."""
    if known is None:
        return Verdict.INCONCLUSIVE, NOT_MEASURED
    if known.interval is None:
        return Verdict.INCONCLUSIVE, "one trial has no interval"
    if not known.covers_starts and not was_running:
        return Verdict.INCONCLUSIVE, ONE_START
    verdict = check(known, limit)
    if verdict is Verdict.MISSED or not (too_few or verdict is Verdict.INCONCLUSIVE):
        return verdict, ""
    return Verdict.INCONCLUSIVE, too_few or CONTAINS


def _what_would_tell(found: PercentileEstimate) -> str:
    if found.clusters < 2:
        return ONE_START
    if found.high is not None:
        return CONTAINS
    needed = events_for_an_upper_end(found.percent, found.clusters, found.confidence)
    if found.events >= needed:
        return "starts or trials differ too much for an upper end; more of them would tell"
    more = _rounded_up(needed - found.events)
    return f"{found.events:,} {found.event.value} are too few for an upper end; about {more:,} more would tell"


def _rounded_up(count: int) -> int:
    """To two digits: it is a guess."""
    unit = int(10.0 ** max(len(str(count)) - 2, 0))
    return ceil(count / unit) * unit


def _too_few(metric: Metric, point: PointSummary) -> str:
    """Why percentiles of single trials do not show that a limit is met; empty where their requests are enough."""
    fewest = min((run.requests for run in point.runs if run.outcome is Outcome.OK), default=0)
    if fewest >= metric.needs:
        return ""
    return (
        f"its requests were not kept, and the {metric.statistic} of a single trial means something from "
        f"{metric.needs:,} requests on"
    )
