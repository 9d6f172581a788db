"""What a worker process and its parent say to each other: length-prefixed frames over pipes.

The parent sends a task; the worker prepares and says that it is ready; the parent sends time zero; the worker sends
snapshots where they are wanted, and in the end its result, or at any point why it cannot.
"""

import struct
from typing import IO, NamedTuple

import pyarrow as pa
from pydantic import TypeAdapter

from bitbench.loadgen.client import WorkerPart
from bitbench.loadgen.progress import Snapshot
from bitbench.ports import LoadJob, LoadResult
from bitbench.records.trial import ClientHealth
from bitbench.study.base import Record
from bitbench.util.frames import read_frame, write_frame

_ZERO = struct.Struct("<d")


class WorkerTask(NamedTuple):
    """What a worker is asked to do."""

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


def encode_task(task: WorkerTask) -> bytes:
    return _TASK.dump_json(task)


def decode_task(frame: bytes) -> WorkerTask:
    return _TASK.validate_json(frame)


def encode_zero(zero: float) -> bytes:
    return _ZERO.pack(zero)


def decode_zero(frame: bytes) -> float:
    (zero,) = _ZERO.unpack(frame)
    return float(zero)


def write_ready(pipe: IO[bytes]) -> None:
    _write_header(pipe, _Header())


def write_snapshot(pipe: IO[bytes], snapshot: Snapshot) -> None:
    _write_header(pipe, _Header(snapshot=snapshot))


def write_failure(pipe: IO[bytes], error: str) -> None:
    _write_header(pipe, _Header(error=error))


def write_result(pipe: IO[bytes], result: LoadResult) -> None:
    _write_header(pipe, _Header(health=result.health, started_at=result.started_at, duration_s=result.duration_s))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, result.requests.schema) as writer:
        writer.write_table(result.requests)
    write_frame(pipe, sink.getvalue().to_pybytes())


def read_message(pipe: IO[bytes]) -> Ready | Snapshot | LoadResult:
    """Raises EOFError when the worker is gone, JobFailed when it says that it could not."""
    header = _Header.model_validate_json(read_frame(pipe))
    if header.error is not None:
        raise JobFailed(header.error)
    if header.snapshot is not None:
        return header.snapshot
    if header.health is None:
        return Ready()
    with pa.ipc.open_stream(read_frame(pipe)) as reader:
        table = reader.read_all()
    return LoadResult(table, header.health, header.started_at, header.duration_s)


def _write_header(pipe: IO[bytes], header: _Header) -> None:
    write_frame(pipe, header.model_dump_json(exclude_defaults=True).encode())
