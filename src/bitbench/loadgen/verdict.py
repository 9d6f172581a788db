"""Does this trial count? Pure: from the sums of its rows, the client's health, and what its point's other trials took.

A limit never comes from the trial that it judges. Were it 2 % of the trial's own time, a fast trial would be held to a
strict limit and a slow one of the same config to a loose one, and the fast ones would be rejected.
"""

from collections.abc import Sequence
from math import inf
from statistics import median

from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import ClientHealth, Failure, Outcome, TrialMetrics
from bitbench.study.base import Json
from bitbench.study.workload import Workload
from bitbench.util.units import show_percent, show_seconds

# A wall clock that was set by as much may have changed the kernel's times by as much. Half of what a mean may be off is
# far above what two readings of the clocks differ by themselves, some microseconds.
CLOCK_STEP_S = 0.0005
# A machine whose clock is off by this sends its requests so much earlier or later than planned. Its latencies stay
# true, since each is a difference on one clock; what changes is which requests meet at the server, and the span over
# which throughput is counted. 5 ms are one or two slices of a scheduler; of the span a 200th may be wrong at either
# end, 1 % in all.
CLOCK_ERROR_S, CLOCK_ERROR_SHARE = 0.005, 0.005
# The client's own delay (sending late, noticing late) adds to the time to first token and to every longer one. On
# average it may be as much as the precision that a study asks for by default.
MEAN_DELAY_SHARE = 0.02
# Where no core is idle, the first byte that reaches the server lets it take the sender's core: 0.5 to 1 ms were
# measured in sending eight requests on two busy cores, and any client would wait as long. A shorter delay is not held
# against a trial; on a machine with an idle core it is below 0.1 ms.
MEAN_DELAY_FLOOR_S = 0.001
# A single wait can lengthen a gap between two tokens by all of it. Past half, the reported p99 of the gaps would say
# more about the client than about the engine.
TAIL_LAG_SHARE = 0.5
# First tokens are few: one that was noticed late is the p99 of a hundred requests, by all of the wait.
TAIL_TTFT_SHARE = 0.1
# Two or three slices of the scheduler (3 to 4 ms each): one such hiccup in a short trial is its p99.
TAIL_LAG_FLOOR_S = 0.010
# An idle virtual machine loses up to 1 % of its processors' time; where it loses twice as much, that is said as the
# reason.
STOLEN_SHARE = 0.02
# No load makes a client late by seconds, other than its machine standing still.
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
# What servers say in an error's text, in lower case, when it is not the request that is wrong.
_SAID_OF_MEMORY = (
    "out of memory",
    "outofmemory",
    "can't allocate memory",
    "cannot allocate memory",
)
_SAID_OF_SUPPORT = (
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
    known: Sequence[TrialMetrics] = (),
) -> Failure | None:
    """Return why the trial does not count, or None. The failure that came first is the cause that is named.

    `metric`: the primary one. `known`: as in `moved_metrics`.
    """
    if abs(health.clock_step_s) > CLOCK_STEP_S:
        return _clock_was_set(health.clock_step_s)
    if sums.first_failure is not None:
        return _stood_still(sums, health) or _failed_request(sums.first_failure, sums)
    if workload.request_count not in (None, sums.requests):
        cause = f"{sums.requests} of {workload.request_count} requests were sent."
        return Failure(outcome=Outcome.INVALID, cause=cause)
    return (
        _wrong_tokens(sums)
        or _clocks_apart(sums, health)
        or _client_bound(sums, workload, health, metric, known)
    )


def _clock_was_set(step_s: float) -> Failure:
    direction = "forward" if step_s > 0 else "back"
    cause = f"this machine's clock was set {direction} by {show_seconds(abs(step_s))} while it ran, or the machine slept"
    return Failure(outcome=Outcome.DISTURBED, cause=cause)


def _stood_still(sums: RequestSums, health: ClientHealth) -> Failure | None:
    """Whether requests ran out of time on a machine that did not run itself."""
    late_s = max(health.send_lateness_p99_s, health.loop_lag_p99_s)
    if late_s < STOOD_STILL_S or sums.statuses.keys() - {"ok", "stalled", "timeout"}:
        return None
    cause = f"the client was late by {show_seconds(late_s)} itself when requests ran out of time"
    return Failure(outcome=Outcome.DISTURBED, cause=cause)


def _clocks_apart(sums: RequestSums, health: ClientHealth) -> Failure | None:
    """Whether it matters how badly the clocks of the client's machines are known."""
    if not health.nodes or not sums.requests:
        return None
    allowed_s = max(MEAN_DELAY_FLOOR_S, min(CLOCK_ERROR_S, CLOCK_ERROR_SHARE * sums.makespan_s))
    worst = max(health.nodes, key=lambda node: node.off_by_s)
    if worst.off_by_s <= allowed_s:
        return None
    cause = f"the clock of {worst.name} may be off by {show_seconds(worst.off_by_s)} (limit {show_seconds(allowed_s)})"
    return Failure(outcome=Outcome.DISTURBED, cause=cause)


def _failed_request(first: dict[str, Json], sums: RequestSums) -> Failure:
    answer = (
        f"HTTP {first['http_status']}: "
        if first["status"] in ("http_error", "rate_limited")
        else ""
    )
    cause = f"Request {first['request']}: {answer}{first['error']}".rstrip(".")
    if sums.failed > 1:
        cause += f" ({sums.failed} of {sums.requests} requests failed)"
    return Failure(outcome=_outcome(first), cause=f"{cause}.")


