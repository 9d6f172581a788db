"""The load client as a set of processes on one clock, and the frames that they exchange.

Each process sends a part of the schedule.
"""

import contextlib
import os
import pickle
import selectors
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import IO, NamedTuple, Self

from bitbench.loadgen.client import WHOLE, WorkerPart
from bitbench.loadgen.health import summarize_client_health
from bitbench.loadgen.progress import Snapshot, sum_progress_snapshots
from bitbench.ports import LoadJob, LoadResult
from bitbench.records.request_rows import RequestParts
from bitbench.records.trial import LoadProgress, WorkerHealth
from bitbench.study.workload import Workload
from bitbench.util.child_processes import (
    NOWHERE,
    collect_bitbench_variables,
    make_bitbench_command,
    read_child_frame,
    write_child_frame,
)
from bitbench.util.errors import LoadError
from bitbench.util.machine_faults import require_native
from bitbench.util.text import quote


class WorkerTask(NamedTuple):
    """A task for a worker.

    The parent sends a task. The worker prepares it and answers that it is ready. The parent sends
    time zero. The worker sends snapshots if they are requested, and in the end its result. At any
    point it may answer why it cannot continue.
    """

    job: LoadJob
    part: WorkerPart
    report: bool  # True if the worker shall send snapshots


class Ready(NamedTuple):
    """A message that the worker waits for time zero."""


class JobFailed(NamedTuple):
    """A message with the reason why a job failed in a worker that continues to run."""

    why: str


Message = Ready | JobFailed | Snapshot | LoadResult


def write_frame(pipe: IO[bytes], message: Message | WorkerTask | float) -> None:
    """Write a message as a pickle. That is safe, since both ends are processes of bitbench."""
    write_child_frame(pipe, pickle.dumps(message))


_MODULE = "bitbench.loadgen.worker_process"
_EXIT_TIMEOUT_S = 5.0
_SHOWN_LINES = 3


