"""Connections that are open before a request needs them.

Each carries one request at a time, with one timestamp per read. Native code reads connections that
are not encrypted.
"""

import asyncio
import os
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Protocol, cast

from bitbench.loadgen.requests import PlannedRequest
from bitbench.ports import Endpoint
from bitbench.util.http.connection import parse_address
from bitbench.util.http.response import ResponseReader, compute_answer_limit, make_response_parts
from bitbench.util.timerfd import Timer

if TYPE_CHECKING:
    from bitbench._native import Parts

# Reads to parse before the sockets are read again: a head takes 20 µs, and first tokens come in
# bursts.
_AT_ONCE = 16


class Reader(Protocol):
    """A reader of a socket."""

    unseen: int  # reads that wait to be parsed

    def take(self, data: bytes, arrived: float, noticed: float) -> None:
        """Parse a read that native code did not store as a chunk.

        The kernel received it at `arrived`, and this process noticed it at `noticed`.
        """

    def lost(self, problem: OSError | None, noticed: float) -> None:
        """React to a connection that broke or that the other side closed."""


class Receiver:
    """A receiver that reads all sockets and passes each read to its connection.

    Whole chunks go directly to their response. The `timers` of the event loop must not wait
    while chunks are read.
    """

    def __init__(self, timers: Iterable[Timer]) -> None:
        from bitbench._native import Receiver as NativeReceiver

        self._native = NativeReceiver()
        for timer in timers:
            self._native.yield_to(timer.fileno())
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._native.fileno(), self._receive)
        self._readers: dict[int, Reader] = {}
        self._waiting: deque[tuple[Reader, bytes, int, float, float]] = deque()
        self._comes_back = False

    def watch(self, descriptor: int, reader: Reader) -> None:
        """Start to read a socket, and pass each read to `reader`."""
        self._native.watch(descriptor)
        self._readers[descriptor] = reader

    def forget(self, descriptor: int, reader: Reader) -> None:
        """Stop reading a socket. Call it before the socket is closed.

        If the descriptor has another reader by now, do nothing: the kernel reuses its numbers.
        """
        if self._readers.get(descriptor) is reader:
            del self._readers[descriptor]
            self._native.forget(descriptor)

    def keep_chunks(self, descriptor: int, reader: Reader, parts: "Parts") -> None:
        """Let native code store whole chunks in `parts`, until a read is not a whole chunk.

        Do nothing while an earlier read waits to be parsed: later chunks would overtake it.
        """
        if reader.unseen == 0:
            self._native.keep_chunks(descriptor, parts)

    def close(self) -> None:
        self._loop.remove_reader(self._native.fileno())

    def _receive(self) -> None:
        may_wait = not self._waiting
        for descriptor, data, error, arrived, noticed in self._native.receive(may_wait=may_wait):
            reader = self._readers[descriptor]
            reader.unseen += 1
            self._waiting.append((reader, data, error, arrived, noticed))
        for _ in range(min(_AT_ONCE, len(self._waiting))):
            reader, data, error, arrived, noticed = self._waiting.popleft()
            reader.unseen -= 1
            if data:
                reader.take(data, arrived, noticed)
            else:
                problem = OSError(error, os.strerror(error)) if error else None
                reader.lost(problem, noticed)
        if self._waiting and not self._comes_back:
            self._comes_back = True
            self._loop.call_soon(self._resume_receiving)

    def _resume_receiving(self) -> None:
        self._comes_back = False
        self._receive()


# struct tcp_info of linux/tcp.h has 8 bytes and then 32-bit numbers. The twelfth is
# tcpi_last_data_recv: how many milliseconds ago the kernel received data. It counts in ticks of 1
# to 10 ms. So one value is coarse, but the mean over many requests is not.
_LAST_RECEIVED = struct.Struct("=I")
_LAST_RECEIVED_OFFSET = 8 + 11 * 4
_COARSE_CLOCK = 6  # CLOCK_MONOTONIC_COARSE, whose resolution is the kernel's tick
_TICK_S = time.clock_getres(_COARSE_CLOCK)


@dataclass(slots=True)
class Exchange:
    """A request and its answer, timed by time.monotonic(). It is decoded after the trial."""

    request: PlannedRequest
    planned: float  # when it should be sent; latencies count from then
    ready: float  # when it could be sent: `planned`, or a later end of the request before it
    sent: float | None = None
    end: float | None = None
    response: ResponseReader = field(init=False)
    # How long the first part of the answer waited in the kernel until this process read it.
    unread_s: float | None = None
    unread_step_s: float = 0.0  # the resolution of `unread_s`
    # One of records.tables.REQUEST_STATUSES and a sentence, if the client itself saw a failure.
    failure: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        limit_bytes = compute_answer_limit(self.request.most_output_tokens, len(self.request.data))
        self.response = ResponseReader(make_response_parts(limit_bytes))

    @property
    def number(self) -> int:
        return self.request.number

    @property
    def succeeded(self) -> bool:
        """True if it succeeded as far as is known without decoding the events."""
        return self.failure is None and self.response.complete and self.response.http_status == 200


