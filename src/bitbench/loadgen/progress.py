"""What a worker says while its trial runs, and the sum of what all of them say."""

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
    """Counts at the end of an answer, never for a token."""

    def __init__(self, requests: int, report: Callable[[Snapshot], None]) -> None:
        self._requests = requests
        self._report = report
        self._zero = 0.0
        self._in_flight: dict[int, tuple[Exchange, Connection | None]] = {}
        self._succeeded = self._failed = self._chunks = 0
        self._next: asyncio.TimerHandle | None = None

    def ended(self, exchange: Exchange) -> None:
        if exchange.succeeded:
            self._succeeded += 1
        else:
            self._failed += 1
        self._chunks += len(exchange.response.parts)

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
        return Snapshot(
            elapsed_s=monotonic() - self._zero,
            requests=self._requests,
            running=len(self._in_flight),
            succeeded=self._succeeded,
            failed=self._failed,
            chunks=self._chunks
            + sum(len(exchange.response.parts) for exchange, _ in self._in_flight.values()),
        )


def sum_progress_snapshots(
    snapshots: Sequence[Snapshot], before: LoadProgress | None
) -> LoadProgress:
    """All workers together; rates since `before`."""
    elapsed_s = max(snapshot.elapsed_s for snapshot in snapshots)
    chunks = sum(snapshot.chunks for snapshot in snapshots)
    succeeded = sum(snapshot.succeeded for snapshot in snapshots)
    failed = sum(snapshot.failed for snapshot in snapshots)
    passed_s = elapsed_s - (before.elapsed_s if before else 0.0)
    new_chunks = chunks - (before.chunks if before else 0)
    new_ends = succeeded + failed - (before.succeeded + before.failed if before else 0)
    return LoadProgress(
        elapsed_s=elapsed_s,
        requests=sum(snapshot.requests for snapshot in snapshots),
        running=sum(snapshot.running for snapshot in snapshots),
        succeeded=succeeded,
        failed=failed,
        chunks=chunks,
        chunks_per_s=new_chunks / passed_s if passed_s > 0 else 0.0,
        requests_per_s=new_ends / passed_s if passed_s > 0 else 0.0,
    )
