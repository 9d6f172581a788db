"""Decides whether a trial counts, without any I/O.

It uses the sums of the trial's rows, the client's health, and the metrics of other trials of the
point. A limit never comes from the trial that it judges. With 2 % of the trial's own time, a fast
trial would get a stricter limit than a slow one of the same config. So the fast ones would be
rejected.
"""

from collections.abc import Sequence
from math import inf
from statistics import median

from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import ClientHealth, Failure, Outcome, TrialMetrics
from bitbench.study.base import Json
from bitbench.study.workload import Workload
from bitbench.util.units import show_percent, show_seconds

# A step of the wall clock may have changed the kernel's times by as much. This is half of the mean
# delay that is allowed. Two readings of the clocks alone differ by some microseconds.
CLOCK_STEP_S = 0.0005
# A machine whose clock is off by this sends its requests earlier or later than planned by as much.
# Its latencies stay true, since each is a difference on one clock. But other requests meet at the
# server, and throughput is counted over another time. 5 ms are one or two slices of a scheduler. A
# 200th of the time may be wrong at either end, 1 % in all.
CLOCK_ERROR_S = 0.005
CLOCK_ERROR_SHARE = 0.005
# The client's own delay (sending late, noticing late) adds to the time to first token and to every
# longer one. Its mean may be the precision that a study aims at by default.
MEAN_DELAY_SHARE = 0.02
# If no core is idle, the server takes the sender's core when the first byte arrives. Sending eight
# requests on two busy cores then took 0.5 to 1 ms, and any client would wait as long. A shorter
# delay does not count against a trial. With an idle core it is below 0.1 ms.
MEAN_DELAY_FLOOR_S = 0.001
# A single wait can lengthen a gap between two tokens by all of it. Above half of the gap, the
# reported p99 would say more about the client than about the engine.
TAIL_LAG_SHARE = 0.5
# First tokens are few: in a hundred requests, the one that was noticed late is the p99.
TAIL_TTFT_SHARE = 0.1
# Two or three slices of the scheduler (3 to 4 ms each): a short trial has one such delay as its
# p99.
TAIL_LAG_FLOOR_S = 0.010
# An idle virtual machine loses up to 1 % of its processor time. From twice that on, the failure
# gives it as the reason.
STOLEN_SHARE = 0.02
# Only a machine that stood still makes a client late by seconds.
STOOD_STILL_S = 2.0

_OUTCOME_OF_STATUS = {
    "refused": Outcome.CRASHED,
    "broken": Outcome.CRASHED,
    "oversized": Outcome.INVALID,
    "contradictory": Outcome.INVALID,
    "stalled": Outcome.TIMEOUT,
    "timeout": Outcome.TIMEOUT,
    "http_error": Outcome.INVALID,
    "rate_limited": Outcome.OVERLOADED,
}
# Phrases in errors of servers, in lower case, if the request is not at fault.
_MEMORY_PHRASES = (
    "out of memory",
    "outofmemory",
    "can't allocate memory",
    "cannot allocate memory",
)
_SUPPORT_PHRASES = (
    "not support",
    "unsupported",
    "not implemented",
    "maximum context length",
    "max_model_len",
)


def load_verdict(
    sums: RequestSums,
    workload: Workload,
    health: ClientHealth,
    metric: str = "output_throughput",
    earlier: Sequence[TrialMetrics] = (),
) -> Failure | None:
    """Return why the trial does not count, or None if it does.

    The first failed request is the cause. `metric` is the primary metric of the study, and
    `earlier` is as in `list_moved_metrics`.
    """
    if abs(health.clock_step_s) > CLOCK_STEP_S:
        return _describe_clock_step(health.clock_step_s)
    if sums.first_failure is not None:
        return _find_standstill(sums, health) or _describe_failed_request(sums.first_failure, sums)
    if workload.request_count not in (None, sums.requests):
        cause = f"{sums.requests} of {workload.request_count} requests were sent."
        return Failure(outcome=Outcome.INVALID, cause=cause)
    return (
        _find_wrong_tokens(sums)
        or _find_clock_error(sums, health)
        or _find_client_delay(sums, workload, health, metric, earlier)
    )


