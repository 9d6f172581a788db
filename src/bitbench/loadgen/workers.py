"""The load client as a set of processes on one clock, each with its part of the schedule."""

import os
import selectors
from collections.abc import Callable, Sequence
from time import monotonic
from types import TracebackType
from typing import Self

import pyarrow as pa

from bitbench.loadgen.client import WHOLE, WorkerPart
from bitbench.loadgen.frames import WorkerTask
from bitbench.loadgen.health import client_health
from bitbench.loadgen.progress import Snapshot, sum_of
from bitbench.loadgen.worker import Worker
from bitbench.ports import LoadJob, LoadResult
from bitbench.records.load_progress import LoadProgress
from bitbench.study.workload import Workload
from bitbench.util.linux import require_linux

# With so many streams of 100 events a second each, one process took 0.7 of a core and its median TTFT was true to
# 0.1 %; its p99 has still to be measured on a machine without other work.
STREAMS_PER_WORKER = 1_024
# From the moment at which all are ready to time zero: enough for each to have read what it is.
_LEAD_S = 0.020


class LoadWorkers:
    """Implements core.ports.LoadClient. Workers are kept from job to job and end with the context.

    `count` None: one, and more where a workload has more streams than one carries and cores are there.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count = count
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        require_linux()
        self._have(self._count or 1)  # imports take half a second; they happen while the first engine starts
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(worker.pid for worker in self._workers)

    def run(self, job: LoadJob, on_progress: Callable[[LoadProgress], None] | None = None) -> LoadResult:
        """Blocks until the trial has ended. Raises LoadError where the client failed, not the engine."""
        before: LoadProgress | None = None

        def tell(snapshots: Sequence[Snapshot]) -> None:
            nonlocal before
            assert on_progress is not None
            before = sum_of(snapshots, before)
            on_progress(before)

        return self.run_part(job, WHOLE, lambda: monotonic() + _LEAD_S, tell if on_progress else None)

    def run_part(
        self,
        job: LoadJob,
        part: WorkerPart,
        choose_zero: Callable[[], float],
        on_snapshots: Callable[[Sequence[Snapshot]], None] | None = None,
    ) -> LoadResult:
        """Like `run` for one of several machines. `choose_zero` is called when all is prepared and says when time zero
        is, on this machine's clock."""
        count = self._count or workers_for(job.workload, part.workers)
        try:
            workers = self._have(count)
            for index, worker in enumerate(workers):
                own = WorkerPart(part.worker + index * part.workers, count * part.workers)
                worker.begin(WorkerTask(job, own, report=on_snapshots is not None))
            for worker in workers:
                worker.read()  # that it is ready
            zero = choose_zero()
            for worker in workers:
                worker.start_clock(zero)
            return merge(_listen(workers, on_snapshots))
        except BaseException:  # also an interrupt: what the others still say would be taken for the next job's
            self._end()
            raise

    def _have(self, count: int) -> list[Worker]:
        while len(self._workers) < count:
            self._workers.append(Worker())
        return self._workers[:count]

    def _end(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.end()


def workers_for(workload: Workload, machines: int = 1) -> int:
    """As many as the streams of one of these machines need, but half of its cores at least stay with the engine."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(-(-workload.concurrency // (STREAMS_PER_WORKER * machines)), cores // 2))


def _listen(workers: list[Worker], on_snapshots: Callable[[Sequence[Snapshot]], None] | None) -> list[LoadResult]:
    """Wait for all results; pass on what is said meanwhile."""
    results: list[LoadResult] = []
    snapshots: dict[int, Snapshot] = {}
    silent = {worker.pid for worker in workers}  # have said nothing since the last progress
    news = False  # a snapshot that was not passed on yet
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker, selectors.EVENT_READ, worker)
        while len(results) < len(workers):
            for key, _ in selector.select():
                message = key.data.read()
                silent.discard(key.data.pid)
                if isinstance(message, LoadResult):
                    results.append(message)
                    selector.unregister(key.fileobj)
                elif isinstance(message, Snapshot):
                    snapshots[key.data.pid] = message
                    news = True
                if news and not silent and on_snapshots is not None:
                    on_snapshots(list(snapshots.values()))
                    news = False
                    silent = {entry.data.pid for entry in selector.get_map().values()}
    return results


def merge(results: Sequence[LoadResult]) -> LoadResult:
    """In planned order, on the clock that all had."""
    requests = pa.concat_tables([result.requests for result in results])
    if len(results) > 1:
        requests = requests.sort_by("request")
    return LoadResult(
        requests=requests,
        health=client_health([worker for result in results for worker in result.health.workers]),
        started_at=min(result.started_at for result in results),
        duration_s=max(result.duration_s for result in results),
    )
