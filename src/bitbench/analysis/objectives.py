"""Whether objectives are met: by one finite trial, and by all measurements of a point.

A trial is finite. A rate slightly above a server's capacity may therefore keep its p99 within the
limit until the trial ends. At (1 + ε) times the capacity, the queue grows by ε requests for each
one served. A request that is planned t seconds after the start then waits ε·t longer, so after T
seconds the p99 has grown by about ε·T. A limit of d seconds above the unloaded time is exceeded
only in a trial of T ≥ d / ε. For d = 200 ms and ε = 3 % that is 7 s, for d = 5 s nearly three
minutes.

So the growth itself is checked too. A latency that rises by more than `GROWTH_LIMIT` seconds per
second, and by more than its own noise explains, will exceed any limit in time. A trial then needs
to be long compared with one request (`TRIAL_LATENCIES`) instead of d / ε.

A percentile is over the requests of all trials (`analysis.requests`), and is met only if its
interval has an upper end. A mean is over the trials. In either case the interval decides, never the
value alone, and one start decides nothing about the next. A server that bitbench did not start is
judged by its trials.
"""

from collections.abc import Sequence
from math import ceil

import numpy as np

from bitbench.analysis.intervals import compute_t_quantile
from bitbench.analysis.requests import compute_events_needed
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

# A queue fills and drains over about one latency at both ends of a trial, which bends the fitted
# line. With 20 latencies per trial, that is a tenth of it.
TRIAL_LATENCIES = 20
# A third of the usual precision of a rate: an overload of 3 % stands out threefold.
GROWTH_LIMIT = 0.01
# The latencies of neighbors are not independent, but means of eighths of a trial nearly are. Six
# degrees of freedom are left.
SEGMENTS = 8
GROWTH_CONFIDENCE = 0.95


def judge_objectives(sums: RequestSums) -> ObjectiveResult | None:
    """Judge one trial by its own request rows. Return None without objectives."""
    objectives = sums.objectives
    if not objectives:
        return None
    slope, is_real = _estimate_growth(sums) or (None, False)
    measured = [objective for objective in objectives if _find_value(sums, objective) is not None]
    unknown = [objective for objective in objectives if objective not in measured]
    missed, excess_s = _find_largest_miss(sums, measured)
    if sums.failed:
        missed = f"{sums.failed} of {sums.requests} requests failed"
    if missed is None and slope is not None and is_real and slope > GROWTH_LIMIT:
        missed = (
            f"the queue is growing (latency +{show_seconds(slope)} per second); "
            "the offered rate exceeds capacity"
        )
        excess_s = slope * sums.length("planned_s")
    if missed is None and unknown:
        return ObjectiveResult(holds=None, why_not=_explain_unknown(sums, unknown[0]), growth=slope)
    return ObjectiveResult(holds=missed is None, why_not=missed, excess_s=excess_s, growth=slope)


