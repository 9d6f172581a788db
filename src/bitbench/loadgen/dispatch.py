"""Begins each request when it is due, on an open connection, and aborts those past a limit."""

import asyncio
from bisect import bisect_right, insort
from time import monotonic

import numpy as np
import numpy.typing as npt

from bitbench.loadgen.connection import Connection, ConnectionPool, Exchange
from bitbench.loadgen.health import HealthMonitor
from bitbench.loadgen.progress import RunningCounts
from bitbench.loadgen.requests import RequestPlan, Slots, Times
from bitbench.loadgen.row_writer import RequestRowWriter
from bitbench.ports import LoadJob
from bitbench.util import machine_faults
from bitbench.util.errors import LoadError
from bitbench.util.http.response import TRIAL_BYTES
from bitbench.util.timerfd import Timer
from bitbench.util.units import show_bytes, show_seconds

# How often each stream is checked, as a share of the shorter limit: it is aborted at most 5 % late.
_RESOLUTION = 0.05
_SLOWEST_ROUND_S = 0.5
# Streams to check together: 256 take 0.1 ms, which delays no token. Thousands would take longer.
_AT_ONCE = 256


class LimitWatch:
    """A watch that checks all streams in flight against the limits, some at a time."""

    def __init__(
        self,
        job: LoadJob,
        in_flight: dict[int, tuple[Exchange, Connection | None]],
        kept: RequestRowWriter,
    ) -> None:
        self._job = job
        self._in_flight = in_flight
        self._kept = kept
        self._flying_bytes = 0  # of the streams that this round has checked
        self._full = False  # as of the last round
        self._round: list[tuple[Exchange, Connection | None]] = []
        shorter_limit_s = min(job.stall_timeout_s, job.request_timeout_s)
        self._round_s = min(_SLOWEST_ROUND_S, _RESOLUTION * shorter_limit_s)
        self._next: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Check some streams now, and go on until stopped."""
        if not self._round:
            self._full = self._flying_bytes + self._kept.held_bytes > TRIAL_BYTES
            self._flying_bytes = 0
            self._round = list(self._in_flight.values())
        now = monotonic()
        for exchange, connection in self._round[-_AT_ONCE:]:
            if connection is not None and exchange.end is None:  # connecting has its own limit
                self._check(exchange, connection, now)
        del self._round[-_AT_ONCE:]
        is_full = not self._round and self._flying_bytes + self._kept.held_bytes > TRIAL_BYTES
        pause_s = 0.0 if is_full else self._round_s / (1 + len(self._in_flight) // _AT_ONCE)
        self._next = asyncio.get_running_loop().call_later(pause_s, self.look)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _check(self, exchange: Exchange, connection: Connection, now: float) -> None:
        job = self._job
        self._flying_bytes += exchange.response.held_bytes
        last_sign = exchange.response.last_byte or exchange.sent or now
        if self._full:
            connection.abort(
                "oversized",
                f"the answers of this trial take more than {show_bytes(TRIAL_BYTES)} of memory",
            )
        elif now - exchange.planned > job.request_timeout_s:
            connection.abort("timeout", f"not complete after {show_seconds(job.request_timeout_s)}")
        elif now - last_sign > job.stall_timeout_s:
            connection.abort("stalled", f"no byte for {show_seconds(job.stall_timeout_s)}")


# Connections are opened this long before their requests are due. Opening takes two or three round
# trips.
_AHEAD_S = 0.25
_LOOK_AHEAD_EACH_S = 0.05


class Dispatcher:
    """A dispatcher that sends each planned request when it is due.

    A request is due at its time after zero, or after a pause (or none) after the one before it on
    its stream. If its stream is still busy, it is sent when that ends, and its latency counts from
    when it was due. Requests without a stream never wait. Connecting is not a part of the time to
    first token: the clients of a server in use are connected. A request that finds no open
    connection opens one within its time.

    After a failed request, no further request begins unless the job says so. Requests in flight
    finish. Failed means what is visible without decoding the events.
    """

    def __init__(
        self,
        job: LoadJob,
        plan: RequestPlan,
        rows: RequestRowWriter,
        monitor: HealthMonitor,
        counts: RunningCounts | None,
    ) -> None:
        self.in_flight: dict[int, tuple[Exchange, Connection | None]] = {}
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._go_on = job.go_on_after_failure
        self._plan = plan
        self._rows = rows
        self._monitor = monitor
        self._counts = counts
        self._timer = Timer()
        timeout_s = min(job.stall_timeout_s, job.request_timeout_s)
        self._pool = ConnectionPool(job.endpoint, self, timeout_s, (self._timer, monitor.timer))
        # Positions of the requests that are still to come, in order, by stream.
        self._streams = _group_by_stream(plan.slots)
        self._due_s, self._scheduled = _list_scheduled(plan.slots, self._streams)
        self._next = 0  # index into the scheduled requests
        # Due times and positions of the requests that wait for a pause on their stream, in order.
        self._thinking: list[tuple[float, int]] = []
        self._to_come = len(plan)
        self._busy: set[int] = set()
        self.zero = 0.0  # set when everything is prepared
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed = False

    async def open_connections(self) -> None:
        """Open connections for the requests that are due at the start.

        Connections that do not open now are opened when they are needed.
        """
        await self._pool.fill(self._count_due_before(_AHEAD_S))

    def keep_sending(self) -> None:
        """Keep sending requests when they are due, after time zero."""
        asyncio.get_running_loop().add_reader(self._timer.fileno(), self.send_due)
        self._look_ahead()

    def close(self) -> None:
        """Close the timer and all connections."""
        asyncio.get_running_loop().remove_reader(self._timer.fileno())
        self._timer.close()
        self._pool.close()

    def ended(self, connection: Connection | None, exchange: Exchange) -> None:
        """Count an exchange that has ended, and begin the next request on its stream."""
        del self.in_flight[exchange.number]
        if connection is not None:
            self._pool.give_back(connection)
        self._failed = self._failed or not exchange.succeeded
        stream = exchange.request.stream
        if stream is not None:
            self._busy.discard(stream)
            self._continue(stream, exchange)
        if self._counts is not None:
            self._counts.ended(exchange)
        self._monitor.note_exchange(exchange)
        self._plan.make_ahead()
        self._rows.add(exchange)
        self._finish_if_idle()

    def was_closed_before(self, connection: Connection, exchange: Exchange) -> None:
        """Send a request again on a new connection: the server had closed the first one before."""
        self._pool.give_back(connection)
        self.in_flight[exchange.number] = (exchange, None)
        self._send_on_a_new_connection(exchange)

    def send_due(self) -> None:
        """Begin all requests that are due, and set the timer for the next one."""
        self._timer.acknowledge()
        while not self._stopped:
            due = self._find_next_due()
            if due is None:
                break
            if due > monotonic():
                self._timer.arm(due)
                return
            if self._thinking and self._thinking[0][0] == due:
                position = self._thinking.pop(0)[1]
            else:
                position = int(self._scheduled[self._next])
                self._next += 1
            stream = self._plan.stream(position)
            if stream is None:
                self._begin(position, due, due)
            elif stream not in self._busy and self._streams[stream][0] == position:
                self._streams[stream] = self._streams[stream][1:]
                self._begin(position, due, due)
        self._finish_if_idle()

    def _find_next_due(self) -> float | None:
        """Return when the next request is due, or None."""
        times: list[float] = []
        if self._thinking:
            times.append(self._thinking[0][0])
        if self._next < len(self._scheduled):
            times.append(self.zero + float(self._due_s[self._next]))
        return min(times, default=None)

    def _continue(self, stream: int, before: Exchange) -> None:
        """Begin the next request on a stream, now or after its pause.

        A request with its own later time is left to the schedule.
        """
        waiting = self._streams[stream]
        if not waiting.size or self._stopped:
            return
        assert before.end is not None
        position = int(waiting[0])
        at_s = self._plan.slots.at_s[position]
        follows = np.isnan(at_s)
        due = self.zero + float(at_s)
        if follows:
            due = before.end + self._plan.think_s(position)
        if due <= before.end:
            self._streams[stream] = waiting[1:]
            self._begin(position, due, before.end)
        elif follows:
            insort(self._thinking, (due, position))
            if self._thinking[0][1] == position:
                self.send_due()  # this sets the timer

    def _begin(self, position: int, planned: float, ready: float) -> None:
        request = self._plan.take(position)
        exchange = Exchange(request, planned, ready)
        self._to_come -= 1
        if request.stream is not None:
            self._busy.add(request.stream)
        connection = self._pool.take()
        self.in_flight[request.number] = (exchange, connection)
        if connection is not None:
            connection.send(exchange)
        else:
            self._send_on_a_new_connection(exchange)

    def _send_on_a_new_connection(self, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._connect_and_send(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect_and_send(self, exchange: Exchange) -> None:
        # If the server closed the first connection, the wait began when the request was sent there.
        began = exchange.sent or monotonic()
        try:
            connection = await self._pool.open()
        except OSError as problem:  # includes TimeoutError
            fault = machine_faults.explain_machine_lack(problem)
            if fault is not None:
                self._give_up(LoadError(fault))
                return
            cause = str(problem) or "the connection attempt timed out"
            exchange.failure = (
                "refused",
                f"no connection to {self._pool.host}:{self._pool.port}: {cause}",
            )
            exchange.end = monotonic()
            self.ended(None, exchange)
        else:
            self.in_flight[exchange.number] = (exchange, connection)
            connection.send(exchange)
            exchange.sent = began

    def _give_up(self, error: LoadError) -> None:
        """End the trial with an error: the fault is this machine's, not the server's."""
        if not self.finished.done():
            self.finished.set_exception(error)

    @property
    def _stopped(self) -> bool:
        return self._failed and not self._go_on

    def _finish_if_idle(self) -> None:
        if self.in_flight or self.finished.done():
            return
        if self._stopped or self._to_come == 0:
            self.finished.set_result(None)

    def _count_due_before(self, after_zero_s: float) -> int:
        """Return how many requests with a known time are due between now and this time."""
        scheduled = int(np.searchsorted(self._due_s, after_zero_s, side="right")) - self._next
        thinking = bisect_right(self._thinking, self.zero + after_zero_s, key=lambda due: due[0])
        return max(scheduled, 0) + thinking

    def _look_ahead(self) -> None:
        """Open connections for the requests that are due soon, and go on until the end."""
        if self.finished.done():
            return
        self._pool.keep_ready(self._count_due_before(monotonic() - self.zero + _AHEAD_S))
        asyncio.get_running_loop().call_later(_LOOK_AHEAD_EACH_S, self._look_ahead)


Positions = npt.NDArray[np.int64]


def _group_by_stream(slots: Slots) -> dict[int, Positions]:
    """Return the positions of the requests of each stream, in order."""
    order = np.argsort(slots.stream, kind="stable")
    streams, begins = np.unique(slots.stream[order], return_index=True)
    if not streams.size:  # a process may have no request to send
        return {}
    parts = zip(streams, np.split(order, begins[1:]), strict=True)
    return {int(stream): part for stream, part in parts if stream >= 0}


def _list_scheduled(slots: Slots, streams: dict[int, Positions]) -> tuple[Times, Positions]:
    """Return the due times and positions of the requests with a known time, in order.

    The first request of a stream is due at zero.
    """
    has_time = ~np.isnan(slots.at_s)
    has_time[[part[0] for part in streams.values()]] = True
    positions = np.flatnonzero(has_time)
    due_s = np.nan_to_num(slots.at_s[positions])
    order = np.argsort(due_s, kind="stable")
    return due_s[order], positions[order]
