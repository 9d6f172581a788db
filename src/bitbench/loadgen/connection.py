"""One connection, one request at a time, one timestamp per read."""

import asyncio
import os
import socket
import struct
import time
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol, cast

from bitbench.loadgen.receiver import Receiver
from bitbench.loadgen.requests import PlannedRequest
from bitbench.util.http.limits import AnswerLimits
from bitbench.util.http.parts import Parts, new_parts
from bitbench.util.http.response import ResponseReader

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
    limits: AnswerLimits = field(init=False)
    response: ResponseReader = field(init=False)
    # How long the first part of the answer lay in the kernel until this process came to read it.
    unread_s: float | None = None
    unread_step_s: float = 0.0  # what that is known to
    # One of core.recorded.requests.REQUEST_STATUSES and a sentence, where the client itself knows that it failed.
    failure: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        self.limits = AnswerLimits.of(self.request.most_output_tokens, len(self.request.data))
        self.response = ResponseReader(new_parts(self.limits.body_bytes))

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
    """Carries one exchange after the other. With a receiver, that reads the socket, and the transport only writes."""

    __slots__ = ("_descriptor", "_exchange", "_listener", "_parts", "_receiver", "_socket", "_transport", "idle_since",
                 "unseen")  # fmt: skip

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._receiver: Receiver | None = None
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._descriptor: int | None = None  # None: encrypted, so that only the transport can write
        self._exchange: Exchange | None = None
        self._parts: Parts | None = None  # of the response, while a whole chunk can go right there
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
            self.abort("broken", f"the server closed the connection as the request was sent ({problem.strerror})")
            return
        if written < len(data):
            self._transport.write(data[written:])

    def data_received(self, data: bytes) -> None:
        """A read without a receiver. For nearly every token this takes the short way."""
        now = monotonic()
        parts = self._parts
        if parts is None or not parts.take_chunk(data, now):
            self._take(data, now, now, _TICK_S)

    def take(self, data: bytes, arrived: float, noticed: float) -> None:
        """A read of the receiver."""
        self._take(data, arrived, noticed, 0.0)

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

    def _take(self, data: bytes, arrived: float, noticed: float, unread_step_s: float) -> None:
        if self._exchange is None:  # bytes that answer no request: the two sides disagree about where they are
            self.close()
            return
        exchange, response = self._exchange, self._exchange.response
        complete = response.feed(data, arrived)
        if exchange.unread_s is None and len(response.parts):
            exchange.unread_s = self._since_received_s() if unread_step_s else noticed - arrived
            exchange.unread_step_s = unread_step_s
            self._listener.answer_began(exchange)
        if complete:
            self._end(noticed)
        elif response.between_chunks and self._receiver is not None and self._descriptor is not None:
            self._receiver.keep_chunks(self._descriptor, self, response.parts)
        else:
            self._parts = response.parts if response.between_chunks else None

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
        self._parts = None
        self.idle_since = exchange.end = now
        if not exchange.response.persistent:
            self.close()
        self._listener.ended(self, exchange)
