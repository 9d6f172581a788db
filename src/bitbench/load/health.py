"""The client watches itself: how late its event loop notices things, and how much of a core it takes."""

import asyncio
import random
import time

import numpy as np

from bitbench.core.trial import ClientHealth
from bitbench.load.connection import Exchange
from bitbench.timerfd import Timer

# Mean time between two looks. Each one wakes the process, which took 70 µs of a core where it was measured: at 50 a
# second 0.35 % of it, which an engine that computes on all cores loses. A trial of two seconds still has a p99.
PROBE_INTERVAL_S = 0.020


class HealthMonitor:
    """Looks at the loop at random moments and notes how long each look had to wait.

    The moments are a Poisson process, so the waits have the distribution that an arriving byte meets (Poisson
    arrivals see time averages); a fixed period could fall into step with the tokens. Moments that pass while the
    loop is blocked all count, so one long block is not one sample.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer = Timer()
        self._random = random.Random(0)
        self._lags: list[float] = []
        self._due = 0.0
        self._started = 0.0
        self._cpu_started = 0.0

    def start(self) -> None:
        self._started = time.monotonic()
        self._cpu_started = time.process_time()
        self._schedule(self._started)
        self._loop.add_reader(self._timer.fileno(), self._look)

    def stop(self, exchanges: list[Exchange]) -> ClientHealth:
        now = time.monotonic()
        self._note(now)  # moments that are due count, also when the loop did not come to them
        self._loop.remove_reader(self._timer.fileno())
        self._timer.close()
        lateness = [exchange.sent - exchange.planned for exchange in exchanges if exchange.sent is not None]
        return ClientHealth(
            send_lateness_p99_s=_p99(lateness),
            loop_lag_p99_s=_p99(self._lags),
            loop_lag_mean_s=float(np.mean(self._lags)) if self._lags else 0.0,
            cpu_share=(time.process_time() - self._cpu_started) / max(now - self._started, 1e-9),
        )

    def _look(self) -> None:
        self._timer.acknowledge()
        self._note(time.monotonic())

    def _note(self, now: float) -> None:
        while self._due <= now:
            self._lags.append(now - self._due)
            self._schedule(self._due)

    def _schedule(self, after: float) -> None:
        self._due = after + self._random.expovariate(1 / PROBE_INTERVAL_S)
        self._timer.arm(self._due)


def _p99(values: list[float]) -> float:
    return float(np.quantile(values, 0.99)) if values else 0.0
