"""Runs one job, or one worker's part of it: plan, connections, clock, self-observation."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep
from typing import NamedTuple

import uvloop

from bitbench.core.ports import LoadJob, LoadResult
from bitbench.load.dispatch import Dispatcher
from bitbench.load.health import HealthMonitor, client_health
from bitbench.load.limits import LimitWatch
from bitbench.load.progress import RunningFigures, Snapshot
from bitbench.load.requests import PlannedRequest, plan_requests
from bitbench.load.table import request_table

# A sleeping process is scheduled 20 to 80 µs after its time, more on a busy machine; the last moment is not slept.
_AWAKE_BEFORE_ZERO_S = 0.001


class WorkerPart(NamedTuple):
    """Worker number `worker` of `workers`, from 0: which requests are its own follows from these and the plan."""

    worker: int
    workers: int

    def of(self, plan: list[PlannedRequest]) -> list[PlannedRequest]:
        """Whole streams go to one worker; requests without one go round."""
        return [
            request
            for request in plan
            if (request.number if request.stream is None else request.stream) % self.workers == self.worker
        ]


WHOLE = WorkerPart(0, 1)


def run_job(job: LoadJob) -> LoadResult:
    """Send a workload's requests and time what comes back. Blocks the calling thread until all have ended."""
    return run_part(job, WHOLE, choose_zero=monotonic)


def run_part(
    job: LoadJob,
    part: WorkerPart,
    choose_zero: Callable[[], float],
    report: Callable[[Snapshot], None] | None = None,
) -> LoadResult:
    """Like `run_job` for one worker. `choose_zero` is called when all is prepared and says when time zero is."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(job, part, choose_zero, report))


async def _run(
    job: LoadJob, part: WorkerPart, choose_zero: Callable[[], float], report: Callable[[Snapshot], None] | None
) -> LoadResult:
    plan = part.of(plan_requests(job))
    monitor = HealthMonitor(asyncio.get_running_loop(), job.workload.concurrency // part.workers)
    figures = RunningFigures(len(plan), monitor, report) if report is not None else None
    dispatcher = Dispatcher(job, plan, figures, (monitor.timer,))
    limits = LimitWatch(job, dispatcher.in_flight, dispatcher.kept)
    await dispatcher.open_connections()
    with _without_garbage_collection():
        zero = choose_zero()
        started_at = datetime.now(UTC) + timedelta(seconds=zero - monotonic())
        monitor.start(zero)
        _wait_until(zero)
        dispatcher.start(zero)  # the first thing after zero: what is due then is late by all that comes before
        limits.start()
        if figures is not None:
            figures.start(zero, dispatcher.in_flight)
        await dispatcher.finished
        duration_s = monotonic() - zero
        limits.stop()
        if figures is not None:
            figures.stop()
        health = monitor.stop(dispatcher.exchanges)
    dispatcher.close()
    return LoadResult(
        requests=request_table(dispatcher.exchanges, zero, job.endpoint.api_key),
        health=client_health([health]),
        started_at=started_at.isoformat(),
        duration_s=duration_s,
    )


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
