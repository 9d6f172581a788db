"""The request rows of one trial as arrays, and as Parquet on their way to the study folder."""

import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Floats = npt.NDArray[np.float64]

UNKNOWN_SHARE = 0.01  # the share of a trial's answers that may lack a time per token


class RequestRows:
    """The request rows of a trial. Times are in seconds, and NaN if undefined.

    A column is read on first use, so a table may lack unused columns.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def complete(self) -> "RequestRows":
        """Return only the requests with a complete answer. Only they count in metrics."""
        return RequestRows(self.table.filter(pc.equal(self.table["status"], "ok")))

    def column(self, name: str) -> Floats:
        return np.asarray(self.table[name].cast(pa.float64()).to_numpy(), dtype=np.float64)

    @cached_property
    def is_ok(self) -> npt.NDArray[np.bool_]:
        return np.asarray(
            pc.fill_null(pc.equal(self.table["status"], "ok"), False).to_numpy(), dtype=np.bool_
        )

    @cached_property
    def planned(self) -> Floats:
        return self.column("planned_s")

    @cached_property
    def end(self) -> Floats:
        return self.column("end_s")

    @cached_property
    def output_tokens(self) -> Floats:
        return self.column("output_tokens")

    @cached_property
    def latency(self) -> Floats:
        return self.end - self.planned

    @cached_property
    def ttft(self) -> Floats:
        return self.column("first_token_s") - self.planned

    @cached_property
    def first_answer(self) -> Floats:
        return self.column("first_answer_s") - self.planned

    @cached_property
    def tpot(self) -> Floats:
        """Return the time per output token. It is NaN for an answer of one token.

        All are NaN if too many are unknown, because the known times would not represent the rest.
        """
        if self.is_tpot_unknown:
            return np.full_like(self.stated_tpot, np.nan)
        return self.stated_tpot

    @cached_property
    def is_tpot_unknown(self) -> bool:
        """Return True if more answers lack token times than a p99 leaves out."""
        several = self.is_ok & (self.output_tokens > 1)
        unknown = int(np.isnan(self.stated_tpot[several]).sum())
        return unknown > UNKNOWN_SHARE * int(several.sum())

    @cached_property
    def stated_tpot(self) -> Floats:
        """Return the time per output token, even if too many are unknown."""
        timed = self.output_tokens - 1
        if "timed_tokens" in self.table.column_names:  # older rows lack it
            stated = self.column("timed_tokens")
            timed = np.where(np.isnan(stated), timed, stated)
        decoding = self.column("last_token_s") - self.column("first_token_s")
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where((timed > 0) & (decoding > 0), decoding / timed, np.nan)

    @cached_property
    def itl(self) -> Floats:
        """Return the gaps between neighboring chunks of all streams, pooled."""
        chunks = self.table["chunk_s"]
        lengths = pc.fill_null(pc.list_value_length(chunks), 0).to_numpy()
        times = np.asarray(pc.list_flatten(chunks).to_numpy(), dtype=np.float64)
        stream = np.repeat(np.arange(len(lengths)), lengths)
        same_stream: npt.NDArray[np.bool_] = stream[1:] == stream[:-1]
        return np.diff(times)[same_stream]

    def time(self, name: str) -> Floats:
        """Return a time by its name in the registry of metrics."""
        values: Floats = getattr(self, name)
        return values


@dataclass(frozen=True)
class RequestParts:
    """The request rows of a trial as Parquet, one part per load process.

    A part of a long trial is a file, which the study folder takes over.
    """

    parts: tuple[bytes | Path, ...]

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        return cls((sink.getvalue().to_pybytes(),))

    def read(self) -> pa.Table:
        """Return the rows of all parts in planned order."""
        tables = []
        for part in self.parts:
            source = io.BytesIO(part) if isinstance(part, bytes) else part
            tables.append(pq.read_table(source))
        return pa.concat_tables(tables).sort_by("request")

    def load_parts(self) -> Self:
        """Return the same parts without files, for another machine. The files are removed."""
        contents = []
        for part in self.parts:
            if isinstance(part, bytes):
                contents.append(part)
            else:
                contents.append(part.read_bytes())
                part.unlink()
        return type(self)(tuple(contents))
