"""Servers that serve so many requests at once, first come first served, and searches for their highest rate.

Time is simulated: a search of ten minutes takes a twentieth of a second. Everything but the server is the code of
`bitbench load`: the length of its trials, the next rate, the verdict of a trial, the answer.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log

import numpy as np
import pyarrow as pa

from bitbench.analysis.objectives import judge_objectives
from bitbench.analysis.rate_search import RateTrial, find_next_rate, summarize_rate_search
from bitbench.analysis.results.summary import RateAnswer
from bitbench.endpoint.load_study import LoadOptions, make_load_study_search_limits
from bitbench.records.request_sums import RequestSums
from bitbench.study.objective import Objective, RateTrialKind
from bitbench.study.study_file import parse_objectives
from tests.support.synthetic import SCHEMA

TOKENS = 8
REQUESTS_FOR_TRUTH = 500_000
FILLING = 20_000  # of them, left out
SPREAD_OF_START = log(2)


def served(arrivals: np.ndarray, capacity: int, service_s: np.ndarray) -> pa.Table:
    free = [0.0] * capacity
    heapq.heapify(free)
    starts = []
    for arrival, takes in zip(arrivals, service_s, strict=True):
        start = max(arrival, heapq.heappop(free))
        starts.append(start)
        heapq.heappush(free, start + takes)
    return request_rows(arrivals, np.array(starts), service_s, service_s / TOKENS)


def request_rows(
    arrivals: np.ndarray, starts: np.ndarray, service_s: np.ndarray, first_token_s: np.ndarray
) -> pa.Table:
    count = len(arrivals)
    columns = pa.table(
        {
            "planned_s": arrivals,
            "sent_s": arrivals,
            "first_token_s": starts + first_token_s,
            "last_token_s": starts + service_s,
            "end_s": starts + service_s,
            "output_tokens": [TOKENS] * count,
            "timed_tokens": [TOKENS - 1] * count,
            "status": ["ok"] * count,
        }
    )
    missing = [column for column in SCHEMA if column.name not in columns.column_names]
    for column in missing:
        columns = columns.append_column(column, pa.nulls(count, column.type))
    return columns


def starts_of_equal_requests(arrivals: np.ndarray, capacity: int, service_s: float) -> np.ndarray:
    """Return when each request is begun if all take equally long: then slot i serves every `capacity`-th request."""
    starts = np.empty(len(arrivals))
    for slot in range(capacity):
        own = arrivals[slot::capacity]
        busy_s = service_s * np.arange(len(own))
        starts[slot::capacity] = np.maximum.accumulate(own - busy_s) + busy_s
    return starts


def trial(
    rate: float,
    *,
    capacity: int = 4,
    service_s: float = 0.1,
    duration_s: float = 10.0,
    noise: float = 0.0,
    seed: int = 0,
) -> pa.Table:
    """At a constant rate; `noise`: relative spread of service times."""
    rng = np.random.default_rng(seed)
    count = max(1, round(rate * duration_s))
    return served(
        np.arange(count) / rate, capacity, service_s * rng.normal(1.0, noise, count).clip(0.5)
    )


def poisson_trial(
    rate: float, *, duration_s: float, seed: int, capacity: int = 4, service_s: float = 0.1
) -> pa.Table:
    rng = np.random.default_rng(seed)
    count = max(1, round(rate * duration_s))
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    return served(arrivals, capacity, np.full(count, service_s))


@dataclass(frozen=True)
class SimulatedServer:
    capacity: int  # requests at once
    service_s: float
    first_token_s: float | None = None  # after a slot is free; None: at an even pace of tokens
    noise: float = 0.0  # relative: how its speed varies from trial to trial
    varies: bool = (
        False  # lengths of requests: exponential, so that the longest take several times the mean
    )
    arrival: str = "poisson"

    def serve(self, rate: float, count: int, rng: np.random.Generator) -> pa.Table:
        """Return the request rows of a trial."""
        service_s = self.service_s * float(np.exp(rng.normal(0.0, self.noise)))
        arrivals = self._arrivals(rate, count, rng)
        if self.varies:
            return served(arrivals, self.capacity, rng.exponential(service_s, count))
        starts = starts_of_equal_requests(arrivals, self.capacity, service_s)
        first_token_s = service_s * (self.first_token_s or self.service_s / TOKENS) / self.service_s
        return request_rows(
            arrivals, starts, np.full(count, service_s), np.full(count, first_token_s)
        )

    def _arrivals(self, rate: float, count: int, rng: np.random.Generator) -> np.ndarray:
        if self.arrival == "constant":
            return np.arange(count) / rate
        return np.cumsum(rng.exponential(1 / rate, count))


@cache
def true_rate(server: SimulatedServer, slo: str) -> float:
    """Return the highest rate at which an endless trial would meet an objective on the time to first token."""
    (objective,) = parse_objectives(slo)
    low, high = 0.1 * server.capacity / server.service_s, server.capacity / server.service_s
    if server.arrival == "constant":
        return high
    while high / low > 1.001:
        rate = (low * high) ** 0.5
        if _long_run_percentile(server, objective, rate) <= objective.limit:
            low = rate
        else:
            high = rate
    return low


def _long_run_percentile(server: SimulatedServer, objective: Objective, rate: float) -> float:
    """Return the percentile of many requests, without those that found the queue still filling."""
    rng = np.random.default_rng(0)
    rows = replace(server, noise=0.0).serve(rate, REQUESTS_FOR_TRUTH, rng)
    ttft = rows["first_token_s"].to_numpy() - rows["planned_s"].to_numpy()
    return float(np.percentile(ttft[FILLING:], float(objective.statistic.removeprefix("p"))))


@dataclass(frozen=True)
class SimulatedSearch:
    answer: RateAnswer
    trials: int
    requests: int
    seconds: float


def search_server(server: SimulatedServer, slo: str, seed: int) -> SimulatedSearch:
    """Return what `bitbench load --slo` finds, with its defaults."""
    rng = np.random.default_rng([seed, server.capacity])
    objectives = parse_objectives(slo)
    # The first rate is one client's, as a few requests show it: else all searches would try the same rates first.
    latency_s = server.service_s * float(np.exp(rng.uniform(-SPREAD_OF_START, SPREAD_OF_START)))
    limits = make_load_study_search_limits(LoadOptions(objectives=objectives), latency_s)
    trials: list[RateTrial] = []
    requests, seconds = 0, 0.0
    while (wanted := find_next_rate(trials, limits)) is not None:
        count = limits.count_trial_requests(wanted.rate, wanted.kind)
        rows = server.serve(wanted.rate, count, rng)
        judged = judge_objectives(RequestSums.of(rows, objectives))
        assert judged is not None
        trials.append(
            RateTrial(
                wanted.rate, bool(judged.holds), count, wanted.kind is RateTrialKind.VERIFYING
            )
        )
        requests += count
        seconds += float(rows["end_s"].to_numpy().max())
    return SimulatedSearch(summarize_rate_search(trials, limits), len(trials), requests, seconds)


@dataclass(frozen=True)
class SearchCoverage:
    """How searches of a server compare with the truth."""

    searches: int
    true_rate: float
    covered: float  # share of the intervals that contain the truth
    bias: float  # median of found / true, less 1
    half_width: float  # median, relative
    verified: float  # share
    verified_too_much: float  # share of all searches whose verified rate is above the truth
    trials: float  # means
    requests: float
    minutes: float


def measure_search_coverage(server: SimulatedServer, slo: str, searches: int) -> SearchCoverage:
    """Return how often and how far many searches are right."""
    truth = true_rate(server, slo)
    found = [search_server(server, slo, seed) for seed in range(searches)]
    answers = [search.answer for search in found]
    verified = [answer.verified for answer in answers if answer.verified is not None]
    return SearchCoverage(
        searches=searches,
        true_rate=truth,
        covered=_mean([_covers(answer, truth) for answer in answers]),
        bias=float(np.median([(answer.rate or 0.0) / truth for answer in answers])) - 1,
        half_width=float(np.median([_half_width(answer) for answer in answers])),
        verified=len(verified) / searches,
        verified_too_much=sum(rate > truth for rate in verified) / searches,
        trials=_mean([search.trials for search in found]),
        requests=_mean([search.requests for search in found]),
        minutes=_mean([search.seconds / 60 for search in found]),
    )


def _covers(answer: RateAnswer, truth: float) -> bool:
    return answer.low is not None and answer.high is not None and answer.low <= truth <= answer.high


def _half_width(answer: RateAnswer) -> float:
    if answer.rate is None or answer.low is None or answer.high is None:
        return float("inf")
    return (answer.high - answer.low) / 2 / answer.rate


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
