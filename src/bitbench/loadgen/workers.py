"""The load client as a set of processes on one clock with a part of the schedule each, and the frames in which they
speak."""

import contextlib
import os
import pickle
import selectors
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from time import monotonic
from types import TracebackType
from typing import IO, NamedTuple, Self

from bitbench.loadgen.client import WHOLE, WorkerPart
from bitbench.loadgen.health import client_health
from bitbench.loadgen.progress import Snapshot, sum_progress_snapshots
from bitbench.ports import LoadJob, LoadResult
from bitbench.records.request_rows import RequestParts
from bitbench.records.trial import LoadProgress
from bitbench.study.workload import Workload
from bitbench.util.child_processes import (
    NOWHERE,
    bitbench_child_variables,
    bitbench_command,
    read_child_frame,
    write_child_frame,
)
from bitbench.util.errors import LoadError
from bitbench.util.machine_faults import require_native
from bitbench.util.text import quote


class WorkerTask(NamedTuple):
    """What a worker is asked to do.

    The parent sends a task; the worker prepares and says that it is ready; the parent sends time zero; the worker sends
    snapshots where they are wanted, and in the end its result, or at any point why it cannot.
    """

    job: LoadJob
    part: WorkerPart
    report: bool  # whether snapshots are wanted


class Ready(NamedTuple):
    """The worker waits for time zero."""


class JobFailed(NamedTuple):
    """The worker is well, but could not run this job; says why."""

    why: str


Message = Ready | JobFailed | Snapshot | LoadResult


def write_frame(pipe: IO[bytes], message: Message | WorkerTask | float) -> None:
    """Both ends are bitbench's own processes, so a frame is a pickle."""
    write_child_frame(pipe, pickle.dumps(message))


_MODULE = "bitbench.loadgen.worker_process"
_EXIT_TIMEOUT_S = 5.0
_SHOWN_LINES = 3


class Worker:
    """Does nothing else while a trial runs, so that nothing the parent does delays a timestamp.

    It ends by itself when this process is gone, however it went: its standard input is then at its end.
    """

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            bitbench_command(_MODULE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=NOWHERE,
            env=bitbench_child_variables(),
            bufsize=0,  # what lay in a buffer would not show as readable
            start_new_session=True,  # an interrupt in the terminal is the parent's to handle
        )
        self._doing = "nothing"
        self._key = ""  # what its words must not repeat

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Readable when there is a message."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, message: WorkerTask | float) -> None:
        """A task, or time zero."""
        assert self._process.stdin is not None
        if isinstance(message, WorkerTask):
            self._doing = f"workload {message.job.workload.name}"
            self._key = message.job.endpoint.api_key
        try:
            write_frame(self._process.stdin, message)
        except BrokenPipeError:
            raise LoadError(self._obituary()) from None

    def read(self) -> Ready | Snapshot | LoadResult:
        """The next message, waited for. Raises LoadError where the worker is gone or could not do its task."""
        assert self._process.stdout is not None
        try:
            message: Message = pickle.loads(read_child_frame(self._process.stdout))
        except EOFError:
            raise LoadError(self._obituary()) from None
        if isinstance(message, JobFailed):
            raise LoadError(
                f"The load worker could not run {self._doing}: {quote(message.why, self._key)}"
            )
        return message

    def end(self) -> None:
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

    def _obituary(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()[-_SHOWN_LINES:]
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said = f" Its output: {quote(' / '.join(lines), self._key)}" if lines else ""
        return f"The load worker {ended} during {self._doing}; repeat the command to resume.{said}"


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
        require_native()
        self._have(
            self._count or 1
        )  # imports take half a second; they happen while the first engine starts
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
        """Blocks until the trial has ended. Raises LoadError where the client failed, not the engine.

        One of several machines runs its `part`, and tells the snapshots of its workers as they are. `choose_zero` is
        called when all is prepared and says when time zero is, on this machine's clock.
        """
        on_snapshots = on_snapshots or (on_progress and _summing(on_progress))
        count = self._count or workers_for(job.workload, part.workers)
        try:
            workers = self._have(count)
            for index, worker in enumerate(workers):
                own = WorkerPart(part.worker + index * part.workers, count * part.workers)
                worker.send(WorkerTask(job, own, report=on_snapshots is not None))
            for worker in workers:
                worker.read()  # that it is ready
            zero = choose_zero()
            for worker in workers:
                worker.send(zero)
            return merge_worker_results(_listen(workers, on_snapshots))
        except (
            BaseException
        ):  # also an interrupt: what the others still say would be taken for the next job's
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


def _summing(on_progress: Callable[[LoadProgress], None]) -> Callable[[Sequence[Snapshot]], None]:
    before: LoadProgress | None = None

    def tell(snapshots: Sequence[Snapshot]) -> None:
        nonlocal before
        before = sum_progress_snapshots(snapshots, before)
        on_progress(before)

    return tell


def _listen(
    workers: list[Worker], on_snapshots: Callable[[Sequence[Snapshot]], None] | None
) -> list[LoadResult]:
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


def merge_worker_results(results: Sequence[LoadResult]) -> LoadResult:
    """On the clock that all had."""
    sums = results[0].sums
    for result in results[1:]:
        sums.merge(result.sums)
    return LoadResult(
        sums=sums,
        rows=RequestParts(tuple(part for result in results for part in result.rows.parts)),
        health=client_health([worker for result in results for worker in result.health.workers]),
        started_at=min(result.started_at for result in results),
        duration_s=max(result.duration_s for result in results),
    )