def _describe_clock_step(step_s: float) -> Failure:
    direction = "forward" if step_s > 0 else "back"
    cause = (
        f"this machine's clock was set {direction} by {show_seconds(abs(step_s))} while it ran, "
        "or the machine slept"
    )
    return Failure(outcome=Outcome.DISTURBED, cause=cause)


def _find_standstill(sums: RequestSums, health: ClientHealth) -> Failure | None:
    """Return a failure if requests timed out while the client itself stood still, or None."""
    late_s = max(health.send_lateness_p99_s, health.loop_lag_p99_s)
    if late_s < STOOD_STILL_S or sums.statuses.keys() - {"ok", "stalled", "timeout"}:
        return None
    cause = f"the client was late by {show_seconds(late_s)} itself when requests ran out of time"
    return Failure(outcome=Outcome.DISTURBED, cause=cause)


def _find_clock_error(sums: RequestSums, health: ClientHealth) -> Failure | None:
    """Return a failure if the clocks of the client's machines are too uncertain, or None."""
    if not health.nodes or not sums.requests:
        return None
    allowed_s = max(MEAN_DELAY_FLOOR_S, min(CLOCK_ERROR_S, CLOCK_ERROR_SHARE * sums.makespan_s))
    worst = max(health.nodes, key=lambda node: node.off_by_s)
    if worst.off_by_s <= allowed_s:
        return None
    cause = (
        f"the clock of {worst.name} may be off by {show_seconds(worst.off_by_s)} "
        f"(limit {show_seconds(allowed_s)})"
    )
    return Failure(outcome=Outcome.DISTURBED, cause=cause)


def _describe_failed_request(first: dict[str, Json], sums: RequestSums) -> Failure:
    status = ""
    if first["status"] in ("http_error", "rate_limited"):
        status = f"HTTP {first['http_status']}: "
    cause = f"Request {first['request']}: {status}{first['error']}".rstrip(".")
    if sums.failed > 1:
        cause += f" ({sums.failed} of {sums.requests} requests failed)"
    return Failure(outcome=_classify_failure(first), cause=f"{cause}.")


def _classify_failure(row: dict[str, Json]) -> Outcome:
    """Return the outcome that a failed request gives to its trial."""
    error = str(row["error"]).lower()
    if any(phrase in error for phrase in _MEMORY_PHRASES):
        return Outcome.OOM
    is_unsupported = row["http_status"] == 501 or any(
        phrase in error for phrase in _SUPPORT_PHRASES
    )
    if row["status"] == "http_error" and is_unsupported:
        return Outcome.UNSUPPORTED
    return _OUTCOME_OF_STATUS[row["status"]]


def _find_wrong_tokens(sums: RequestSums) -> Failure | None:
    """Return a failure if the engine counted other numbers of tokens than requested, or None."""
    for kind in ("output", "input"):
        wrong = sums.wrong_tokens.get(kind)
        if wrong:
            cause = (
                f"Requested {wrong.asked} {kind} tokens, the engine counted {wrong.counted} "
                f"({wrong.requests} of {sums.requests} requests)."
            )
            return Failure(outcome=Outcome.INVALID, cause=cause)
    return None


def _find_client_delay(
    sums: RequestSums,
    workload: Workload,
    health: ClientHealth,
    metric: str,
    earlier: Sequence[TrialMetrics],
) -> Failure | None:
    """Return a failure if the client may have moved the primary metric of the study, or None."""
    delay = list_moved_metrics(sums, workload, health, earlier).get(metric)
    if delay is None:
        return None
    reason = ""
    if health.stolen_share >= STOLEN_SHARE:
        reason = f"; a hypervisor took {show_percent(health.stolen_share)} of the processors"
    return Failure(outcome=Outcome.CLIENT_BOUND, cause=f"client too slow ({delay}{reason})")


