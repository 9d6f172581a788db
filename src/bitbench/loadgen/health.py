"""The client watches itself: how late it sends and notices things, how much of a core it takes, whether the wall clock
was set, and what a hypervisor took away."""

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

# Of so many looks the one counts whose two readings were closest: a process that loses its core between them would
# see a step that is none.
_LOOKS = 5


class WallClock:
    """Begins to watch when it is made.

    The kernel stamps what it receives with the wall clock, and only its distance to the monotonic clock makes a time of
    that stamp. A step between the stamp and its reading would be taken for time that an answer lay unread. Both clocks
    are corrected alike, so their distance changes by a step only, or by a sleep of the machine, in which the monotonic
    one stands still.
    """

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._distance_s = self._distance()

    def step_s(self) -> float:
        """By how much it has been set since then; forward is positive."""
        return self._distance() - self._distance_s

    def _distance(self) -> float:
        return min(self._look() for _ in range(_LOOKS))[1]

    def _look(self) -> tuple[float, float]:
        """How long it took, and how far the wall clock was ahead in the middle of it."""
        before = self._monotonic()
        wall = self._wall()
        after = self._monotonic()
        return after - before, wall - (before + after) / 2


class StolenTime:
    """Begins to watch when it is made what a hypervisor gives to other machines. `statistics`: as /proc/stat."""

    def __init__(self, statistics: Path = Path("/proc/stat")) -> None:
        self._statistics = statistics
        self._stolen, self._all = self._ticks()

    def share(self) -> float:
        """Of all processors' time since then; 0.0 where the system does not tell."""
        stolen, all_ticks = self._ticks()
        return max(0, stolen - self._stolen) / max(all_ticks - self._all, 1)

    def _ticks(self) -> tuple[int, int]:
        """Stolen, and all: user, nice, system, idle, iowait, irq, softirq, steal."""
        try:
            _, *ticks = self._statistics.read_text(encoding="ascii").partition("\n")[0].split()[:9]
        except (OSError, ValueError):
            return 0, 0
        return int(ticks[7]) if len(ticks) > 7 else 0, sum(map(int, ticks))


# Mean time between two looks. Each one wakes the process, which took 70 µs of a core where it was measured: at 50 a
# second 0.35 % of it, which an engine that computes on all cores loses. A trial of two seconds still has a p99.
PROBE_INTERVAL_S = 0.020
# With many streams the process is awake anyway, and a look costs some microseconds.
MANY_STREAMS, QUICK_PROBE_INTERVAL_S = 64, 0.005


class HealthMonitor:
    """Looks at the loop at random moments and notes how long each look had to wait.

    The moments are a Poisson process, so the waits have the distribution that an arriving byte meets (Poisson
    arrivals see time averages); a fixed period could fall into step with the tokens. Moments that pass while the
    loop is blocked all count, so one long block is not one sample.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, streams: int) -> None:
        self._loop = loop
        self._interval_s = QUICK_PROBE_INTERVAL_S if streams >= MANY_STREAMS else PROBE_INTERVAL_S
        self.timer = Timer()
        self._random = random.Random(0)
        self._lags: list[float] = []
        self._lateness, self._unread = array("d"), array("d")
        self._tick_s = 0.0  # to which the kernel says how long something lay unread; 0.0: exactly
        self._ticks: set[int] = set()
        self._wall_clock = WallClock()
        self._stolen_time = StolenTime()
        self._due = 0.0
        self._started = 0.0
        self._cpu_started = 0.0

    def start(self, zero: float) -> None:
        """Shortly before time zero; looks from then on."""
        self._started = zero
        self._cpu_started = time.process_time()
        self._due = zero + self._random.expovariate(1 / self._interval_s)
        self.timer.arm(self._due)
        self._loop.add_reader(self.timer.fileno(), self._look)

    def note_exchange(self, exchange: Exchange) -> None:
        """One that has ended."""
        if exchange.sent is not None:
            self._lateness.append(exchange.sent - exchange.ready)
        if exchange.unread_s is not None:
            self._unread.append(exchange.unread_s)
            self._tick_s = max(self._tick_s, exchange.unread_step_s)
            if exchange.unread_step_s:
                self._ticks.add(int(exchange.response.times[0] / exchange.unread_step_s))

    def stop(self) -> WorkerHealth:
        now = time.monotonic()
        # Before the figures, which take some milliseconds themselves.
        cpu_share = (time.process_time() - self._cpu_started) / max(now - self._started, 1e-9)
        self._note(now)  # moments that are due count, also when the loop did not come to them
        self._loop.remove_reader(self.timer.fileno())
        self.timer.close()
        unread_mean_s, unread_p99_s = self._unread_times()
        return WorkerHealth(
            send_lateness_p99_s=_p99(self._lateness),
            send_lateness_mean_s=_mean(self._lateness),
            loop_lag_p99_s=max(_p99(self._lags), unread_p99_s),
            loop_lag_mean_s=max(_mean(self._lags), unread_mean_s),
            cpu_share=cpu_share,
            clock_step_s=self._wall_clock.step_s(),
            stolen_share=self._stolen_time.share(),
            kernel_times=not self._tick_s,
        )

    def _unread_times(self) -> tuple[float, float]:
        """Mean and p99 of how long first tokens lay unread, as far as that is certain.

        The looks see the average moment, but the first tokens of a batch come in the same one. The kernel knows when it
        received each. Where it says so in whole ticks, one value may be a tick too high, and a mean by half a tick over
        the root of the number of different ticks, of which twice is taken off.
        """
        mean_s, p99_s = _mean(self._unread), _p99(self._unread)
        if not self._tick_s:
            return mean_s, p99_s
        return max(0.0, mean_s - self._tick_s / len(self._ticks) ** 0.5), max(
            0.0, p99_s - self._tick_s
        )

    def _look(self) -> None:
        self.timer.acknowledge()
        self._note(time.monotonic())

    def _note(self, now: float) -> None:
        while self._due <= now:
            self._lags.append(now - self._due)
            self._due += self._random.expovariate(1 / self._interval_s)
        self.timer.arm(self._due)


def _worst_health(workers: Sequence[WorkerHealth]) -> WorkerHealth:
    """The largest of each figure; the kernel's times only where all have them."""
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


def client_health(workers: Sequence[WorkerHealth]) -> ClientHealth:
    return ClientHealth(**_worst_health(workers).model_dump(), workers=tuple(workers))


def _p99(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.99)) if values else 0.0


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
