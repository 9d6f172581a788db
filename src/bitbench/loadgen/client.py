"""Runs one job, or one worker's part of it: plan, connections, clock, self-observation."""

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
from bitbench.loadgen.health import HealthMonitor, client_health
from bitbench.loadgen.progress import RunningCounts, Snapshot
from bitbench.loadgen.requests import plan_requests
from bitbench.loadgen.row_writer import RequestRowWriter
from bitbench.ports import LoadJob, LoadResult
from bitbench.records.request_rows import RequestParts

# A sleeping process is scheduled 20 to 80 µs after its time, more on a busy machine; the last moment is not slept.
_AWAKE_BEFORE_ZERO_S = 0.001
# A machine that takes the core away for longer than this just at time zero, before anything is sent, has delayed the
# trial, not a request. Half of what a mean may be late by (`loadgen.verdict`).
_LATE_START_S = 0.0005
MADE_AHEAD = 65_536  # requests whose bytes exist before they are due; 40 µs each
_STARTS = 20  # tried; each takes some milliseconds


class WorkerPart(NamedTuple):
    """Worker number `worker` of `workers`, from 0: which requests are its own follows from these and the plan."""

    worker: int
    workers: int

    def owns(
        self, numbers: npt.NDArray[np.int64], streams: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Whole streams go to one worker; requests without one (-1) go round."""
        is_own: npt.NDArray[np.bool_] = (
            np.where(streams < 0, numbers, streams) % self.workers == self.worker
        )
        return is_own


WHOLE = WorkerPart(0, 1)


def run_job(job: LoadJob) -> LoadResult:
    """Send a workload's requests and time what comes back. Blocks the calling thread until all have ended."""
    return uvloop.run(run_client_part(job, WHOLE, choose_zero=monotonic))


async def run_client_part(
    job: LoadJob,
    part: WorkerPart,
    choose_zero: Callable[[], float],
    report: Callable[[Snapshot], None] | None = None,
) -> LoadResult:
    """Like `run_job` for one worker. `choose_zero` is called when all is prepared and says when time zero is."""
    plan = plan_requests(job, part.owns)
    plan.make_ahead(MADE_AHEAD)
    monitor = HealthMonitor(asyncio.get_running_loop(), job.workload.concurrency // part.workers)
    counts = RunningCounts(len(plan), report) if report is not None else None
    rows = RequestRowWriter(job, len(plan))
    try:
        dispatcher = Dispatcher(job, plan, rows, monitor, counts)
        limits = LimitWatch(job, dispatcher.in_flight, rows)
        await dispatcher.open_connections()
        with _without_garbage_collection():
            zero = _begin(choose_zero(), monitor, is_shared=part.workers > 1)
            dispatcher.zero = rows.zero = zero
            dispatcher.send_due()  # the first thing after zero: what is due then is late by all that comes before
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
        health=client_health([health]),
        started_at=started_at.isoformat(),
        duration_s=duration_s,
    )


def _begin(zero: float, monitor: HealthMonitor, *, is_shared: bool) -> float:
    """Waits for time zero, and for a later one where this process was not running at that moment: nothing has been sent
    yet. One that workers share stays. Returns it."""
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
    pause_s = zero - _AWAKE_BEFORE_ZERO_S - monotonic()
    if pause_s > 0:
        sleep(pause_s)
    while monotonic() < zero:
        pass


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A collection walks all objects and would stop the loop for milliseconds; a trial makes few cycles."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
