"""Measures the load client itself.

It measures how late the client sends requests and notices answers, and how much of a core it takes.
It also detects steps of the wall clock, and processor time that a hypervisor gave to others.
"""

import asyncio
import random
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bitbench.loadgen.connection import Exchange
from bitbench.records.trial import ClientHealth, WorkerHealth
from bitbench.util.timerfd import Timer

# Samples of which only the fastest counts. A process that loses its core between the readings of
# the two clocks would see a step that did not happen.
_LOOKS = 5


class WallClock:
    """A watch of the wall clock, from the moment it is created.

    The kernel stamps received data with the wall clock. The distance between the two clocks turns a
    stamp into a monotonic time. If the wall clock is set between the stamp and its reading, an
    answer would seem to have waited. Both clocks are corrected in the same way, so their distance
    changes only by a step, or by a sleep of the machine, in which the monotonic clock stops.
    """

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._distance_s = self._measure_distance()

    def step_s(self) -> float:
        """Return by how much the wall clock was set since the watch began. Forward is positive."""
        return self._measure_distance() - self._distance_s

    def _measure_distance(self) -> float:
        return min(self._look() for _ in range(_LOOKS))[1]

    def _look(self) -> tuple[float, float]:
        """Return how long the readings took, and how far the wall clock was ahead in the middle."""
        before = self._monotonic()
        wall = self._wall()
        after = self._monotonic()
        return after - before, wall - (before + after) / 2


class StolenTime:
    """A watch of the time that a hypervisor gives to other machines, from its creation on.

    `statistics` has the format of /proc/stat.
    """

    def __init__(self, statistics: Path = Path("/proc/stat")) -> None:
        self._statistics = statistics
        self._stolen, self._all = self._ticks()

    def share(self) -> float:
        """Return the stolen share of all processor time since the watch began, or 0 if unknown."""
        stolen, all_ticks = self._ticks()
        return max(0, stolen - self._stolen) / max(all_ticks - self._all, 1)

    def _ticks(self) -> tuple[int, int]:
        """Return the stolen ticks and all ticks (user to steal, the first eight columns)."""
        try:
            _, *ticks = self._statistics.read_text(encoding="ascii").partition("\n")[0].split()[:9]
        except (OSError, ValueError):
            return 0, 0
        stolen = int(ticks[7]) if len(ticks) > 7 else 0
        return stolen, sum(map(int, ticks))


# Mean time between two probes. Each wakes the process, which took 70 µs of a core in our
# measurement. At 50 a second that is 0.35 %, which an engine that computes on all cores loses. A
# trial of two seconds still has a p99.
PROBE_INTERVAL_S = 0.020
# With many streams the process is awake anyway, and a probe costs some microseconds.
MANY_STREAMS = 64
QUICK_PROBE_INTERVAL_S = 0.005


