"""Reads all plain connections in native code, which also knows when the kernel received what it reads."""

import asyncio
import os
from collections import deque
from typing import TYPE_CHECKING, Protocol, cast

from bitbench.util.http.parts import Parts

if TYPE_CHECKING:
    from bitbench._native import Parts as NativeParts
try:
    from bitbench._native import Receiver as NativeReceiver
except ImportError:  # no compiler when it was installed
    NativeReceiver = None  # type: ignore[assignment,misc]

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
    """Tells a connection of its reads in turn; whole chunks go where they belong without a word."""

    @classmethod
    def if_built(cls) -> "Receiver | None":
        return cls() if NativeReceiver is not None else None

    def __init__(self) -> None:
        self._native = NativeReceiver()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._native.fileno(), self._receive)
        self._readers: dict[int, Reader] = {}
        self._waiting: deque[tuple[Reader, bytes, int, float, float]] = deque()
        self._comes_back = False

    def watch(self, descriptor: int, reader: Reader) -> None:
        self._native.watch(descriptor)
        self._readers[descriptor] = reader

    def yield_to(self, descriptor: int) -> None:
        """A timer of the event loop, which must not wait while chunks are read."""
        self._native.yield_to(descriptor)

    def forget(self, descriptor: int, reader: Reader) -> None:
        """Before it is closed. If it is already, its number may be another one's."""
        if self._readers.get(descriptor) is reader:
            del self._readers[descriptor]
            self._native.forget(descriptor)

    def keep_chunks(self, descriptor: int, reader: Reader, parts: Parts) -> None:
        """From now until a read is something else. Not while one waits: what comes next would be kept before it."""
        if reader.unseen == 0:
            self._native.keep_chunks(descriptor, cast("NativeParts", parts))

    def close(self) -> None:
        self._loop.remove_reader(self._native.fileno())

    def _receive(self) -> None:
        for descriptor, data, error, arrived, noticed in self._native.receive(may_wait=not self._waiting):
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
