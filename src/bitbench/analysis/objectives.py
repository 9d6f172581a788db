"""Whether objectives are met: by one trial, which is finite, and by everything that was measured of a point.

A trial is finite, so a rate slightly beyond what a server can serve may keep its p99 within the limit until the trial
ends. At (1 + ε) times the capacity the queue grows by ε requests for each one served, so a request that is planned t
seconds after the start waits ε·t longer: after T seconds the p99 has grown by about ε·T. A limit that leaves d
seconds above the unloaded time is passed only in a trial of T ≥ d / ε: for d = 200 ms and ε = 3 % that is 7 s, for d
= 5 s nearly three minutes. So the growth itself is looked at too: a latency that rises by more than `GROWTH_LIMIT`
seconds per second, and by more than its own noise explains, will pass any limit if one only waits. A trial then needs
to be long against one request (`TRIAL_LATENCIES`) instead of against d / ε.

A percentile is that of the requests of all trials (`percentiles`), and is met only where its interval has an upper
end. A mean is that of the trials. In either case the interval decides, never the figure alone, and one start decides
nothing about the next. Of a server that bitbench did not start its trials decide.
"""

from collections.abc import Sequence
from math import ceil

import numpy as np

from bitbench.analysis.intervals import t_quantile
from bitbench.analysis.requests import events_needed_for_percentile
from bitbench.analysis.results.estimate import (
    Estimate,
    Finding,
    PercentileEstimate,
    Verdict,
    check_against_limit,
)
from bitbench.analysis.results.summary import PointSummary
from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import ObjectiveResult, Outcome, TrialRecord
from bitbench.study.metrics import OBJECTIVES, Metric
from bitbench.study.objective import Objective
from bitbench.util.units import show_seconds

# A queue fills and drains over about one latency at both ends of a trial, which bends the line that is fitted: with
# 20 latencies per trial that is a tenth of it.
TRIAL_LATENCIES = 20
# A third of the precision with which a rate is usually wanted: an overload of 3 % stands out threefold.
GROWTH_LIMIT = 0.01
# The latencies of neighbours are not independent, means of eighths of a trial nearly are; six degrees of freedom stay.
SEGMENTS = 8
GROWTH_CONFIDENCE = 0.95


def judge_objectives(sums: RequestSums) -> ObjectiveResult | None:
    """From the request rows of one trial alone. None without objectives."""
    objectives = sums.objectives
    if not objectives:
        return None
    slope, is_real = _growth(sums) or (None, False)
    known = [objective for objective in objectives if _value(sums, objective) is not None]
    missed, excess_s = _missed(sums, known)
    if sums.failed:
        missed = f"{sums.failed} of {sums.requests} requests failed"
    if missed is None and slope is not None and is_real and slope > GROWTH_LIMIT:
        missed = f"the queue is growing (latency +{show_seconds(slope)} per second); the offered rate exceeds capacity"
        excess_s = slope * sums.length("planned_s")
    if missed is None and len(known) < len(objectives):
        why_not = _unknown(
            sums, next(objective for objective in objectives if objective not in known)
        )
        return ObjectiveResult(holds=None, why_not=why_not, growth=slope)
    return ObjectiveResult(holds=missed is None, why_not=missed, excess_s=excess_s, growth=slope)


def objectives_hold(trial: TrialRecord, objectives: Sequence[Objective]) -> bool | None:
    """Whether the server met its objectives; None where the trial is inconclusive.

    A client that was late adds to the times from a request's planned moment, so what held all the same did hold. It
    may shorten the time per token, as it notices the first one late. What failed may be its own fault, unless it
    failed by more than the client was late.
    """
    nothing_seen = trial.outcome in (Outcome.DISTURBED, Outcome.LOST)
    if trial.kind != "measured" or trial.objectives is None or nothing_seen:
        return None
    if trial.outcome is not Outcome.CLIENT_BOUND and trial.outcome is not Outcome.OK:
        return False
    is_uncertain = any(objective.metric in trial.uncertain for objective in objectives)
    if trial.objectives.holds is None or (trial.outcome is Outcome.OK and not is_uncertain):
        return trial.objectives.holds
    if trial.objectives.holds:
        return True if all(objective.metric != "tpot" for objective in objectives) else None
    excess_s, client = trial.objectives.excess_s, trial.client
    if excess_s is None or client is None:
        return None
    return False if excess_s > client.send_lateness_p99_s + client.loop_lag_p99_s else None


def _value(sums: RequestSums, objective: Objective) -> float | None:
    return sums.statistic(objective.metric, objective.statistic)


def _missed(sums: RequestSums, objectives: Sequence[Objective]) -> tuple[str | None, float | None]:
    """The objective that was missed by most, in a sentence, and by how many seconds. Each has a value."""
    worst: tuple[str, float] | None = None
    for objective in objectives:
        value = _value(sums, objective) or 0.0
        excess_s = value - objective.limit
        if excess_s > (worst[1] if worst else 0.0):
            worst = (
                f"{objective.name} is {show_seconds(value)}, limit {show_seconds(objective.limit)}",
                excess_s,
            )
    return worst or (None, None)