class HealthMonitor:
    """A monitor that probes the event loop at random moments and notes how late each probe was.

    The moments are a Poisson process, so the delays have the distribution that an arriving byte
    meets (Poisson arrivals see time averages). A fixed period could fall into step with the tokens.
    All moments that pass while the loop is blocked count, so a long block is more than one sample.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, streams: int) -> None:
        self._loop = loop
        self._interval_s = QUICK_PROBE_INTERVAL_S if streams >= MANY_STREAMS else PROBE_INTERVAL_S
        self.timer = Timer()
        self._random = random.Random(0)
        self._lags: list[float] = []
        self._lateness = array("d")
        self._unread = array("d")
        self._tick_s = 0.0  # resolution of the unread times, or 0.0 if they are exact
        self._ticks: set[int] = set()
        self._wall_clock = WallClock()
        self._stolen_time = StolenTime()
        self._due = 0.0
        self._started = 0.0
        self._cpu_started = 0.0

    def start(self, zero: float) -> None:
        """Start probing at `zero` on the monotonic clock. Call it shortly before that moment."""
        self._started = zero
        self._cpu_started = time.process_time()
        self._due = zero + self._random.expovariate(1 / self._interval_s)
        self.timer.arm(self._due)
        self._loop.add_reader(self.timer.fileno(), self._look)

    def note_exchange(self, exchange: Exchange) -> None:
        """Note how late an exchange that has ended was sent and noticed."""
        if exchange.sent is not None:
            self._lateness.append(exchange.sent - exchange.ready)
        if exchange.unread_s is not None:
            self._unread.append(exchange.unread_s)
            self._tick_s = max(self._tick_s, exchange.unread_step_s)
            if exchange.unread_step_s:
                self._ticks.add(int(exchange.response.times[0] / exchange.unread_step_s))

    def stop(self) -> WorkerHealth:
        """Stop probing and return the measurements."""
        now = time.monotonic()
        # Before the statistics, which take some milliseconds themselves.
        cpu_share = (time.process_time() - self._cpu_started) / max(now - self._started, 1e-9)
        self._note(now)  # due moments count even if the loop did not come to them
        self._loop.remove_reader(self.timer.fileno())
        self.timer.close()
        unread_mean_s, unread_p99_s = self._summarize_unread()
        return WorkerHealth(
            send_lateness_p99_s=_compute_p99(self._lateness),
            send_lateness_mean_s=_mean(self._lateness),
            loop_lag_p99_s=max(_compute_p99(self._lags), unread_p99_s),
            loop_lag_mean_s=max(_mean(self._lags), unread_mean_s),
            cpu_share=cpu_share,
            clock_step_s=self._wall_clock.step_s(),
            stolen_share=self._stolen_time.share(),
            kernel_times=not self._tick_s,
        )

    def _summarize_unread(self) -> tuple[float, float]:
        """Return the mean and p99 of the time that first tokens waited unread, less its error.

        The probes see average moments, but the first tokens of a batch arrive in the same moment.
        The kernel knows when it received each. If it counts in whole ticks, one value may be a tick
        too high. The error of the mean is half a tick over the root of the number of different
        ticks. Twice that is subtracted.
        """
        mean_s = _mean(self._unread)
        p99_s = _compute_p99(self._unread)
        if not self._tick_s:
            return mean_s, p99_s
        mean_error_s = self._tick_s / len(self._ticks) ** 0.5
        return max(0.0, mean_s - mean_error_s), max(0.0, p99_s - self._tick_s)

    def _look(self) -> None:
        self.timer.acknowledge()
        self._note(time.monotonic())

    def _note(self, now: float) -> None:
        while self._due <= now:
            self._lags.append(now - self._due)
            self._due += self._random.expovariate(1 / self._interval_s)
        self.timer.arm(self._due)


def _merge_worst_health(workers: Sequence[WorkerHealth]) -> WorkerHealth:
    """Return the worst value of each measurement. Kernel times need all workers to have them."""
    return WorkerHealth(
        send_lateness_p99_s=max(worker.send_lateness_p99_s for worker in workers),
        send_lateness_mean_s=max(worker.send_lateness_mean_s or 0.0 for worker in workers),
        loop_lag_p99_s=max(worker.loop_lag_p99_s for worker in workers),
        loop_lag_mean_s=max(worker.loop_lag_mean_s or 0.0 for worker in workers),
        cpu_share=max(worker.cpu_share for worker in workers),
        clock_step_s=max((worker.clock_step_s for worker in workers), key=abs),
        stolen_share=max(worker.stolen_share for worker in workers),
        kernel_times=all(worker.kernel_times for worker in workers),
    )


def summarize_client_health(workers: Sequence[WorkerHealth]) -> ClientHealth:
    """Return the health of the whole client from its workers."""
    return ClientHealth(**_merge_worst_health(workers).model_dump(), workers=tuple(workers))


def _compute_p99(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.99)) if values else 0.0


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
