"""What a worker says while its trial runs, with latencies in sketches of a few kilobytes, and the sum of what all of
them say."""

import asyncio
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import monotonic
from typing import Self

import numpy as np
import numpy.typing as npt
from pydantic import model_validator

from bitbench.loadgen.connection import Connection, Exchange
from bitbench.loadgen.health import HealthMonitor, worst_health
from bitbench.records.trial import LoadProgress, Percentiles, WorkerHealth
from bitbench.study.base import Record

RELATIVE_ERROR = 0.01  # of every percentile
LOWEST_S, HIGHEST_S = 1e-6, 1e5  # what lies outside is counted at the edge

# Bin i holds (LOWEST_S × RATIO^(i-1), LOWEST_S × RATIO^i]; a value between its edges in proportion to them is within
# RELATIVE_ERROR of all that it holds (the mapping of DDSketch, Masson et al., VLDB 2019).
_RATIO = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_BINS = math.ceil(math.log(HIGHEST_S / LOWEST_S) / math.log(_RATIO)) + 1


class SketchCounts(Record):
    """A sketch as it travels: only bins that hold something."""

    bins: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _could_be_counted(self) -> Self:
        is_ordered = all(before < after for before, after in pairwise((-1, *self.bins, _BINS)))
        if not is_ordered or len(self.bins) != len(self.counts) or not all(0 < count < 2**40 for count in self.counts):
            raise ValueError("the bins of a sketch are damaged")
        return self


class LatencySketch:
    def __init__(self) -> None:
        self._counts: npt.NDArray[np.int64] = np.zeros(_BINS, dtype=np.int64)

    def add(self, seconds: float) -> None:
        place = math.ceil(math.log(min(max(seconds, LOWEST_S), HIGHEST_S) / LOWEST_S) / math.log(_RATIO))
        self._counts[place] += 1

    def add_all(self, seconds: npt.NDArray[np.float64]) -> None:
        places = np.ceil(np.log(np.clip(seconds, LOWEST_S, HIGHEST_S) / LOWEST_S) / math.log(_RATIO))
        self._counts += np.bincount(places.astype(np.int64), minlength=_BINS)

    def merge(self, other: SketchCounts) -> None:
        np.add.at(self._counts, list(other.bins), other.counts)

    @property
    def count(self) -> int:
        return int(self._counts.sum())

    def quantile(self, share: float) -> float | None:
        """The value below which this share of all lies, within RELATIVE_ERROR; None where there is none.

        Between two values in proportion, as `numpy.quantile` of all of them: where each is within the error, so is what
        lies between.
        """
        reached = np.cumsum(self._counts)
        if reached[-1] == 0:
            return None
        rank = share * float(reached[-1] - 1)
        below, above = (
            LOWEST_S * 2 * _RATIO ** int(np.searchsorted(reached, place, side="right")) / (1 + _RATIO)
            for place in (math.floor(rank), math.ceil(rank))
        )
        return below + (above - below) * (rank - math.floor(rank))

    def counts(self) -> SketchCounts:
        (bins,) = np.nonzero(self._counts)
        return SketchCounts(bins=tuple(bins.tolist()), counts=tuple(self._counts[bins].tolist()))

    @classmethod
    def of(cls, *parts: SketchCounts) -> Self:
        sketch = cls()
        for part in parts:
            sketch.merge(part)
        return sketch


INTERVAL_S = 0.25  # between two messages


class Snapshot(Record):
    """One worker's figures since its trial's start."""

    elapsed_s: float
    requests: int
    sent: int
    running: int
    succeeded: int
    failed: int
    chunks: int
    ttft: SketchCounts
    itl: SketchCounts
    health: WorkerHealth


