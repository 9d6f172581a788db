"""Progress messages of workers while a trial runs, and their sum."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple

from bitbench.loadgen.connection import Connection, Exchange
from bitbench.records.trial import LoadProgress

INTERVAL_S = 0.25  # between two messages


class Snapshot(NamedTuple):
    """One worker's counts since its trial's start."""

    elapsed_s: float
    requests: int
    running: int
    succeeded: int
    failed: int
    chunks: int


class RunningCounts:
    """The running counts of a worker, updated at the end of each answer and never per token."""

    def __init__(self, requests: int, report: Callable[[Snapshot], None]) -> None:
        self._requests = requests
        self._report = report
        self._zero = 0.0
        self._in_flight: dict[int, tuple[Exchange, Connection | None]] = {}
        self._succeeded = 0
        self._failed = 0
        self._chunks = 0
        self._next: asyncio.TimerHandle | None = None

    def ended(self, exchange: Exchange) -> None:
        """Count an exchange that has ended."""
        if exchange.succeeded:
            self._succeeded += 1
        else:
            self._failed += 1
        self._chunks += len(exchange.response.parts)

    def start(self, zero: float, in_flight: dict[int, tuple[Exchange, Connection | None]]) -> None:
        """Report now, and go on until stopped."""
        self._zero = zero
        self._in_flight = in_flight
        self._tell_and_go_on()

    def stop(self) -> None:
        """Report for the last time."""
        if self._next is not None:
            self._next.cancel()
        self._report(self._make_snapshot())

    def _tell_and_go_on(self) -> None:
        self._report(self._make_snapshot())
        self._next = asyncio.get_running_loop().call_later(INTERVAL_S, self._tell_and_go_on)

    def _make_snapshot(self) -> Snapshot:
        chunks = self._chunks
        for exchange, _ in self._in_flight.values():
            chunks += len(exchange.response.parts)
        return Snapshot(
            elapsed_s=monotonic() - self._zero,
            requests=self._requests,
            running=len(self._in_flight),
            succeeded=self._succeeded,
            failed=self._failed,
            chunks=chunks,
        )


def sum_progress_snapshots(
    snapshots: Sequence[Snapshot], before: LoadProgress | None
) -> LoadProgress:
    """Return the sum of all workers, with rates since `before`."""
    elapsed_s = 0.0
    requests = 0
    running = 0
    succeeded = 0
    failed = 0
    chunks = 0
    for snapshot in snapshots:
        elapsed_s = max(elapsed_s, snapshot.elapsed_s)
        requests += snapshot.requests
        running += snapshot.running
        succeeded += snapshot.succeeded
        failed += snapshot.failed
        chunks += snapshot.chunks
    passed_s = elapsed_s
    new_chunks = chunks
    new_ends = succeeded + failed
    if before is not None:
        passed_s -= before.elapsed_s
        new_chunks -= before.chunks
        new_ends -= before.succeeded + before.failed
    chunks_per_s = 0.0
    requests_per_s = 0.0
    if passed_s > 0:
        chunks_per_s = new_chunks / passed_s
        requests_per_s = new_ends / passed_s
    return LoadProgress(
        elapsed_s=elapsed_s,
        requests=requests,
        running=running,
        succeeded=succeeded,
        failed=failed,
        chunks=chunks,
        chunks_per_s=chunks_per_s,
        requests_per_s=requests_per_s,
    )