class Listener(Protocol):
    """A listener to the events of a connection."""

    def ended(self, connection: "Connection", exchange: Exchange) -> None:
        """Handle the end of an exchange, with a complete answer or a failure."""

    def was_closed_before(self, connection: "Connection", exchange: Exchange) -> None:
        """Send the exchange on another connection: the server closed this one unanswered."""


class Connection(asyncio.Protocol):
    """A connection that carries one exchange after the other.

    If it has a receiver, that reads the socket and the transport only writes.
    """

    __slots__ = (
        "_descriptor", "_exchange", "_listener", "_parts", "_receiver", "_socket", "_transport",
        "_was_used", "idle_since", "unseen",
    )  # fmt: skip

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._receiver: Receiver | None = None
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._descriptor: int | None = None  # None if encrypted: then only the transport can write
        self._exchange: Exchange | None = None
        self._parts: Parts | None = None  # of the response, while it accepts whole chunks
        self._was_used = False
        self.unseen = 0
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._socket = transport.get_extra_info("socket")
        assert self._socket is not None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if transport.get_extra_info("ssl_object") is None:
            self._descriptor = self._socket.fileno()
        self.idle_since = monotonic()

    def be_read_by(self, receiver: Receiver) -> None:
        """Let a receiver read the socket.

        Call it once connection_made has returned: uvloop begins to read only then.
        """
        assert self._transport is not None
        assert self._descriptor is not None
        self._transport.pause_reading()
        self._receiver = receiver
        receiver.watch(self._descriptor, self)

    def send(self, exchange: Exchange) -> None:
        """Write the request to the socket now. A transport would wait for the event loop."""
        assert self._transport is not None
        self._exchange = exchange
        data = exchange.request.data
        # Before the write: the write wakes the server, which may take this core for milliseconds.
        exchange.sent = monotonic()
        if self._descriptor is None:
            self._transport.write(data)
            return
        try:
            written = os.write(self._descriptor, data)
        except BlockingIOError:
            written = 0
        except OSError as problem:
            if not self._leave_to_another():
                cause = "the server closed the connection as the request was sent"
                self.abort("broken", f"{cause} ({problem.strerror})")
            return
        if written < len(data):
            self._transport.write(data[written:])

    def data_received(self, data: bytes) -> None:
        """Handle a read of the transport. Nearly every one is a whole chunk, the fast path."""
        now = monotonic()
        parts = self._parts
        if parts is None or not parts.take_chunk(data, now):
            self.take(data, now, now, _TICK_S)

    def take(self, data: bytes, arrived: float, noticed: float, unread_step_s: float = 0.0) -> None:
        """Handle a read of the receiver, or of the transport if `unread_step_s` is above 0.

        For the transport, the kernel tells how long the data waited, in steps of `unread_step_s`.
        """
        if self._exchange is None:  # bytes that answer no request: the two sides disagree
            self.close()
            return
        exchange = self._exchange
        response = exchange.response
        complete = response.feed(data, arrived)
        if exchange.unread_s is None and len(response.parts):
            exchange.unread_s = self._read_unread_s() if unread_step_s else noticed - arrived
            exchange.unread_step_s = unread_step_s
        if complete:
            self._end(noticed)
        elif not response.between_chunks:
            self._parts = None
        elif self._receiver is not None and self._descriptor is not None:
            self._receiver.keep_chunks(self._descriptor, self, response.parts)
        else:
            self._parts = response.parts

    def lost(self, problem: OSError | None, noticed: float) -> None:
        """Close after the receiver has seen the end of the connection."""
        self._handle_close(noticed, problem)
        self.close()

    def eof_received(self) -> None:
        self._handle_close(monotonic(), None)

    def connection_lost(self, problem: Exception | None) -> None:
        self._handle_close(monotonic(), problem)
        self._forget()
        self._transport = None

    def abort(self, status: str, sentence: str) -> None:
        """Give up the exchange. The connection cannot carry another one."""
        if self._exchange is not None:
            self._exchange.failure = (status, sentence)
            self._exchange.response.close()
            self._end(monotonic())

    def close(self) -> None:
        """Close the connection at once."""
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def _forget(self) -> None:
        if self._receiver is not None and self._descriptor is not None:
            self._receiver.forget(self._descriptor, self)

    def _read_unread_s(self) -> float:
        """Return how long ago the kernel received the last data, in its ticks."""
        assert self._socket is not None
        facts = self._socket.getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED_OFFSET + _LAST_RECEIVED.size
        )
        (milliseconds,) = _LAST_RECEIVED.unpack_from(facts, _LAST_RECEIVED_OFFSET)
        return float(milliseconds) / 1_000

    def _handle_close(self, now: float, problem: Exception | None) -> None:
        if self._exchange is None or self._leave_to_another():
            return
        self._exchange.response.close()
        if not self._exchange.response.complete:
            cause = "the server closed the connection"
            if problem:
                cause = f"the connection broke ({problem})"
            self._exchange.failure = ("broken", f"{cause} before the answer was complete")
        self._end(now)

    def _leave_to_another(self) -> bool:
        """Give the exchange to another connection, and return True, if the server closed this one.

        A server may close a connection after any answer, as llama.cpp does without notice. A
        request that is already on its way gets no answer, and belongs on another connection (RFC
        9112, 9.3.1).
        """
        exchange = self._exchange
        if exchange is None or not self._was_used or exchange.response.last_byte is not None:
            return False
        self._exchange = None
        self.close()
        self._listener.was_closed_before(self, exchange)
        return True

    def _end(self, now: float) -> None:
        exchange = self._exchange
        assert exchange is not None
        self._exchange = None
        self._parts = None
        self._was_used = True
        self.idle_since = now
        exchange.end = now
        if not exchange.response.persistent:
            self.close()
        self._listener.ended(self, exchange)


