"""Gives up streams that are past a limit of time, and all of them where together they fill the memory."""

import asyncio
from time import monotonic

from bitbench.loadgen.connection import Connection, Exchange
from bitbench.loadgen.kept import KeptAnswers
from bitbench.ports import LoadJob
from bitbench.util.http.limits import TRIAL_BYTES
from bitbench.util.units import show_bytes, show_seconds

# How often each stream is looked at, as a share of the shorter limit: it is given up at most 5 % late.
_RESOLUTION = 0.05
_SLOWEST_ROUND_S = 0.5
# Streams that are looked at together: 256 take 0.1 ms, a pause that no token notices; thousands would take longer.
_AT_ONCE = 256


class LimitWatch:
    """Goes round all streams in flight, some at a time."""

    def __init__(
        self, job: LoadJob, in_flight: dict[int, tuple[Exchange, Connection | None]], kept: KeptAnswers
    ) -> None:
        self._job = job
        self._in_flight = in_flight
        self._kept = kept
        self._flying_bytes = 0  # of the streams that this round has looked at
        self._full = False  # since the last round
        self._round: list[tuple[Exchange, Connection | None]] = []
        self._round_s = min(_SLOWEST_ROUND_S, _RESOLUTION * min(job.stall_timeout_s, job.request_timeout_s))
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._look()

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _look(self) -> None:
        if not self._round:
            self._full = self._flying_bytes + self._kept.held_bytes > TRIAL_BYTES
            self._flying_bytes = 0
            self._round = list(self._in_flight.values())
        now = monotonic()
        for exchange, connection in self._round[-_AT_ONCE:]:
            if connection is not None and exchange.end is None:  # connecting has a limit of its own
                self._check(exchange, connection, now)
        del self._round[-_AT_ONCE:]
        is_full = not self._round and self._flying_bytes + self._kept.held_bytes > TRIAL_BYTES
        pause_s = 0.0 if is_full else self._round_s / (1 + len(self._in_flight) // _AT_ONCE)
        self._next = asyncio.get_running_loop().call_later(pause_s, self._look)

    def _check(self, exchange: Exchange, connection: Connection, now: float) -> None:
        job = self._job
        self._flying_bytes += exchange.response.held_bytes
        heard = exchange.response.last_byte or exchange.sent or now
        if self._full:
            connection.abort(
                "oversized", f"the answers of this trial take more than {show_bytes(TRIAL_BYTES)} of memory"
            )
        elif now - exchange.planned > job.request_timeout_s:
            connection.abort("timeout", f"not complete after {show_seconds(job.request_timeout_s)}")
        elif now - heard > job.stall_timeout_s:
            connection.abort("stalled", f"no byte for {show_seconds(job.stall_timeout_s)}")
