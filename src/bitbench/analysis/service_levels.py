"""What a service may promise: an objective, held against everything that was measured of a point.

A percentile is that of the requests of all trials (`percentiles`), and is met only where its interval has an upper end.
A mean is that of the trials. In either case the interval decides, never the figure alone, and one start decides
nothing about the next. Of a server that bitbench did not start its trials decide.
"""

from math import ceil

from bitbench.analysis.percentiles import events_for_an_upper_end, judge_limit
from bitbench.analysis.results.summary import Estimate, PointSummary
from bitbench.analysis.results.tails import JudgedObjective, ObjectiveVerdict, PercentileEstimate
from bitbench.records.trial import Outcome
from bitbench.study.metrics import OBJECTIVES, Metric
from bitbench.study.objective import Objective

CONTAINS = "its interval contains the limit"
ONE_START = "one start does not cover a restart"


def judge_objective(objective: Objective, point: PointSummary) -> JudgedObjective:
    metric = OBJECTIVES[objective.name]
    if (found := point.tails.get(metric.column)) is not None:
        return _from_requests(objective, found)
    if (known := point.metrics.get(metric.column)) is not None:
        return _from_trials(objective, known, _too_few(metric, point), was_running=point.was_running)
    if any(run.holds is False and run.failed_requests for run in point.runs):
        return JudgedObjective(objective=objective, verdict=ObjectiveVerdict.MISSED, reason="requests failed")
    return JudgedObjective(objective=objective, verdict=ObjectiveVerdict.INCONCLUSIVE, reason="it was not measured")


def _from_requests(objective: Objective, found: PercentileEstimate) -> JudgedObjective:
    verdict = judge_limit(found, objective.limit)
    return JudgedObjective(
        objective=objective,
        verdict=verdict,
        value=found.shown,
        low=found.shown_low,
        high=found.high,
        note=found.note,
        reason=_what_would_tell(found) if verdict is ObjectiveVerdict.INCONCLUSIVE else "",
    )


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


def _from_trials(objective: Objective, known: Estimate, too_few: str, *, was_running: bool) -> JudgedObjective:
    """A mean; or a percentile of each trial, where its requests were not kept: then its note says so."""
    interval = known.interval
    verdict, reason = ObjectiveVerdict.INCONCLUSIVE, ""
    if interval is None:
        reason = "one trial has no interval"
    elif not known.covers_starts and not was_running:
        reason = ONE_START
    elif interval.low > objective.limit:  # what few requests say of a tail is too low, so this is safe
        verdict = ObjectiveVerdict.MISSED
    elif too_few:
        reason = too_few
    elif interval.high <= objective.limit:
        verdict = ObjectiveVerdict.MET
    else:
        reason = CONTAINS
    return JudgedObjective(
        objective=objective,
        verdict=verdict,
        value=known.mean,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        note="" if objective.statistic == "mean" else "per trial",
        reason=reason,
    )


def _too_few(metric: Metric, point: PointSummary) -> str:
    """Why percentiles of single trials do not show that a limit is met; empty where their requests are enough."""
    fewest = min((run.requests for run in point.runs if run.outcome is Outcome.OK), default=0)
    if fewest >= metric.needs:
        return ""
    return (
        f"its requests were not kept, and the {metric.statistic} of a single trial means something from "
        f"{metric.needs:,} requests on"
    )
