"""Connections that are ready before a request needs one."""

import asyncio
import ssl
from time import monotonic

from bitbench.loadgen.connection import Connection, Listener
from bitbench.loadgen.receiver import Receiver
from bitbench.ports import Endpoint
from bitbench.util.http.address import address
from bitbench.util.timerfd import Timer

# Servers close connections that are idle; uvicorn, under vLLM, SGLang and others, after 5 s, the shortest in use. One
# that is closed as a request is on its way fails that request, so ours are given up before.
IDLE_LIMIT_S = 4.0
_AT_ONCE = 128  # connections opened together: a server's queue for them is often as short


class ConnectionPool:
    """Gives out the connection that was used last, so that no more of them stay open than are needed."""

    def __init__(self, endpoint: Endpoint, listener: Listener, timeout_s: float) -> None:
        self.host, self.port, encrypted = address(endpoint.url)
        self._encryption = _encryption() if encrypted else None
        self._receiver = None if encrypted else Receiver.if_built()
        self._listener = listener
        self._timeout_s = timeout_s
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._opening = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def yield_to(self, timer: Timer) -> None:
        """Reading must not keep it waiting."""
        if self._receiver is not None:
            self._receiver.yield_to(timer.fileno())

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
            together = min(count, _AT_ONCE)
            count -= together
            opened = await asyncio.gather(*(self.open() for _ in range(together)), return_exceptions=True)
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