def list_moved_metrics(
    sums: RequestSums,
    workload: Workload,
    health: ClientHealth,
    earlier: Sequence[TrialMetrics] = (),
) -> dict[str, str]:
    """Return the metrics that the client may have moved by more than their limits, and how far.

    The keys are `Metric.moves_with` of metrics. `earlier` has the metrics of the warm-up and of the
    earlier attempts of this point in this block, with rejected ones. Limits are shares of their
    medians. The first trial of a point is judged by its own times.
    """
    if not sums.completed:
        return {}
    with_times = [metrics for metrics in earlier if metrics.ttft_s is not None]
    typical = _compute_typical_times(with_times or [_summarize_times(sums)])
    ttft_s = typical.ttft_s or 0.0
    tpot_s = typical.tpot_s or 0.0
    # A warm-up has fewer tokens than a trial, so its latency is put together from parts.
    tokens = sums.output_tokens / sums.completed
    decoding_s = tpot_s * max(tokens - 1, 0.0)
    # The kernel's times are true even if a token is read late, unless the next token came before
    # that: one read of both has one time. Without times of tokens, a short wait cannot have joined
    # two of them.
    next_token_s = inf if tokens <= 1 else typical.tpot_s or TAIL_LAG_FLOOR_S
    lag_mean_s = 0.0
    lag_p99_s = 0.0
    if not health.kernel_times or health.loop_lag_p99_s >= next_token_s:
        lag_mean_s = health.loop_lag_mean_s or 0.0
        lag_p99_s = health.loop_lag_p99_s
    delay_s = (sums.delay.statistic("mean") or 0.0) + lag_mean_s
    ttft_p99_limit_s = max(TAIL_LAG_FLOOR_S, TAIL_TTFT_SHARE * (typical.ttft_p99_s or ttft_s))
    itl_p99_limit_s = max(TAIL_LAG_FLOOR_S, TAIL_LAG_SHARE * (typical.itl_p99_s or ttft_s))
    latency_limit_s = _compute_mean_limit(ttft_s + decoding_s)
    checks = [
        ("ttft", "mean TTFT", delay_s, _compute_mean_limit(ttft_s)),
        ("ttft", "TTFT p99", lag_p99_s, ttft_p99_limit_s),
        ("itl", "ITL p99", lag_p99_s, itl_p99_limit_s),
        ("tpot", "decoding", lag_mean_s, _compute_mean_limit(decoding_s)),
        ("latency", "mean latency", delay_s, latency_limit_s),
    ]
    if workload.open_loop:  # the schedule never waits, so only the ends of the trial can move
        end_s = health.send_lateness_p99_s + lag_p99_s
        checks.append(
            ("output_throughput", "makespan", end_s, _compute_mean_limit(sums.makespan_s))
        )
    else:  # a stream sends its next request once it has noticed the end of the last
        checks.append(("output_throughput", "mean latency", delay_s, latency_limit_s))
    moved: dict[str, str] = {}
    for name, metric, added_s, allowed_s in checks:
        if added_s > allowed_s and name not in moved:
            moved[name] = f"+{show_seconds(added_s)} on {metric}, limit {show_seconds(allowed_s)}"
    return moved


def _compute_mean_limit(time_s: float) -> float:
    """Return the mean delay that is allowed for a mean time."""
    return max(MEAN_DELAY_FLOOR_S, MEAN_DELAY_SHARE * time_s)


def _summarize_times(sums: RequestSums) -> TrialMetrics:
    return TrialMetrics(
        ttft_s=sums.statistic("ttft", "mean"),
        ttft_p99_s=sums.statistic("ttft", "p99"),
        tpot_s=sums.statistic("tpot", "mean"),
        itl_p99_s=sums.statistic("itl", "p99"),
    )


def _compute_typical_times(earlier: Sequence[TrialMetrics]) -> TrialMetrics:
    """Return the median of each time that a limit is a share of."""
    medians: dict[str, float] = {}
    for name in ("ttft_s", "ttft_p99_s", "tpot_s", "itl_p99_s"):
        values = [getattr(metrics, name) for metrics in earlier]
        present = [value for value in values if value is not None]
        if present:
            medians[name] = median(present)
    return TrialMetrics(**medians)
