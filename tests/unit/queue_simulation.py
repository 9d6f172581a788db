"""Request rows of a server that serves `capacity` requests at once, first come first served, `service_s` each."""

import heapq

import numpy as np
import pyarrow as pa

TOKENS = 8


def served(arrivals: np.ndarray, capacity: int, service_s: np.ndarray) -> pa.Table:
    free = [0.0] * capacity
    heapq.heapify(free)
    starts = []
    for arrival, takes in zip(arrivals, service_s, strict=True):
        start = max(arrival, heapq.heappop(free))
        starts.append(start)
        heapq.heappush(free, start + takes)
    begin = np.array(starts)
    first = begin + service_s / TOKENS
    end = begin + service_s
    count = len(arrivals)
    return pa.table(
        {
            "planned_s": arrivals,
            "first_token_s": first,
            "last_token_s": end,
            "end_s": end,
            "output_tokens": [TOKENS] * count,
            "timed_tokens": [TOKENS - 1] * count,
            "status": ["ok"] * count,
        }
    )


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
    return served(np.arange(count) / rate, capacity, service_s * rng.normal(1.0, noise, count).clip(0.5))


def poisson_trial(rate: float, *, duration_s: float, seed: int, capacity: int = 4, service_s: float = 0.1) -> pa.Table:
    rng = np.random.default_rng(seed)
    count = max(1, round(rate * duration_s))
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    return served(arrivals, capacity, np.full(count, service_s))
