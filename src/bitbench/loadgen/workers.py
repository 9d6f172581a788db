"""The load client as a set of processes on one clock, each with its part of the schedule, and the frames in which
they speak."""

import contextlib
import os
import selectors
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from time import monotonic
from types import TracebackType
from typing import IO, NamedTuple, Self

import pyarrow as pa
from pydantic import TypeAdapter

from bitbench.loadgen.client import WHOLE, WorkerPart
from bitbench.loadgen.health import client_health
from bitbench.loadgen.progress import Snapshot, sum_progress_snapshots
from bitbench.ports import LoadJob, LoadResult
from bitbench.records.trial import ClientHealth, LoadProgress
from bitbench.study.base import Json, Record
from bitbench.study.workload import Workload
from bitbench.util.child_processes import (
    NOWHERE,
    bitbench_child_variables,
    bitbench_command,
    read_child_frame,
    write_child_frame,
)
from bitbench.util.errors import LoadError
from bitbench.util.machine_faults import require_linux
from bitbench.util.text import quote

_ZERO = struct.Struct("<d")


class WorkerTask(NamedTuple):
    """What a worker is asked to do.

    The parent sends a task; the worker prepares and says that it is ready; the parent sends time zero; the worker sends
    snapshots where they are wanted, and in the end its result, or at any point why it cannot.
    """

    job: LoadJob
    part: WorkerPart
    report: bool  # whether snapshots are wanted


class Ready(Record):
    """The worker waits for time zero."""


class JobFailed(Exception):
    """The worker is well, but could not run this job; says why."""


class _Header(Record):
    """Begins each message of a worker. A table follows where there is a health; all None: it is ready."""

    error: str | None = None
    snapshot: Snapshot | None = None
    health: ClientHealth | None = None
    started_at: str = ""
    duration_s: float = 0.0


_TASK = TypeAdapter(WorkerTask)


def encode_task_frame(task: WorkerTask) -> bytes:
    return _TASK.dump_json(task)


def decode_task_frame(frame: bytes) -> WorkerTask:
    return _TASK.validate_json(frame)


def _encode_zero_frame(zero: float) -> bytes:
    return _ZERO.pack(zero)


def decode_zero_frame(frame: bytes) -> float:
    (zero,) = _ZERO.unpack(frame)
    return float(zero)


def write_message_frame(pipe: IO[bytes], **fields: Json) -> None:
    """Those of a header; none of them says that the worker is ready."""
    write_child_frame(pipe, _Header(**fields).model_dump_json(exclude_defaults=True).encode())


def write_result_frames(pipe: IO[bytes], result: LoadResult) -> None:
    write_message_frame(pipe, health=result.health, started_at=result.started_at, duration_s=result.duration_s)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, result.requests.schema) as writer:
        writer.write_table(result.requests)
    write_child_frame(pipe, sink.getvalue().to_pybytes())


def _read_message_frame(pipe: IO[bytes]) -> Ready | Snapshot | LoadResult:
    """Raises EOFError when the worker is gone, JobFailed when it says that it could not."""
    header = _Header.model_validate_json(read_child_frame(pipe))
    if header.error is not None:
        raise JobFailed(header.error)
    if header.snapshot is not None:
        return header.snapshot
    if header.health is None:
        return Ready()
    with pa.ipc.open_stream(read_child_frame(pipe)) as reader:
        table = reader.read_all()
    return LoadResult(table, header.health, header.started_at, header.duration_s)


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
            frame = encode_task_frame(message)
        else:
            frame = _encode_zero_frame(message)
        try:
            write_child_frame(self._process.stdin, frame)
        except BrokenPipeError:
            raise LoadError(self._obituary()) from None

    def read(self) -> Ready | Snapshot | LoadResult:
        """The next message, waited for. Raises LoadError where the worker is gone or could not do its task."""
        assert self._process.stdout is not None
        try:
            return _read_message_frame(self._process.stdout)
        except JobFailed as failed:
            raise LoadError(f"The load worker could not run {self._doing}: {quote(str(failed), self._key)}") from None
        except EOFError:
            raise LoadError(self._obituary()) from None

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


def _summing(on_progress: Callable[[LoadProgress], None]) -> Callable[[Sequence[Snapshot]], None]:
    before: LoadProgress | None = None

    def tell(snapshots: Sequence[Snapshot]) -> None:
        nonlocal before
        before = sum_progress_snapshots(snapshots, before)
        on_progress(before)

    return tell


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


def merge_worker_results(results: Sequence[LoadResult]) -> LoadResult:
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
