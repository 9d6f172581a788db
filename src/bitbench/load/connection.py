"""One connection, one request at a time, one timestamp per read."""

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import cast

from bitbench.load.requests import PlannedRequest
from bitbench.load.response import ResponseReader


@dataclass(slots=True)
class Exchange:
    """One request and what came back, with raw times on time.monotonic(). Decoded after the trial."""

    request: PlannedRequest
    planned: float
    sent: float | None = None
    end: float | None = None
    response: ResponseReader = field(default_factory=ResponseReader)
    # One of core.records.REQUEST_STATUSES and a sentence, where the client itself knows that it failed.
    failure: tuple[str, str] | None = None

    @property
    def number(self) -> int:
        return self.request.number

    @property
    def succeeded(self) -> bool:
        """As far as can be known without looking into the events."""
        return self.failure is None and self.response.complete and self.response.http_status == 200


class Connection(asyncio.Protocol):
    """Carries one exchange after the other and reports the end of each to `on_end`."""

    def __init__(self, on_end: Callable[["Connection", Exchange], None]) -> None:
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._exchange: Exchange | None = None

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._descriptor = connected.fileno()

    def send(self, exchange: Exchange) -> None:
        """Hand the request to the socket now. A transport would wait for the end of the loop's iteration."""
        assert self._transport is not None
        self._exchange = exchange
        # Before the write, not after: the write wakes the server, which may take this core for milliseconds.
        exchange.sent = monotonic()
        try:
            written = os.write(self._descriptor, exchange.request.data)
        except BlockingIOError:
            written = 0
        except OSError as problem:
            self.abort("broken", f"the server closed the connection as the request was sent ({problem.strerror})")
            return
        if written < len(exchange.request.data):
            self._transport.write(exchange.request.data[written:])

    def data_received(self, data: bytes) -> None:
        now = monotonic()
        if self._exchange is None:
            self.close()
        elif self._exchange.response.feed(data, now):
            self._end(now)

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
        exchange.end = now
        if not exchange.response.persistent:
            self.close()
        self._on_end(self, exchange)
