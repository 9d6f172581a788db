"""Connections that are ready before a request needs one: one request at a time on each, one timestamp per read, by
native code where it is not encrypted."""

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
from bitbench.util.http.connection import connection_address
from bitbench.util.http.response import ResponseReader, answer_limit_bytes, new_response_parts
from bitbench.util.timerfd import Timer

if TYPE_CHECKING:
    from bitbench._native import Parts

# Reads that are looked into before the sockets are read again: a head takes 20 µs, and first tokens come in bursts.
_AT_ONCE = 16


class Reader(Protocol):
    """Whose socket is read."""

    unseen: int  # reads of it that wait to be looked into

    def take(self, data: bytes, arrived: float, noticed: float) -> None:
        """Something that is more than one more chunk: when the kernel had it, and when it was read."""

    def lost(self, problem: OSError | None, noticed: float) -> None:
        """The other side has closed the connection, or it broke."""


class Receiver:
    """Tells a connection of its reads in turn; whole chunks go where they belong without a word.

    The `timers` of the event loop must not wait while chunks are read.
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
        self._native.watch(descriptor)
        self._readers[descriptor] = reader

    def forget(self, descriptor: int, reader: Reader) -> None:
        """Before it is closed. If it is already, its number may be another one's."""
        if self._readers.get(descriptor) is reader:
            del self._readers[descriptor]
            self._native.forget(descriptor)

    def keep_chunks(self, descriptor: int, reader: Reader, parts: "Parts") -> None:
        """From now until a read is something else. Not while one waits: what comes next would be kept before it."""
        if reader.unseen == 0:
            self._native.keep_chunks(descriptor, parts)

    def close(self) -> None:
        self._loop.remove_reader(self._native.fileno())

    def _receive(self) -> None:
        for descriptor, data, error, arrived, noticed in self._native.receive(
            may_wait=not self._waiting
        ):
            reader = self._readers[descriptor]
            reader.unseen += 1
            self._waiting.append((reader, data, error, arrived, noticed))
        for _ in range(min(_AT_ONCE, len(self._waiting))):
            reader, data, error, arrived, noticed = self._waiting.popleft()
            reader.unseen -= 1
            if data:
                reader.take(data, arrived, noticed)
            else:
                reader.lost(OSError(error, os.strerror(error)) if error else None, noticed)
        if self._waiting and not self._comes_back:
            self._comes_back = True
            self._loop.call_soon(self._come_back)

    def _come_back(self) -> None:
        self._comes_back = False
        self._receive()


# struct tcp_info of linux/tcp.h: 8 bytes, then 32-bit numbers of which the twelfth is tcpi_last_data_recv: how many
# milliseconds ago the kernel received data. It counts in ticks of 1 to 10 ms, so one value is coarse, but their mean
# over many requests is not.
_LAST_RECEIVED = struct.Struct("=I")
_LAST_RECEIVED_OFFSET = 8 + 11 * 4
_COARSE_CLOCK = 6  # CLOCK_MONOTONIC_COARSE, whose resolution is the kernel's tick
_TICK_S = time.clock_getres(_COARSE_CLOCK)


@dataclass(slots=True)
class Exchange:
    """One request and what came back, with raw times on time.monotonic(). Decoded after the trial."""

    request: PlannedRequest
    planned: float  # when it should be sent; latencies count from here
    ready: float  # when it could be: `planned`, or later, the end of the request before it on its stream
    sent: float | None = None
    end: float | None = None
    response: ResponseReader = field(init=False)
    # How long the first part of the answer lay in the kernel until this process came to read it.
    unread_s: float | None = None
    unread_step_s: float = 0.0  # what that is known to
    # One of records.tables.REQUEST_STATUSES and a sentence, where the client itself knows that it failed.
    failure: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        limit_bytes = answer_limit_bytes(self.request.most_output_tokens, len(self.request.data))
        self.response = ResponseReader(new_response_parts(limit_bytes))

    @property
    def number(self) -> int:
        return self.request.number

    @property
    def succeeded(self) -> bool:
        """As far as can be known without looking into the events."""
        return self.failure is None and self.response.complete and self.response.http_status == 200


class Listener(Protocol):
    """Who is told what happens on a connection."""

    def ended(self, connection: "Connection", exchange: Exchange) -> None: ...
    def was_closed_before(self, connection: "Connection", exchange: Exchange) -> None: ...