def _outcome(row: dict[str, Json]) -> Outcome:
    said = str(row["error"]).lower()
    if any(words in said for words in _SAID_OF_MEMORY):
        return Outcome.OOM
    if row["status"] == "http_error" and (
        row["http_status"] == 501 or any(words in said for words in _SAID_OF_SUPPORT)
    ):
        return Outcome.UNSUPPORTED
    return _OUTCOME_OF_STATUS[row["status"]]


def _wrong_tokens(sums: RequestSums) -> Failure | None:
    for kind in ("output", "input"):
        if wrong := sums.wrong_tokens.get(kind):
            cause = (
                f"Requested {wrong.asked} {kind} tokens, the engine counted {wrong.counted} "
                f"({wrong.requests} of {sums.requests} requests)."
            )
            return Failure(outcome=Outcome.INVALID, cause=cause)
    return None


def _client_bound(
    sums: RequestSums,
    workload: Workload,
    health: ClientHealth,
    metric: str,
    known: Sequence[TrialMetrics],
) -> Failure | None:
    """Reject the trial only where the metric that the study compares by may have moved."""
    how = moved_metrics(sums, workload, health, known).get(metric)
    if how is None:
        return None
    stolen = f"; a hypervisor took {show_percent(health.stolen_share)} of the processors"
    reason = stolen if health.stolen_share >= STOLEN_SHARE else ""
    return Failure(outcome=Outcome.CLIENT_BOUND, cause=f"client too slow ({how}{reason})")


def moved_metrics(
    sums: RequestSums, workload: Workload, health: ClientHealth, known: Sequence[TrialMetrics] = ()
) -> dict[str, str]:
    """Return what the client may have moved by more than its limit: `Metric.moves_with` of metrics, each with how far.

    `known`: metrics of the warm-up and of the earlier attempts of this point in this block, rejected ones included.
    Limits are shares of their medians. A trial whose point has none is judged by its own times.
    """
    if not sums.completed:
        return {}
    typical = _typical_times(
        [metrics for metrics in known if metrics.ttft_s is not None] or [_own_times(sums)]
    )
    ttft_s, tpot_s = typical.ttft_s or 0.0, typical.tpot_s or 0.0
    # A warm-up has fewer tokens than a trial, so that latencies are put together from their parts.
    tokens = sums.output_tokens / sums.completed
    decoding_s = tpot_s * max(tokens - 1, 0.0)
    # What is read late still has its own time where the kernel gives it, unless the next token came meanwhile: one read
    # of both has one time. Where tokens have no times of their own, a short wait cannot have joined them.
    next_token_s = inf if tokens <= 1 else typical.tpot_s or TAIL_LAG_FLOOR_S
    own_times = health.kernel_times and health.loop_lag_p99_s < next_token_s
    lag_mean_s, lag_p99_s = (
        (0.0, 0.0) if own_times else (health.loop_lag_mean_s or 0.0, health.loop_lag_p99_s)
    )
    delay_s = (sums.delay.statistic("mean") or 0.0) + lag_mean_s
    gap_s = typical.itl_p99_s or ttft_s
    ttft_p99_s = typical.ttft_p99_s or ttft_s
    checks = [
        ("ttft", "mean TTFT", delay_s, _mean_limit(ttft_s)),
        ("ttft", "TTFT p99", lag_p99_s, max(TAIL_LAG_FLOOR_S, TAIL_TTFT_SHARE * ttft_p99_s)),
        ("itl", "ITL p99", lag_p99_s, max(TAIL_LAG_FLOOR_S, TAIL_LAG_SHARE * gap_s)),
        ("tpot", "decoding", lag_mean_s, _mean_limit(decoding_s)),
        ("latency", "mean latency", delay_s, _mean_limit(ttft_s + decoding_s)),
    ]
    if (
        workload.open_loop
    ):  # the schedule goes on whatever is late, so that only the ends of the trial can move
        end_s = health.send_lateness_p99_s + lag_p99_s
        checks.append(("output_throughput", "makespan", end_s, _mean_limit(sums.makespan_s)))
    else:  # a stream sends its next request once it has noticed the end of the last
        checks.append(
            ("output_throughput", "mean latency", delay_s, _mean_limit(ttft_s + decoding_s))
        )
    found: dict[str, str] = {}
    for name, what, added_s, allowed_s in checks:
        if added_s > allowed_s:
            found.setdefault(
                name, f"+{show_seconds(added_s)} on {what}, limit {show_seconds(allowed_s)}"
            )
    return found


def _mean_limit(time_s: float) -> float:
    return max(MEAN_DELAY_FLOOR_S, MEAN_DELAY_SHARE * time_s)


def _own_times(sums: RequestSums) -> TrialMetrics:
    return TrialMetrics(
        ttft_s=sums.statistic("ttft", "mean"),
        ttft_p99_s=sums.statistic("ttft", "p99"),
        tpot_s=sums.statistic("tpot", "mean"),
        itl_p99_s=sums.statistic("itl", "p99"),
    )


def _typical_times(known: Sequence[TrialMetrics]) -> TrialMetrics:
    """Return the median of each time that a limit is a share of."""
    found: dict[str, float] = {}
    for name in ("ttft_s", "ttft_p99_s", "tpot_s", "itl_p99_s"):
        values = [value for metrics in known if (value := getattr(metrics, name)) is not None]
        if values:
            found[name] = median(values)
    return TrialMetrics(**found)
