"""Runs a load job, or one worker's part of it: plan, connections, clock and self-observation."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import uvloop

from bitbench.loadgen.dispatch import Dispatcher, LimitWatch
from bitbench.loadgen.health import HealthMonitor, summarize_client_health
from bitbench.loadgen.progress import RunningCounts, Snapshot
from bitbench.loadgen.requests import plan_requests
from bitbench.loadgen.row_writer import RequestRowWriter
from bitbench.ports import LoadJob, LoadResult
from bitbench.records.request_rows import RequestParts

# A sleeping process wakes up 20 to 80 µs late, more on a busy machine, so the last moment is a busy
# wait.
_AWAKE_BEFORE_ZERO_S = 0.001
# If the machine takes the core away for longer than this at time zero, before anything is sent, it
# delays the trial, not a request. It is half of the mean delay that `loadgen.verdict` allows.
_LATE_START_S = 0.0005
MADE_AHEAD = 65_536  # requests whose bytes are made before they are due, in 40 µs each
_STARTS = 20  # attempts of some milliseconds each


class WorkerPart(NamedTuple):
    """Worker number `worker` (from 0) of `workers`, which decides its requests of a plan."""

    worker: int
    workers: int

    def owns(
        self, numbers: npt.NDArray[np.int64], streams: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return which requests this worker sends.

        A whole stream goes to one worker. Requests without a stream (-1) go to all in turn.
        """
        keys = np.where(streams < 0, numbers, streams)
        is_owned: npt.NDArray[np.bool_] = keys % self.workers == self.worker
        return is_owned


WHOLE = WorkerPart(0, 1)


def run_job(job: LoadJob) -> LoadResult:
    """Send a workload's requests and time the answers. Block the thread until all have ended."""
    return uvloop.run(run_client_part(job, WHOLE, choose_zero=monotonic))


async def run_client_part(
    job: LoadJob,
    part: WorkerPart,
    choose_zero: Callable[[], float],
    report: Callable[[Snapshot], None] | None = None,
) -> LoadResult:
    """Send the part of a job that one worker has, and return its result.

    `choose_zero` is called when everything is prepared, and returns the moment of time zero.
    """
    plan = plan_requests(job, part.owns)
    plan.make_ahead(MADE_AHEAD)
    monitor = HealthMonitor(asyncio.get_running_loop(), job.workload.concurrency // part.workers)
    counts = RunningCounts(len(plan), report) if report is not None else None
    rows = RequestRowWriter(job, len(plan))
    try:
        dispatcher = Dispatcher(job, plan, rows, monitor, counts)
        limits = LimitWatch(job, dispatcher.in_flight, rows)
        await dispatcher.open_connections()
        with _disable_garbage_collection():
            zero = _begin(choose_zero(), monitor, is_shared=part.workers > 1)
            dispatcher.zero = rows.zero = zero
            # Nothing may come before this: requests that are due at zero would be late by it.
            dispatcher.send_due()
            dispatcher.keep_sending()
            started_at = datetime.now(UTC) + timedelta(seconds=zero - monotonic())
            limits.look()
            if counts is not None:
                counts.start(zero, dispatcher.in_flight)
            await dispatcher.finished
            duration_s = monotonic() - zero
            limits.stop()
            if counts is not None:
                counts.stop()
            health = monitor.stop()
        dispatcher.close()
        sums, part_rows = rows.finish()
    except BaseException:
        rows.discard()
        raise
    return LoadResult(
        sums=sums,
        rows=RequestParts((part_rows,)),
        health=summarize_client_health([health]),
        started_at=started_at.isoformat(),
        duration_s=duration_s,
    )


def _begin(zero: float, monitor: HealthMonitor, *, is_shared: bool) -> float:
    """Wait for time zero, and return it.

    If this process was not running at that moment, choose a later one: nothing was sent yet. A time
    zero that workers share stays.
    """
    monitor.start(zero)
    _wait_until(zero)
    for _ in range(_STARTS):
        if is_shared or monotonic() - zero < _LATE_START_S:
            break
        zero = monotonic() + 2 * _AWAKE_BEFORE_ZERO_S
        monitor.start(zero)
        _wait_until(zero)
    return zero


def _wait_until(zero: float) -> None:
    """Sleep until just before this moment, and then wait busily."""
    pause_s = zero - _AWAKE_BEFORE_ZERO_S - monotonic()
    if pause_s > 0:
        sleep(pause_s)
    while monotonic() < zero:
        pass


@contextmanager
def _disable_garbage_collection() -> Iterator[None]:
    """Turn off garbage collection during a trial.

    A collection walks all objects and would stop the loop for milliseconds. A trial makes few
    cycles.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
