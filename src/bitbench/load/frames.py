"""What a worker process and its parent say to each other: length-prefixed frames over pipes."""

import struct
from typing import IO

import pyarrow as pa
from pydantic import TypeAdapter

from bitbench.core.base import Record
from bitbench.core.ports import LoadJob, LoadResult
from bitbench.core.trial import ClientHealth

_LENGTH = struct.Struct("<Q")
_JOB = TypeAdapter(LoadJob)


class _Header(Record):
    """Goes before the table of a result; with `error` it goes alone."""

    error: str | None = None
    health: ClientHealth | None = None
    started_at: str = ""
    duration_s: float = 0.0


class JobFailed(Exception):
    """The worker is well, but could not run this job; says why."""


def write_frame(pipe: IO[bytes], payload: bytes | memoryview) -> None:
    pipe.write(_LENGTH.pack(len(payload)))
    pipe.write(payload)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes:
    """The next frame; raises EOFError when the other side is gone, also in the middle of one."""
    (length,) = _LENGTH.unpack(_read_exactly(pipe, _LENGTH.size))
    return _read_exactly(pipe, length)


def _read_exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError
    return data


def encode_job(job: LoadJob) -> bytes:
    return _JOB.dump_json(job)


def decode_job(frame: bytes) -> LoadJob:
    return _JOB.validate_json(frame)


def write_result(pipe: IO[bytes], result: LoadResult) -> None:
    header = _Header(health=result.health, started_at=result.started_at, duration_s=result.duration_s)
    write_frame(pipe, header.model_dump_json().encode())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, result.requests.schema) as writer:
        writer.write_table(result.requests)
    write_frame(pipe, memoryview(sink.getvalue()))


def write_failure(pipe: IO[bytes], error: str) -> None:
    write_frame(pipe, _Header(error=error).model_dump_json().encode())


def read_result(pipe: IO[bytes]) -> LoadResult:
    """Raises EOFError when the worker is gone, JobFailed when it says that it could not."""
    header = _Header.model_validate_json(read_frame(pipe))
    if header.health is None:
        raise JobFailed(header.error)
    with pa.ipc.open_stream(read_frame(pipe)) as reader:
        table = reader.read_all()
    return LoadResult(table, header.health, header.started_at, header.duration_s)