def check_objectives(trial: TrialRecord, objectives: Sequence[Objective]) -> bool | None:
    """Return whether the server met its objectives, or None if the trial is inconclusive.

    A late client adds to the times from a request's planned moment. An objective that was met in
    spite of that was met. A late client may shorten the time per token, because it notices the
    first token late. A miss may be the client's own fault, unless it is larger than the client's
    delay.
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
    excess_s = trial.objectives.excess_s
    client = trial.client
    if excess_s is None or client is None:
        return None
    return False if excess_s > client.send_lateness_p99_s + client.loop_lag_p99_s else None


def _find_value(sums: RequestSums, objective: Objective) -> float | None:
    return sums.statistic(objective.metric, objective.statistic)


def _find_largest_miss(
    sums: RequestSums, objectives: Sequence[Objective]
) -> tuple[str | None, float | None]:
    """Return a sentence about the objective with the largest miss, and the miss in seconds.

    Each objective has a value.
    """
    message = None
    most_s = 0.0
    for objective in objectives:
        value = _find_value(sums, objective) or 0.0
        if value - objective.limit > most_s:
            most_s = value - objective.limit
            limit = show_seconds(objective.limit)
            message = f"{objective.name} is {show_seconds(value)}, limit {limit}"
    return (message, most_s) if message else (None, None)


TPOT_UNKNOWN = "answers came in one chunk, or in too few to tell when their tokens came"


def _explain_unknown(sums: RequestSums, objective: Objective) -> str:
    if objective.metric == "tpot" and not sums.is_tpot_unknown:
        return f"{objective.name} is not defined: no answer had more than one token"
    return f"{objective.name} is unknown: {TPOT_UNKNOWN}"


def _estimate_growth(sums: RequestSums) -> tuple[float, bool] | None:
    """Return the slope of the latency over the trial, and whether it exceeds its own noise.

    Return None if there are too few requests.
    """
    order = np.argsort(sums.course[:, 1] / sums.course[:, 0], kind="stable")
    count, planned, latency = sums.course[order].T
    median_s = sums.statistic("latency", "p50")
    if median_s is None:
        return None
    # The server fills up during the first latencies, and a shared one slows down meanwhile. That is
    # not a queue.
    begin_s = sums.first("planned_s") + min(median_s, sums.length("planned_s") / 3)
    filled = planned / count >= begin_s
    reached = np.cumsum(count[filled])
    if not reached.size or reached[-1] < 2 * SEGMENTS:
        return None
    sizes = [part.size for part in np.array_split(np.arange(int(reached[-1])), SEGMENTS)]
    begins = np.searchsorted(reached, np.cumsum([0, *sizes[:-1]]), side="right")
    counts = np.add.reduceat(count[filled], begins)
    time = np.add.reduceat(planned[filled], begins) / counts
    mean = np.add.reduceat(latency[filled], begins) / counts
    centered = time - time.mean()
    spread = float((centered**2).sum())
    if spread == 0:
        return None  # a batch: all requests are planned at once
    slope = float((centered * mean).sum() / spread)
    residual = mean - mean.mean() - slope * centered
    error = float(np.sqrt((residual**2).sum() / (SEGMENTS - 2) / spread))
    return slope, slope > compute_t_quantile(SEGMENTS - 2, GROWTH_CONFIDENCE) * error


CONTAINS = "its interval contains the limit"
NOT_MEASURED = "it was not measured"
CLIENT_WAS_LATE = "the client was too late for it in every trial"
ONE_START = "one start does not cover a restart"


def judge_objective(objective: Objective, point: PointSummary) -> Finding:
    """Judge one objective by all measurements of a point."""
    metric = OBJECTIVES[objective.name]
    tail = point.tails.get(metric.column)
    mean = point.metrics.get(metric.column)
    estimate = tail or mean
    if objective.metric == "tpot" and _has_unknown_trial(point):
        estimate = None
        verdict = Verdict.INCONCLUSIVE
        reason = TPOT_UNKNOWN
    elif tail is not None:
        verdict = check_against_limit(tail, objective.limit)
        reason = _explain_undecided_tail(tail) if verdict is Verdict.INCONCLUSIVE else ""
    elif mean is not None:
        too_few = _explain_too_few(metric, point)
        verdict, reason = judge_mean_objective(mean, objective.limit, too_few=too_few)
        if objective.statistic != "mean":
            estimate = mean.model_copy(update={"note": "per trial"})
    else:
        verdict, reason = _judge_missing(metric, point)
    return Finding(
        name=objective.name,
        unit="s",
        limit=objective.limit,
        estimate=estimate,
        verdict=verdict,
        reason=reason,
    )


def _has_unknown_trial(point: PointSummary) -> bool:
    """Return True if a complete trial does not show whether its objectives were met."""
    return any(
        run.outcome is Outcome.OK and run.holds is None and run.why_not for run in point.runs
    )


def _judge_missing(metric: Metric, point: PointSummary) -> tuple[Verdict, str]:
    """Return the verdict and the reason for a metric without a value."""
    if any(run.holds is False and run.failed_requests for run in point.runs):
        return Verdict.MISSED, "requests failed"
    if any(metric.moves_with in run.uncertain for run in point.runs):
        return Verdict.INCONCLUSIVE, CLIENT_WAS_LATE
    return Verdict.INCONCLUSIVE, NOT_MEASURED


def judge_mean_objective(
    estimate: Estimate | None, limit: float, *, too_few: str = ""
) -> tuple[Verdict, str]:
    """Judge a mean over trials. The second item is the reason if the verdict is inconclusive.

    `too_few` says why the recorded data cannot show that a limit is met. They can show that it is
    missed, because few requests underestimate a tail.
    """
    if estimate is None:
        return Verdict.INCONCLUSIVE, NOT_MEASURED
    if estimate.interval is None:
        reason = "too few starts for an interval" if estimate.covers_starts else ONE_START
        return Verdict.INCONCLUSIVE, reason
    verdict = check_against_limit(estimate, limit)
    if verdict is Verdict.MISSED or not (too_few or verdict is Verdict.INCONCLUSIVE):
        return verdict, ""
    return Verdict.INCONCLUSIVE, too_few or CONTAINS


def _explain_undecided_tail(tail: PercentileEstimate) -> str:
    """Return why an interval does not decide, and how many more events would."""
    if tail.clusters < 2:
        return ONE_START
    if tail.high is not None:
        return CONTAINS
    needed = compute_events_needed(tail.percent, tail.clusters, tail.confidence)
    if tail.events >= needed:
        return "starts or trials differ too much for an upper end; more of them would tell"
    more = _round_up(needed - tail.events)
    return (
        f"{tail.events:,} {tail.event.value} are too few for an upper end; "
        f"about {more:,} more would tell"
    )


def _round_up(count: int) -> int:
    """Return the number rounded up to two digits, since it is an estimate."""
    unit = int(10.0 ** max(len(str(count)) - 2, 0))
    return ceil(count / unit) * unit


def _explain_too_few(metric: Metric, point: PointSummary) -> str:
    """Return why percentiles of single trials do not show that a limit is met, or an empty text."""
    fewest = min((run.requests for run in point.runs if run.outcome is Outcome.OK), default=0)
    if fewest >= metric.needs:
        return ""
    return (
        f"its requests were not kept, and the {metric.statistic} of a single trial means something "
        f"from {metric.needs:,} requests on"
    )