TPOT_UNKNOWN = "answers came in one chunk, or in too few to tell when their tokens came"


def _unknown(sums: RequestSums, objective: Objective) -> str:
    if objective.metric == "tpot" and not sums.is_tpot_unknown:
        return f"{objective.name} is not defined: no answer had more than one token"
    return f"{objective.name} is unknown: {TPOT_UNKNOWN}"


def _growth(sums: RequestSums) -> tuple[float, bool] | None:
    """Slope of the latency over the trial, and whether it is more than its own noise. None: too few requests."""
    count, planned, latency = sums.course[
        np.argsort(sums.course[:, 1] / sums.course[:, 0], kind="stable")
    ].T
    median_s = sums.statistic("latency", "p50")
    if median_s is None:
        return None
    # The server fills up during the first latencies, and a shared one slows down meanwhile: that is no queue.
    begin_s = sums.first("planned_s") + min(median_s, sums.length("planned_s") / 3)
    filled = planned / count >= begin_s
    reached = np.cumsum(count[filled])
    if not reached.size or reached[-1] < 2 * SEGMENTS:
        return None
    sizes = [part.size for part in np.array_split(np.arange(int(reached[-1])), SEGMENTS)]
    begins = np.searchsorted(reached, np.cumsum([0, *sizes[:-1]]), side="right")
    counts, at, mean = (
        np.add.reduceat(values[filled], begins) for values in (count, planned, latency)
    )
    at, mean = at / counts, mean / counts
    centred = at - at.mean()
    spread = float((centred**2).sum())
    if spread == 0:
        return None  # a batch: all at once, no course of time
    slope = float((centred * mean).sum() / spread)
    residual = mean - mean.mean() - slope * centred
    error = float(np.sqrt((residual**2).sum() / (SEGMENTS - 2) / spread))
    return slope, slope > t_quantile(SEGMENTS - 2, GROWTH_CONFIDENCE) * error


CONTAINS = "its interval contains the limit"
NOT_MEASURED = "it was not measured"
CLIENT_WAS_LATE = "the client was too late for it in every trial"
ONE_START = "one start does not cover a restart"


def judge_objective(objective: Objective, point: PointSummary) -> Finding:
    metric = OBJECTIVES[objective.name]
    tail, mean = point.tails.get(metric.column), point.metrics.get(metric.column)
    is_unknown = any(
        run.outcome is Outcome.OK and run.holds is None and run.why_not for run in point.runs
    )
    if is_unknown and objective.metric == "tpot":
        verdict, reason = Verdict.INCONCLUSIVE, TPOT_UNKNOWN
        tail = mean = None
    elif tail is not None:
        verdict = check_against_limit(tail, objective.limit)
        reason = _what_would_tell(tail) if verdict is Verdict.INCONCLUSIVE else ""
    elif mean is not None:
        verdict, reason = judge_mean_objective(
            mean, objective.limit, too_few=_too_few(metric, point)
        )
        if objective.statistic != "mean":
            mean = mean.model_copy(update={"note": "per trial"})
    elif any(run.holds is False and run.failed_requests for run in point.runs):
        verdict, reason = Verdict.MISSED, "requests failed"
    else:
        is_late = any(metric.moves_with in run.uncertain for run in point.runs)
        verdict, reason = Verdict.INCONCLUSIVE, CLIENT_WAS_LATE if is_late else NOT_MEASURED
    return Finding(
        name=objective.name,
        unit="s",
        limit=objective.limit,
        estimate=tail or mean,
        verdict=verdict,
        reason=reason,
    )


def judge_mean_objective(
    known: Estimate | None, limit: float, *, too_few: str = ""
) -> tuple[Verdict, str]:
    """Of a mean over trials: the verdict, and why it is inconclusive. `too_few`: why a limit cannot be met by what was
    kept; that it is missed can be seen, since what few requests say of a tail is too low."""
    if known is None:
        return Verdict.INCONCLUSIVE, NOT_MEASURED
    if known.interval is None:
        return (
            Verdict.INCONCLUSIVE,
            "too few starts for an interval" if known.covers_starts else ONE_START,
        )
    verdict = check_against_limit(known, limit)
    if verdict is Verdict.MISSED or not (too_few or verdict is Verdict.INCONCLUSIVE):
        return verdict, ""
    return Verdict.INCONCLUSIVE, too_few or CONTAINS


def _what_would_tell(found: PercentileEstimate) -> str:
    if found.clusters < 2:
        return ONE_START
    if found.high is not None:
        return CONTAINS
    needed = events_needed_for_percentile(found.percent, found.clusters, found.confidence)
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