class Connection(asyncio.Protocol):
    """Carries one exchange after the other. With a receiver, that reads the socket, and the transport only writes."""

    __slots__ = ("_descriptor", "_exchange", "_listener", "_parts", "_receiver", "_socket", "_transport",
                 "_was_used", "idle_since", "unseen")  # fmt: skip

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._receiver: Receiver | None = None
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._descriptor: int | None = None  # None: encrypted, so that only the transport can write
        self._exchange: Exchange | None = None
        self._parts: Parts | None = None  # of the response, while a whole chunk can go right there
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
        """Only once connection_made has returned: then uvloop begins to read, whatever that said."""
        assert self._transport is not None
        assert self._descriptor is not None
        self._transport.pause_reading()
        self._receiver = receiver
        receiver.watch(self._descriptor, self)

    def send(self, exchange: Exchange) -> None:
        """Hand the request to the socket now. A transport would wait for the end of the loop's iteration."""
        assert self._transport is not None
        self._exchange = exchange
        data = exchange.request.data
        # Before the write, not after: the write wakes the server, which may take this core for milliseconds.
        exchange.sent = monotonic()
        if self._descriptor is None:
            self._transport.write(data)
            return
        try:
            written = os.write(self._descriptor, data)
        except BlockingIOError:
            written = 0
        except OSError as problem:
            if not self._leaves_to_another():
                self.abort(
                    "broken",
                    f"the server closed the connection as the request was sent ({problem.strerror})",
                )
            return
        if written < len(data):
            self._transport.write(data[written:])

    def data_received(self, data: bytes) -> None:
        """A read without a receiver. For nearly every token this takes the short way."""
        now = monotonic()
        parts = self._parts
        if parts is None or not parts.take_chunk(data, now):
            self.take(data, now, now, _TICK_S)

    def take(self, data: bytes, arrived: float, noticed: float, unread_step_s: float = 0.0) -> None:
        """A read of the receiver, or without one, which then knows when the kernel had it to a tick."""
        if (
            self._exchange is None
        ):  # bytes that answer no request: the two sides disagree about where they are
            self.close()
            return
        exchange, response = self._exchange, self._exchange.response
        complete = response.feed(data, arrived)
        if exchange.unread_s is None and len(response.parts):
            exchange.unread_s = self._since_received_s() if unread_step_s else noticed - arrived
            exchange.unread_step_s = unread_step_s
        if complete:
            self._end(noticed)
        elif (
            response.between_chunks and self._receiver is not None and self._descriptor is not None
        ):
            self._receiver.keep_chunks(self._descriptor, self, response.parts)
        else:
            self._parts = response.parts if response.between_chunks else None

    def lost(self, problem: OSError | None, noticed: float) -> None:
        """By the receiver, which reads it no more."""
        self._closed_by_peer(noticed, problem)
        self.close()

    def eof_received(self) -> None:
        self._closed_by_peer(monotonic(), None)

    def connection_lost(self, problem: Exception | None) -> None:
        self._closed_by_peer(monotonic(), problem)
        self._forget()
        self._transport = None

    def abort(self, status: str, sentence: str) -> None:
        """Give the exchange up; the connection can carry no other one."""
        if self._exchange is not None:
            self._exchange.failure = (status, sentence)
            self._exchange.response.close()
            self._end(monotonic())

    def close(self) -> None:
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def _forget(self) -> None:
        if self._receiver is not None and self._descriptor is not None:
            self._receiver.forget(self._descriptor, self)

    def _since_received_s(self) -> float:
        assert self._socket is not None
        facts = self._socket.getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED_OFFSET + _LAST_RECEIVED.size
        )
        (milliseconds,) = _LAST_RECEIVED.unpack_from(facts, _LAST_RECEIVED_OFFSET)
        return float(milliseconds) / 1_000

    def _closed_by_peer(self, now: float, problem: Exception | None) -> None:
        if self._exchange is None or self._leaves_to_another():
            return
        self._exchange.response.close()
        if not self._exchange.response.complete:
            why = (
                f"the connection broke ({problem})"
                if problem
                else "the server closed the connection"
            )
            self._exchange.failure = ("broken", f"{why} before the answer was complete")
        self._end(now)

    def _leaves_to_another(self) -> bool:
        """A server may close a connection after any answer, as llama.cpp does without a word of it: a request that was
        already on its way gets none, and belongs on another connection (RFC 9112, 9.3.1)."""
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
        self.idle_since = exchange.end = now
        if not exchange.response.persistent:
            self.close()
        self._listener.ended(self, exchange)


# Servers close connections that are idle; uvicorn, under vLLM, SGLang and others, after 5 s, the shortest in use. One
# that is closed as a request is on its way fails that request, so ours are given up before.
IDLE_LIMIT_S = 4.0
_OPENED_AT_ONCE = 128  # connections opened together: a server's queue for them is often as short


class ConnectionPool:
    """Gives out the connection that was used last, so that no more of them stay open than are needed."""

    def __init__(
        self, endpoint: Endpoint, listener: Listener, timeout_s: float, timers: Iterable[Timer]
    ) -> None:
        self.host, self.port, encrypted = connection_address(endpoint.url)
        self._encryption = _encryption() if encrypted else None
        self._receiver = None if encrypted else Receiver(timers)
        self._listener = listener
        self._timeout_s = timeout_s
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._opening = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self) -> Connection | None:
        """A connection that is free now, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            self._open.discard(connection)
        return None

    def give_back(self, connection: Connection) -> None:
        if connection.usable:
            self._idle.append(connection)
        else:
            self._open.discard(connection)

    async def open(self) -> Connection:
        """A new connection, in the hands of the caller. Raises OSError, also where it takes too long."""
        opening = asyncio.get_running_loop().create_connection(
            lambda: Connection(self._listener), self.host, self.port, ssl=self._encryption
        )
        _, connection = await asyncio.wait_for(opening, self._timeout_s)
        if self._receiver is not None and connection.usable:
            connection.be_read_by(self._receiver)
        self._open.add(connection)
        return connection

    async def fill(self, count: int) -> None:
        """Have `count` free connections, or as many as the server takes: who finds none opens one and sees why."""
        while count > 0:
            together = min(count, _OPENED_AT_ONCE)
            count -= together
            opened = await asyncio.gather(
                *(self.open() for _ in range(together)), return_exceptions=True
            )
            for connection in opened:
                if isinstance(connection, Connection):
                    self._idle.append(connection)
                elif not isinstance(connection, OSError):
                    raise connection
                else:
                    return

    def keep_ready(self, count: int) -> None:
        """Begin to open what is missing of `count` free connections, and close those that were free too long."""
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