class RunningFigures:
    """Counts at the begin and the end of an answer, never for a token: an answer's gaps are added when it has ended."""

    def __init__(self, requests: int, monitor: HealthMonitor, report: Callable[[Snapshot], None]) -> None:
        self._requests = requests
        self._monitor = monitor
        self._report = report
        self._zero = 0.0
        self._in_flight: dict[int, tuple[Exchange, Connection | None]] = {}
        self._ttft, self._itl, self._lateness = LatencySketch(), LatencySketch(), LatencySketch()
        self._succeeded = self._failed = self._chunks = 0
        self._next: asyncio.TimerHandle | None = None

    def answer_began(self, exchange: Exchange) -> None:
        self._ttft.add(exchange.response.times[0] - exchange.planned)

    def ended(self, exchange: Exchange) -> None:
        if exchange.succeeded:
            self._succeeded += 1
        else:
            self._failed += 1
        if exchange.sent is not None:
            self._lateness.add(exchange.sent - exchange.ready)
        self._chunks += len(exchange.response.parts)
        self._itl.add_all(np.diff(np.asarray(exchange.response.times, dtype=np.float64)))

    def start(self, zero: float, in_flight: dict[int, tuple[Exchange, Connection | None]]) -> None:
        """Report at once and from then on, until stopped."""
        self._zero, self._in_flight = zero, in_flight
        self._tell_and_go_on()

    def stop(self) -> None:
        """Report for the last time."""
        if self._next is not None:
            self._next.cancel()
        self._report(self._snapshot())

    def _tell_and_go_on(self) -> None:
        self._report(self._snapshot())
        self._next = asyncio.get_running_loop().call_later(INTERVAL_S, self._tell_and_go_on)

    def _snapshot(self) -> Snapshot:
        running = [exchange for exchange, _ in self._in_flight.values()]
        return Snapshot(
            elapsed_s=monotonic() - self._zero,
            requests=self._requests,
            sent=self._succeeded + self._failed + len(running),
            running=len(running),
            succeeded=self._succeeded,
            failed=self._failed,
            chunks=self._chunks + sum(len(exchange.response.parts) for exchange in running),
            ttft=self._ttft.counts(),
            itl=self._itl.counts(),
            health=self._monitor.so_far(self._lateness.quantile(0.99) or 0.0),
        )


def sum_progress_snapshots(snapshots: Sequence[Snapshot], before: LoadProgress | None) -> LoadProgress:
    """All workers together; rates since `before`."""
    elapsed_s = max(snapshot.elapsed_s for snapshot in snapshots)
    chunks, succeeded, failed = (
        sum(getattr(snapshot, name) for snapshot in snapshots) for name in ("chunks", "succeeded", "failed")
    )
    passed_s = elapsed_s - (before.elapsed_s if before else 0.0)
    new_chunks = chunks - (before.chunks if before else 0)
    new_ends = succeeded + failed - (before.succeeded + before.failed if before else 0)
    return LoadProgress(
        elapsed_s=elapsed_s,
        requests=sum(snapshot.requests for snapshot in snapshots),
        sent=sum(snapshot.sent for snapshot in snapshots),
        running=sum(snapshot.running for snapshot in snapshots),
        succeeded=succeeded,
        failed=failed,
        chunks=chunks,
        chunks_per_s=new_chunks / passed_s if passed_s > 0 else 0.0,
        requests_per_s=new_ends / passed_s if passed_s > 0 else 0.0,
        ttft=_percentiles(LatencySketch.of(*(snapshot.ttft for snapshot in snapshots))),
        itl=_percentiles(LatencySketch.of(*(snapshot.itl for snapshot in snapshots))),
        client=worst_health([snapshot.health for snapshot in snapshots]),
    )


def _percentiles(sketch: LatencySketch) -> Percentiles | None:
    p50_s, p90_s, p99_s = (sketch.quantile(share) for share in (0.50, 0.90, 0.99))
    if p50_s is None or p90_s is None or p99_s is None:
        return None
    return Percentiles(p50_s=p50_s, p90_s=p90_s, p99_s=p99_s)
