"""One connection, one request at a time, one timestamp per read."""

import asyncio
import os
import socket
import struct
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol, cast

from bitbench.load.requests import PlannedRequest
from bitbench.load.response import ResponseReader, is_whole_chunk

# struct tcp_info of linux/tcp.h: 8 bytes, then 32-bit numbers of which the twelfth is tcpi_last_data_recv: how many
# milliseconds ago the kernel received data. It counts in ticks of 1 to 10 ms, so one value is coarse, but their mean
# over many requests is not.
_LAST_RECEIVED = struct.Struct("=I")
_LAST_RECEIVED_OFFSET = 8 + 11 * 4


@dataclass(slots=True)
class Exchange:
    """One request and what came back, with raw times on time.monotonic(). Decoded after the trial."""

    request: PlannedRequest
    planned: float  # when it should be sent; latencies count from here
    ready: float  # when it could be: `planned`, or later, the end of the request before it on its stream
    sent: float | None = None
    end: float | None = None
    response: ResponseReader = field(default_factory=ResponseReader)
    # How long the first part of the answer lay in the kernel until this process came to read it.
    unread_s: float | None = None
    # One of core.records.REQUEST_STATUSES and a sentence, where the client itself knows that it failed.
    failure: tuple[str, str] | None = None

    @property
    def number(self) -> int:
        return self.request.number

    @property
    def succeeded(self) -> bool:
        """As far as can be known without looking into the events."""
        return self.failure is None and self.response.complete and self.response.http_status == 200


class Listener(Protocol):
    """Who is told what happens on a connection."""

    def answer_began(self, exchange: Exchange) -> None: ...
    def ended(self, connection: "Connection", exchange: Exchange) -> None: ...


class Connection(asyncio.Protocol):
    """Carries one exchange after the other."""

    __slots__ = ("_descriptor", "_exchange", "_listener", "_reads", "_socket", "_transport", "idle_since")

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._descriptor: int | None = None  # None: encrypted, so that only the transport can write
        self._exchange: Exchange | None = None
        self._reads: list[bytes | float] | None = None  # of the response, while a whole chunk can go right there
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
            self.abort("broken", f"the server closed the connection as the request was sent ({problem.strerror})")
            return
        if written < len(data):
            self._transport.write(data[written:])

    def data_received(self, data: bytes) -> None:
        """For nearly every token this takes the short way, which touches as few objects as it can.

        With a thousand streams none of them is in the processor's cache any more, and that is most of what it costs.
        """
        now = monotonic()
        reads = self._reads
        if reads is not None and is_whole_chunk(data):
            reads.append(data)
            reads.append(now)
        else:
            self._take(data, now)

    def eof_received(self) -> None:
        self._closed_by_peer(monotonic(), None)

    def connection_lost(self, problem: Exception | None) -> None:
        self._closed_by_peer(monotonic(), problem)
        self._transport = None

    def abort(self, status: str, sentence: str) -> None:
        """Give the exchange up; the connection can carry no other one."""
        if self._exchange is not None:
            self._exchange.failure = (status, sentence)
            self._exchange.response.close()
            self._end(monotonic())

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _take(self, data: bytes, now: float) -> None:
        if self._exchange is None:  # bytes that answer no request: the two sides disagree about where they are
            self.close()
            return
        exchange, response = self._exchange, self._exchange.response
        complete = response.feed(data, now)
        if response.reads and exchange.unread_s is None:
            exchange.unread_s = self._since_received_s()
            self._listener.answer_began(exchange)
        if complete:
            self._end(now)
        else:
            self._reads = response.reads if response.between_chunks else None

    def _since_received_s(self) -> float:
        assert self._socket is not None
        facts = self._socket.getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED_OFFSET + _LAST_RECEIVED.size
        )
        (milliseconds,) = _LAST_RECEIVED.unpack_from(facts, _LAST_RECEIVED_OFFSET)
        return float(milliseconds) / 1_000

    def _closed_by_peer(self, now: float, problem: Exception | None) -> None:
        if self._exchange is None:
            return
        self._exchange.response.close()
        if not self._exchange.response.complete:
            why = f"the connection broke ({problem})" if problem else "the server closed the connection"
            self._exchange.failure = ("broken", f"{why} before the answer was complete")
        self._end(now)

    def _end(self, now: float) -> None:
        exchange = self._exchange
        assert exchange is not None
        self._exchange = None
        self._reads = None
        self.idle_since = exchange.end = now
        if not exchange.response.persistent:
            self.close()
        self._listener.ended(self, exchange)