class Worker:
    """A process that sends requests, so that the work of the parent delays no timestamp.

    It ends with this process in any case, because its standard input then ends.
    """

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            make_bitbench_command(_MODULE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=NOWHERE,
            env=collect_bitbench_variables(),
            bufsize=0,  # a pipe with buffered data would not be readable
            start_new_session=True,  # the parent handles an interrupt in the terminal
        )
        self._doing = "nothing"
        self._key = ""  # its output is quoted without this

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is a message."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, message: WorkerTask | float) -> None:
        """Send a task or time zero. Raise LoadError if the worker is gone."""
        assert self._process.stdin is not None
        if isinstance(message, WorkerTask):
            self._doing = f"workload {message.job.workload.name}"
            self._key = message.job.endpoint.api_key
        try:
            write_frame(self._process.stdin, message)
        except BrokenPipeError:
            raise LoadError(self._describe_end()) from None

    def read(self) -> Ready | Snapshot | LoadResult:
        """Wait for the next message. Raise LoadError if the worker is gone or its task failed."""
        assert self._process.stdout is not None
        try:
            message: Message = pickle.loads(read_child_frame(self._process.stdout))
        except EOFError:
            raise LoadError(self._describe_end()) from None
        if isinstance(message, JobFailed):
            raise LoadError(
                f"The load worker could not run {self._doing}: {quote(message.why, self._key)}"
            )
        return message

    def end(self) -> None:
        """End the process, and kill it if that takes too long."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):  # it may be gone already
            process.stdin.close()
        try:
            process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._errors.close()

    def _describe_end(self) -> str:
        """Return why the worker ended, with the last lines of its output."""
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()[-_SHOWN_LINES:]
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        output = f" Its output: {quote(' / '.join(lines), self._key)}" if lines else ""
        return (
            f"The load worker {ended} during {self._doing}; repeat the command to resume.{output}"
        )


# With this many streams of 100 events a second each, one process took 0.7 of a core, and its median
# TTFT was true to 0.1 %. The p99 is still to be measured on a machine without other work.
STREAMS_PER_WORKER = 1_024
# From the moment when all workers are ready to time zero. Meanwhile each worker reads time zero.
_LEAD_S = 0.020


class LoadWorkers:
    """A `ports.LoadClient` of several processes, which end with its context.

    Without `count` there is one worker, or more if the workload needs them and there are cores.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count = count
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        require_native()
        # Imports take half a second. They happen while the first engine starts.
        self._ensure_workers(self._count or 1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(worker.pid for worker in self._workers)

    def run(
        self,
        job: LoadJob,
        on_progress: Callable[[LoadProgress], None] | None = None,
        *,
        part: WorkerPart = WHOLE,
        choose_zero: Callable[[], float] = lambda: monotonic() + _LEAD_S,
        on_snapshots: Callable[[Sequence[Snapshot]], None] | None = None,
    ) -> LoadResult:
        """Run a job, and return its result when it has ended.

        If several machines share a job, each runs its `part`, and gets the snapshots of its workers
        as they are. `choose_zero` is called when everything is prepared, and returns the moment of
        time zero on this machine's clock. Raise LoadError if the client failed, not the engine.
        """
        on_snapshots = on_snapshots or (on_progress and _make_sum_callback(on_progress))
        count = self._count or count_workers(job.workload, part.workers)
        try:
            workers = self._ensure_workers(count)
            for index, worker in enumerate(workers):
                worker_part = WorkerPart(part.worker + index * part.workers, count * part.workers)
                worker.send(WorkerTask(job, worker_part, report=on_snapshots is not None))
            for worker in workers:
                worker.read()  # returns when it is ready
            zero = choose_zero()
            for worker in workers:
                worker.send(zero)
            return merge_worker_results(_listen(workers, on_snapshots))
        except BaseException:
            # Even after an interrupt: the next job would read the late messages of these workers.
            self._end()
            raise

    def _ensure_workers(self, count: int) -> list[Worker]:
        """Return this many workers, and start the missing ones."""
        while len(self._workers) < count:
            self._workers.append(Worker())
        return self._workers[:count]

    def _end(self) -> None:
        workers = self._workers
        self._workers = []
        for worker in workers:
            worker.end()


def count_workers(workload: Workload, machines: int = 1) -> int:
    """Return how many workers this machine needs, if `machines` share the streams.

    The workers take at most half of its cores, since the engine needs the others.
    """
    cores = len(os.sched_getaffinity(0))
    needed = -(-workload.concurrency // (STREAMS_PER_WORKER * machines))
    return max(1, min(needed, cores // 2))


def _make_sum_callback(
    on_progress: Callable[[LoadProgress], None],
) -> Callable[[Sequence[Snapshot]], None]:
    """Return a callback for snapshots that passes on their sums."""
    before: LoadProgress | None = None

    def tell(snapshots: Sequence[Snapshot]) -> None:
        nonlocal before
        before = sum_progress_snapshots(snapshots, before)
        on_progress(before)

    return tell


def _listen(
    workers: list[Worker], on_snapshots: Callable[[Sequence[Snapshot]], None] | None
) -> list[LoadResult]:
    """Return the results of all workers, and pass on their snapshots meanwhile."""
    results: list[LoadResult] = []
    snapshots: dict[int, Snapshot] = {}
    silent = {worker.pid for worker in workers}  # workers without a message since the last progress
    news = False  # True if a snapshot was not passed on yet
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


def merge_worker_results(results: Sequence[LoadResult]) -> LoadResult:
    """Return one result for all workers, which had the same clock."""
    sums = results[0].sums
    for result in results[1:]:
        sums.merge(result.sums)
    parts: list[bytes | Path] = []
    workers: list[WorkerHealth] = []
    for result in results:
        parts += result.rows.parts
        workers += result.health.workers
    return LoadResult(
        sums=sums,
        rows=RequestParts(tuple(parts)),
        health=summarize_client_health(workers),
        started_at=min(result.started_at for result in results),
        duration_s=max(result.duration_s for result in results),
    )