# Servers close idle connections. uvicorn, which vLLM, SGLang and others use, has the shortest limit
# in use, 5 s. A request on its way to a connection that closes would fail, so ours are closed
# earlier.
IDLE_LIMIT_S = 4.0
_OPENED_AT_ONCE = 128  # connections opened together: the queue of a server is often this short


class ConnectionPool:
    """A pool that gives out the connection used last, so that no more than needed stay open."""

    def __init__(
        self, endpoint: Endpoint, listener: Listener, timeout_s: float, timers: Iterable[Timer]
    ) -> None:
        self.host, self.port, encrypted = parse_address(endpoint.url)
        self._encryption = _encryption() if encrypted else None
        self._receiver = None if encrypted else Receiver(timers)
        self._listener = listener
        self._timeout_s = timeout_s
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._opening = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self) -> Connection | None:
        """Return a free connection, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            self._open.discard(connection)
        return None

    def give_back(self, connection: Connection) -> None:
        """Return a connection to the pool, or drop it if it is closed."""
        if connection.usable:
            self._idle.append(connection)
        else:
            self._open.discard(connection)

    async def open(self) -> Connection:
        """Open a new connection for the caller. Raise OSError if that fails or takes too long."""
        opening = asyncio.get_running_loop().create_connection(
            lambda: Connection(self._listener), self.host, self.port, ssl=self._encryption
        )
        _, connection = await asyncio.wait_for(opening, self._timeout_s)
        if self._receiver is not None and connection.usable:
            connection.be_read_by(self._receiver)
        self._open.add(connection)
        return connection

    async def fill(self, count: int) -> None:
        """Open `count` free connections, or as many as the server accepts.

        A request that finds no free connection opens one itself, and reports the error.
        """
        while count > 0:
            together = min(count, _OPENED_AT_ONCE)
            count -= together
            opening = [self.open() for _ in range(together)]
            opened = await asyncio.gather(*opening, return_exceptions=True)
            for connection in opened:
                if isinstance(connection, Connection):
                    self._idle.append(connection)
                elif not isinstance(connection, OSError):
                    raise connection
                else:
                    return

    def keep_ready(self, count: int) -> None:
        """Open connections until `count` are free, and close the ones that were idle too long."""
        old = monotonic() - IDLE_LIMIT_S
        stale = 0
        while stale < len(self._idle) and self._idle[stale].idle_since < old:
            self._idle[stale].close()
            self._open.discard(self._idle[stale])
            stale += 1
        del self._idle[:stale]
        for _ in range(count - len(self._idle) - self._opening):
            self._opening += 1
            task = asyncio.get_running_loop().create_task(self._open_ahead())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._open:
            connection.close()
        for task in self._tasks:
            task.cancel()
        if self._receiver is not None:
            self._receiver.close()

    async def _open_ahead(self) -> None:
        try:
            self._idle.append(await self.open())
        except OSError:
            pass  # the request that finds no connection tries again, and says why
        finally:
            self._opening -= 1


def _encryption() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
