"""Begins each request when it is due, on a connection that is open already, keeps what came back, and gives up what
is past a limit."""

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

# How often each stream is looked at, as a share of the shorter limit: it is given up at most 5 % late.
_RESOLUTION = 0.05
_SLOWEST_ROUND_S = 0.5
# Streams that are looked at together: 256 take 0.1 ms, a pause that no token notices; thousands would take longer.
_AT_ONCE = 256


class LimitWatch:
    """Goes round all streams in flight, some at a time."""

    def __init__(
        self,
        job: LoadJob,
        in_flight: dict[int, tuple[Exchange, Connection | None]],
        kept: RequestRowWriter,
    ) -> None:
        self._job = job
        self._in_flight = in_flight
        self._kept = kept
        self._flying_bytes = 0  # of the streams that this round has looked at
        self._full = False  # since the last round
        self._round: list[tuple[Exchange, Connection | None]] = []
        self._round_s = min(
            _SLOWEST_ROUND_S, _RESOLUTION * min(job.stall_timeout_s, job.request_timeout_s)
        )
        self._next: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Now and from then on, until stopped."""
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
        self._next = asyncio.get_running_loop().call_later(pause_s, self.look)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _check(self, exchange: Exchange, connection: Connection, now: float) -> None:
        job = self._job
        self._flying_bytes += exchange.response.held_bytes
        heard = exchange.response.last_byte or exchange.sent or now
        if self._full:
            connection.abort(
                "oversized",
                f"the answers of this trial take more than {show_bytes(TRIAL_BYTES)} of memory",
            )
        elif now - exchange.planned > job.request_timeout_s:
            connection.abort("timeout", f"not complete after {show_seconds(job.request_timeout_s)}")
        elif now - heard > job.stall_timeout_s:
            connection.abort("stalled", f"no byte for {show_seconds(job.stall_timeout_s)}")


# Connections are open this long before the requests that need them; opening one takes two or three round trips.
_AHEAD_S = 0.25
_LOOK_AHEAD_EACH_S = 0.05


class Dispatcher:
    """Sends planned requests: at their time after zero, or a pause (or none) after the one before on their stream.

    A request that is due while its stream is still busy is sent when that ends, and its latency counts from when it
    was due. Requests without a stream never wait. Connecting is no part of the time to the first token, for a
    server in use has its clients connected; a request that finds no open connection opens one within its time.

    `timers` are those of others that reading must not delay.

    After a request that plainly failed (its events are not looked into yet) no further one is begun, unless the job
    says to go on. Those in flight finish.
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
        self._plan, self._rows, self._monitor, self._counts = plan, rows, monitor, counts
        self._timer = Timer()
        timeout_s = min(job.stall_timeout_s, job.request_timeout_s)
        self._pool = ConnectionPool(job.endpoint, self, timeout_s, (self._timer, monitor.timer))
        self._streams = _places_by_stream(
            plan.slots
        )  # what is still to come on each, first one first
        self._due_s, self._scheduled = _with_times(plan.slots, self._streams)
        self._next = 0  # of the scheduled ones
        self._thinking: list[
            tuple[float, int]
        ] = []  # places that are due after a pause on their stream, in order
        self._to_come = len(plan)
        self._busy: set[int] = set()
        self.zero = 0.0  # known when all is prepared
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed = False

    async def open_connections(self) -> None:
        """For the requests that are due at the start. Those that do not open now are tried when they are needed."""
        await self._pool.fill(self._due_before(_AHEAD_S))

    def keep_sending(self) -> None:
        """What is due from now on, once what was due at time zero has been sent."""
        asyncio.get_running_loop().add_reader(self._timer.fileno(), self.send_due)
        self._look_ahead()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._timer.fileno())
        self._timer.close()
        self._pool.close()

    def ended(self, connection: Connection | None, exchange: Exchange) -> None:
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
        """The server had closed it when the request came: that is sent once more, on a new connection."""
        self._pool.give_back(connection)
        self.in_flight[exchange.number] = (exchange, None)
        self._send_on_a_new_connection(exchange)

    def send_due(self) -> None:
        """Begin all that is due, and set the timer for the next."""
        self._timer.acknowledge()
        while not self._stopped:
            due = self._next_due()
            if due is None:
                break
            if due > monotonic():
                self._timer.arm(due)
                return
            if self._thinking and self._thinking[0][0] == due:
                place = self._thinking.pop(0)[1]
            else:
                place = int(self._scheduled[self._next])
                self._next += 1
            stream = self._plan.stream(place)
            if stream is None:
                self._begin(place, due, due)
            elif stream not in self._busy and self._streams[stream][0] == place:
                self._streams[stream] = self._streams[stream][1:]
                self._begin(place, due, due)
        self._finish_if_idle()

    def _next_due(self) -> float | None:
        times = [thinking[0] for thinking in self._thinking[:1]]
        if self._next < len(self._scheduled):
            times.append(self.zero + float(self._due_s[self._next]))
        return min(times, default=None)

    def _continue(self, stream: int, before: Exchange) -> None:
        """Begin what comes next on a stream, now or after its pause, where it has no later time of its own."""
        waiting = self._streams[stream]
        if not waiting.size or self._stopped:
            return
        assert before.end is not None
        place = int(waiting[0])
        at_s = self._plan.slots.at_s[place]
        due = before.end + self._plan.think_s(place) if np.isnan(at_s) else self.zero + float(at_s)
        if due <= before.end:
            self._streams[stream] = waiting[1:]
            self._begin(place, due, before.end)
        elif np.isnan(at_s):
            insort(self._thinking, (due, place))
            if self._thinking[0][1] == place:
                self.send_due()  # which sets the timer

    def _begin(self, place: int, planned: float, ready: float) -> None:
        request = self._plan.take(place)
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
        began = (
            exchange.sent or monotonic()
        )  # from here on it waits for the server, which closed what was open
        try:
            connection = await self._pool.open()
        except OSError as problem:  # includes TimeoutError
            if (fault := machine_faults.explain_machine_lack(problem)) is not None:
                self._give_up(LoadError(fault))
                return
            why = str(problem) or "the connection attempt timed out"
            exchange.failure = (
                "refused",
                f"no connection to {self._pool.host}:{self._pool.port}: {why}",
            )
            exchange.end = monotonic()
            self.ended(None, exchange)
        else:
            self.in_flight[exchange.number] = (exchange, connection)
            connection.send(exchange)
            exchange.sent = began

    def _give_up(self, error: LoadError) -> None:
        """The fault is this machine's: no request of this trial says anything about the server."""
        if not self.finished.done():
            self.finished.set_exception(error)

    @property
    def _stopped(self) -> bool:
        return self._failed and not self._go_on

    def _finish_if_idle(self) -> None:
        if (
            not self.in_flight
            and (self._stopped or self._to_come == 0)
            and not self.finished.done()
        ):
            self.finished.set_result(None)

    def _due_before(self, after_zero_s: float) -> int:
        """How many requests with a known time are due from now until then."""
        scheduled = int(np.searchsorted(self._due_s, after_zero_s, side="right")) - self._next
        return max(scheduled, 0) + bisect_right(
            self._thinking, self.zero + after_zero_s, key=lambda due: due[0]
        )

    def _look_ahead(self) -> None:
        if self.finished.done():
            return
        self._pool.keep_ready(self._due_before(monotonic() - self.zero + _AHEAD_S))
        asyncio.get_running_loop().call_later(_LOOK_AHEAD_EACH_S, self._look_ahead)


Places = npt.NDArray[np.int64]


def _places_by_stream(slots: Slots) -> dict[int, Places]:
    order = np.argsort(slots.stream, kind="stable")
    streams, begins = np.unique(slots.stream[order], return_index=True)
    parts = (
        np.split(order, begins[1:]) if streams.size else []
    )  # a process may have no request to send
    return {int(stream): part for stream, part in zip(streams, parts, strict=True) if stream >= 0}


def _with_times(slots: Slots, streams: dict[int, Places]) -> tuple[Times, Places]:
    """The requests that have a time of their own, in order. What begins a stream is due at zero."""
    has_time = ~np.isnan(slots.at_s)
    has_time[[part[0] for part in streams.values()]] = True
    places = np.flatnonzero(has_time)
    due_s = np.nan_to_num(slots.at_s[places])
    order = np.argsort(due_s, kind="stable")
    return due_s[order], places[order]
