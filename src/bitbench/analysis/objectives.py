"""Did a trial at some rate hold its objectives, and would it have held them for longer?

A trial is finite, so a rate slightly beyond what a server can serve may keep its p99 within the limit until the trial
ends. At (1 + ε) times the capacity the queue grows by ε requests for each one served, so a request that is planned t
seconds after the start waits ε·t longer: after T seconds the p99 has grown by about ε·T. A limit that leaves d
seconds above the unloaded time is passed only in a trial of T ≥ d / ε: for d = 200 ms and ε = 3 % that is 7 s, for
d = 5 s nearly three minutes. So the growth itself is looked at too: a latency that rises by more than `GROWTH_LIMIT`
seconds per second, and by more than its own noise explains, will pass any limit if one only waits. A trial then
needs to be long against one request (`TRIAL_LATENCIES`) instead of against d / ε.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bitbench.analysis.distributions import t_quantile
from bitbench.records.request_rows import Floats, RequestRows, statistic
from bitbench.records.trial import ObjectiveResult, Outcome, TrialRecord
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


def judge_objectives(requests: pa.Table, objectives: Sequence[Objective]) -> ObjectiveResult | None:
    """From the request rows of one trial (core.recorded.requests) alone. None without objectives."""
    if not objectives:
        return None
    rows = RequestRows(requests)
    ok, planned = rows.is_ok, rows.planned
    growth = _growth(planned[ok], rows.latency[ok])
    missed, excess_s = _missed(rows, objectives)
    if not ok.all():
        missed = f"{int((~ok).sum())} of {ok.size} requests failed"
    slope = growth.slope if growth else None
    if missed is None and growth and growth.is_real and growth.slope > GROWTH_LIMIT:
        missed = f"the queue is growing (latency +{show_seconds(slope)} per second); the offered rate exceeds capacity"
        excess_s = growth.slope * float(np.ptp(planned))
    return ObjectiveResult(holds=missed is None, why_not=missed, excess_s=excess_s, growth=slope)


def held(trial: TrialRecord, objectives: Sequence[Objective]) -> bool | None:
    """Whether the server met its objectives; None where the trial is inconclusive.

    A client that was late adds to the times from a request's planned moment, so what held all the same did hold. It
    may shorten the time per token, as it notices the first one late. What failed may be its own fault, unless it
    failed by more than the client was late.
    """
    nothing_seen = trial.outcome in (Outcome.DISTURBED, Outcome.LOST)
    if trial.kind != "measured" or trial.objectives is None or nothing_seen:
        return None
    if trial.outcome is not Outcome.CLIENT_BOUND:
        return trial.objectives.holds and trial.outcome is Outcome.OK
    if trial.objectives.holds:
        return True if all(objective.metric != "tpot" for objective in objectives) else None
    excess_s, client = trial.objectives.excess_s, trial.client
    if excess_s is None or client is None:
        return None
    return False if excess_s > client.send_lateness_p99_s + client.loop_lag_p99_s else None


def good_share(requests: pa.Table, objectives: Sequence[Objective]) -> float | None:
    """Share of the requests that met the objectives themselves; None without objectives or without an answer.

    A request meets a percentile or a mean when it is within its limit; of several limits on one metric the loosest
    counts (half of all requests may exceed a p50).
    """
    rows = RequestRows(requests)
    if not objectives or not rows.is_ok.any():
        return None
    return float(_good(rows, objectives).mean())


def _missed(rows: RequestRows, objectives: Sequence[Objective]) -> tuple[str | None, float | None]:
    """The objective that was missed by most, in a sentence, and by how many seconds."""
    worst: tuple[str, float] | None = None
    for objective in objectives:
        value = statistic(rows.time(objective.metric), objective.statistic)
        if value is None:
            return f"{objective.name} is not defined: no answer had more than one token", None
        excess_s = value - objective.limit
        if excess_s > (worst[1] if worst else 0.0):
            worst = (
                f"{objective.name} is {show_seconds(value)}, limit {show_seconds(objective.limit)}",
                excess_s,
            )
    return worst or (None, None)


def _good(rows: RequestRows, objectives: Sequence[Objective]) -> npt.NDArray[np.bool_]:
    good = rows.is_ok.copy()
    for metric in {objective.metric for objective in objectives}:
        loosest = max(objective.limit for objective in objectives if objective.metric == metric)
        with np.errstate(invalid="ignore"):
            good &= ~(rows.time(metric) > loosest)  # one token has no time per further token: nothing to miss
    return good


class _Growth(NamedTuple):
    """Slope of the latency over the trial, and whether it is more than its own noise."""

    slope: float
    is_real: bool


def _growth(planned: Floats, latency: Floats) -> _Growth | None:
    """None: too few requests."""
    if planned.size < 2 * SEGMENTS:
        return None
    # The server fills up during the first latencies, and a shared one slows down meanwhile: that is no queue.
    filled = planned - planned.min() >= min(float(np.median(latency)), float(np.ptp(planned)) / 3)
    planned, latency = planned[filled], latency[filled]
    if planned.size < 2 * SEGMENTS:
        return None
    order = np.argsort(planned, kind="stable")
    at = np.array([part.mean() for part in np.array_split(planned[order], SEGMENTS)])
    mean = np.array([part.mean() for part in np.array_split(latency[order], SEGMENTS)])
    centred = at - at.mean()
    spread = float((centred**2).sum())
    if spread == 0:
        return None  # a batch: all at once, no course of time
    slope = float((centred * mean).sum() / spread)
    residual = mean - mean.mean() - slope * centred
    error = float(np.sqrt((residual**2).sum() / (SEGMENTS - 2) / spread))
    return _Growth(slope, slope > t_quantile(SEGMENTS - 2, GROWTH_CONFIDENCE) * error)
