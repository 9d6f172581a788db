"""The rows of one trial (core.recorded.requests) as arrays, and what is timed of each request."""

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bitbench.study.metrics import Statistic

Floats = npt.NDArray[np.float64]


class RequestRows:
    """Columns are read when they are asked for, so that a table may lack unused ones. Seconds; what is not
    defined is NaN."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def complete(self) -> "RequestRows":
        """The requests that were answered as a whole: only these enter a figure."""
        return RequestRows(self.table.filter(pc.equal(self.table["status"], "ok")))

    def column(self, name: str) -> Floats:
        return np.asarray(self.table[name].cast(pa.float64()).to_numpy(), dtype=np.float64)

    @cached_property
    def is_ok(self) -> npt.NDArray[np.bool_]:
        return np.asarray(pc.fill_null(pc.equal(self.table["status"], "ok"), False).to_numpy(), dtype=np.bool_)

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
        """All NaN where no request reasoned: the first token is that of the answer then."""
        answer = self.column("first_answer_s")
        reasoned = bool(np.any(answer > self.column("first_token_s")))
        return answer - self.planned if reasoned else np.full_like(answer, np.nan)

    @cached_property
    def tpot(self) -> Floats:
        """An answer of one token has no time per further token."""
        tokens = self.output_tokens
        decoding = self.column("last_token_s") - self.column("first_token_s")
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(tokens > 1, decoding / (tokens - 1), np.nan)

    @cached_property
    def itl(self) -> Floats:
        """The gaps between neighbouring chunks of each stream, pooled: not one per request."""
        chunks = self.table["chunk_s"]
        lengths = pc.fill_null(pc.list_value_length(chunks), 0).to_numpy()
        times = np.asarray(pc.list_flatten(chunks).to_numpy(), dtype=np.float64)
        stream = np.repeat(np.arange(len(lengths)), lengths)
        same_stream: npt.NDArray[np.bool_] = stream[1:] == stream[:-1]
        return np.diff(times)[same_stream]

    def time(self, name: str) -> Floats:
        """By the name that the registry of metrics has for it."""
        values: Floats = getattr(self, name)
        return values


def statistic(values: Floats, name: Statistic) -> float | None:
    """Over what is defined; None where nothing is."""
    known = values[~np.isnan(values)]
    if known.size == 0:
        return None
    return float(known.mean()) if name == "mean" else float(np.percentile(known, float(name.removeprefix("p"))))
