"""Turns finished answers into rows, sums and Parquet.

It does so at the end of a trial. In a long trial it works while the trial runs, in pieces that are
too short to delay a request.
"""

import asyncio
import secrets
import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import thread_time

import pyarrow as pa
import pyarrow.parquet as pq

from bitbench.loadgen.answer import REQUEST_SCHEMA, make_request_row
from bitbench.loadgen.connection import Exchange
from bitbench.ports import LoadJob
from bitbench.records.request_sums import RequestSums
from bitbench.study.base import Json
from bitbench.study.workload import get_longest_length

ROW_GROUP = 65_536  # requests
# Output tokens of a trial whose answers are stored undecoded until it ends: a gigabyte of events of
# 200 bytes.
KEPT_TOKENS = 5_000_000
_BATCH = 64  # rows that become columns together, in about 0.3 ms
# Processor time of decoding before the event loop gets a turn, and the same again for every
# _PIECE_ANSWERS answers that wait. If answers arrive faster than they are decoded, the client slows
# down and reports that, and memory does not grow.
_PIECE_S = 0.0002
_PIECE_ANSWERS = 64


class RequestRowWriter:
    """A writer of the request rows of one process.

    It writes a long trial to a file while the trial runs, so that answers do not accumulate.
    """

    def __init__(self, job: LoadJob, requests: int) -> None:
        self.zero = 0.0  # set when everything is prepared. Times in rows count from it.
        self._job = job
        tokens = requests * get_longest_length(job.workload.output_tokens)
        self._is_long = requests > ROW_GROUP or tokens > KEPT_TOKENS
        self._sums = RequestSums(job.objectives)
        self._ended: deque[Exchange] = deque()  # not decoded yet
        self.held_bytes = 0  # of answers that have ended
        self._piece: Iterator[None] | None = None  # the answer that is being decoded
        self._rows: list[dict[str, Json]] = []
        self._batches: list[pa.RecordBatch] = []
        self._grouped = 0  # rows in batches
        self._thread = ThreadPoolExecutor(1)
        self._written: list[Future[None]] = []
        self._sink: Path | pa.BufferOutputStream = _open_memory()
        if self._is_long:
            self._sink = _open_file(job.rows_folder)
        self._file = pq.ParquetWriter(self._sink, REQUEST_SCHEMA, compression="zstd")

    def add(self, exchange: Exchange) -> None:
        """Add an exchange that has ended."""
        self._ended.append(exchange)
        self.held_bytes += exchange.response.held_bytes
        if self._is_long and self._piece is None:
            self._piece = self._decode_all()
            asyncio.get_running_loop().call_soon(self._decode_a_piece)

    def finish(self) -> tuple[RequestSums, bytes | Path]:
        """Return the sums of all requests, and their rows. Call it after the last exchange."""
        for _ in self._piece or self._decode_all():
            pass
        self._begin_group()
        self._thread.shutdown(wait=True)
        for written in self._written:
            written.result()
        self._file.close()
        if isinstance(self._sink, Path):
            return self._sums, self._sink
        return self._sums, self._sink.getvalue().to_pybytes()

    def discard(self) -> None:
        """Delete the rows of a trial without a result."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._file.close()
        if isinstance(self._sink, Path):
            self._sink.unlink()

    def _decode_a_piece(self) -> None:
        """Decode for a short time, and continue after the event loop had a turn."""
        until = thread_time() + _PIECE_S * (1 + len(self._ended) // _PIECE_ANSWERS)
        while self._piece is not None and thread_time() < until:
            if next(self._piece, self) is self:
                self._piece = None
        if self._piece is not None:
            asyncio.get_running_loop().call_soon(self._decode_a_piece)

    def _decode_all(self) -> Iterator[None]:
        """Decode all answers so far. Yield every few events."""
        if not self._is_long:
            self._ended = deque(sorted(self._ended, key=lambda exchange: exchange.number))
        while self._ended:
            exchange = self._ended.popleft()
            row = yield from make_request_row(exchange, self.zero, self._job.endpoint.api_key)
            self._rows.append(row)
            self.held_bytes -= exchange.response.held_bytes
            if len(self._rows) == _BATCH:
                self._begin_batch()
            yield

    def _begin_batch(self) -> None:
        self._batches.append(pa.RecordBatch.from_pylist(self._rows, schema=REQUEST_SCHEMA))
        self._grouped += len(self._rows)
        self._rows = []
        if self._grouped >= ROW_GROUP:
            self._begin_group()

    def _begin_group(self) -> None:
        if self._rows:
            self._batches.append(pa.RecordBatch.from_pylist(self._rows, schema=REQUEST_SCHEMA))
        self._written.append(self._thread.submit(self._write_group, self._batches))
        self._rows = []
        self._batches = []
        self._grouped = 0

    def _write_group(self, batches: list[pa.RecordBatch]) -> None:
        """Write a row group, in the thread. Nearly all of it runs without the interpreter lock."""
        table = pa.Table.from_batches(batches, schema=REQUEST_SCHEMA).combine_chunks()
        self._sums.add(table)
        self._file.write_table(table, row_group_size=ROW_GROUP)


def _open_memory() -> pa.BufferOutputStream:
    return pa.BufferOutputStream()


def _open_file(folder: Path | None) -> Path:
    """Create the file of rows.

    By its name, the next command on the study removes it if the trial did not end
    (`bitbench.util.files`).
    """
    file = (folder or Path(tempfile.gettempdir())) / f"rows.parquet.{secrets.token_hex(8)}.partial"
    file.touch(mode=0o666, exist_ok=False)
    return file
