"""Runs one job: connections, schedule, time limits, self-observation."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from time import monotonic

import uvloop

from bitbench.core.ports import LoadJob, LoadResult
from bitbench.load.connection import Connection, Exchange
from bitbench.load.health import HealthMonitor
from bitbench.load.requests import PlannedRequest, plan_requests
from bitbench.load.table import request_table
from bitbench.load.wire import address
from bitbench.units import show_seconds

# How often limits are checked, as a share of the shorter limit: a stream is given up at most 5 % late.
_LIMIT_RESOLUTION = 0.05
_SLOWEST_CHECK_S = 0.25


def run_job(job: LoadJob) -> LoadResult:
    """Send a workload's requests and time what comes back. Blocks the calling thread until all have ended."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(job))


async def _run(job: LoadJob) -> LoadResult:
    trial = _Trial(job, plan_requests(job))
    await trial.open_connections()
    monitor = HealthMonitor(asyncio.get_running_loop())
    with _without_garbage_collection():
        monitor.start()
        started_at = datetime.now(UTC)
        zero = monotonic()
        trial.start(zero)
        await trial.finished
        duration_s = monotonic() - zero
        health = monitor.stop(trial.exchanges)
    trial.close_connections()
    return LoadResult(
        requests=request_table(trial.exchanges, zero),
        health=health,
        started_at=started_at.isoformat(),
        duration_s=duration_s,
    )


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A collection walks all objects and would stop the loop for milliseconds; a trial makes few cycles."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


class _Trial:
    """`concurrency` streams, each with a connection of its own.

    All first requests are planned at time zero; each later one at the moment at which the one before it on the same
    stream ended. A batch is the case in which there is no later one. Connections are opened before time zero, so
    that connecting is no part of the time to the first token: a server in use has its clients connected. A stream
    that lost its connection opens a new one within its request's time.

    After a request that plainly failed (its events are not looked into yet) no further one is begun: the trial cannot
    count any more. Those in flight finish.
    """

    def __init__(self, job: LoadJob, requests: list[PlannedRequest]) -> None:
        self.exchanges: list[Exchange] = []
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._job = job
        self._address = address(job.endpoint)
        self._requests = requests
        self._in_flight: dict[int, tuple[Exchange, Connection | None]] = {}
        self._connections: list[Connection] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._started = False  # every stream has begun its first request
        self._failed = False

    async def open_connections(self) -> None:
        """Those that do not open now are tried again when their request is due, and fail then."""
        attempts = [self._connect() for _ in range(self._job.workload.concurrency)]
        await asyncio.gather(*attempts, return_exceptions=True)

    def close_connections(self) -> None:
        for connection in self._connections:
            connection.close()

    def start(self, now: float) -> None:
        opened: list[Connection | None] = [*self._connections]
        opened += [None] * (self._job.workload.concurrency - len(opened))
        for connection in opened:
            self._begin(now, connection)
        self._started = True
        self._check_limits()
        self._finish_if_idle()

    def _begin(self, planned: float, connection: Connection | None) -> None:
        number = len(self.exchanges)
        exchange = Exchange(self._requests[number], planned)
        self.exchanges.append(exchange)
        self._in_flight[number] = (exchange, connection)
        if connection is not None and connection.usable:
            connection.send(exchange)
        else:
            task = asyncio.get_running_loop().create_task(self._connect_and_send(exchange))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self) -> Connection:
        host, port, _ = self._address
        limit_s = min(self._job.stall_timeout_s, self._job.request_timeout_s)
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(lambda: Connection(self._ended), host, port)
        _, connection = await asyncio.wait_for(opening, limit_s)
        self._connections.append(connection)
        return connection

    async def _connect_and_send(self, exchange: Exchange) -> None:
        try:
            connection = await self._connect()
        except OSError as problem:  # includes TimeoutError
            host, port, _ = self._address
            why = str(problem) or "no answer to the attempt to connect"
            exchange.failure = ("refused", f"no connection to {host}:{port}: {why}")
            exchange.end = monotonic()
            self._ended(None, exchange)
        else:
            self._in_flight[exchange.number] = (exchange, connection)
            connection.send(exchange)

    def _ended(self, connection: Connection | None, exchange: Exchange) -> None:
        del self._in_flight[exchange.number]
        self._failed = self._failed or not exchange.succeeded
        if not self._failed and len(self.exchanges) < len(self._requests):
            assert exchange.end is not None
            self._begin(exchange.end, connection)
        else:
            self._finish_if_idle()

    def _finish_if_idle(self) -> None:
        if self._started and not self._in_flight and not self.finished.done():
            self.finished.set_result(None)

    def _check_limits(self) -> None:
        """Give up streams that are past a limit, and look again later."""
        job, now = self._job, monotonic()
        for exchange, connection in list(self._in_flight.values()):
            if connection is None:
                continue  # connecting has a limit of its own
            heard = exchange.response.last_byte or exchange.sent or now
            if now - exchange.planned > job.request_timeout_s:
                connection.abort("timeout", f"not complete after {show_seconds(job.request_timeout_s)}")
            elif now - heard > job.stall_timeout_s:
                connection.abort("stalled", f"no byte for {show_seconds(job.stall_timeout_s)}")
        if not self.finished.done():
            pause_s = min(_SLOWEST_CHECK_S, _LIMIT_RESOLUTION * min(job.stall_timeout_s, job.request_timeout_s))
            asyncio.get_running_loop().call_later(pause_s, self._check_limits)
