"""A response as a connection reads it from a socket, through the native receiver."""

import asyncio
import select
import socket
from typing import cast

from bitbench.loadgen.connection import Connection, Exchange, Receiver
from bitbench.loadgen.requests import PlannedRequest
from bitbench.util.http.response import ResponseReader


class _Transport:
    """Closes nothing: the next response comes over the same socket."""

    def __init__(self, reading: socket.socket) -> None:
        self._reading = reading
        self.closed = False

    def get_extra_info(self, name: str) -> socket.socket | None:
        return self._reading if name == "socket" else None

    def pause_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


class _Listener:
    def ended(self, connection: Connection, exchange: Exchange) -> None:
        pass

    def was_closed_before(self, connection: Connection, exchange: Exchange) -> None:
        pass


class SocketReading:
    """Needs a running event loop; read by hand, as often as there is something."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._writing = socket.create_connection(listener.getsockname())
            self._reading, _ = listener.accept()
        self._writing.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reading.setblocking(False)
        self._receiver = Receiver(())

    def close(self) -> None:
        self._receiver.close()
        self._reading.close()
        self._writing.close()

    def read(self, parts: list[bytes], *, close: bool) -> ResponseReader:
        """Each part is read by itself, up to the end of the response; what would come after it is not sent."""
        exchange = Exchange(
            PlannedRequest(0, b"", None, 0.0, None, None, 1_000), planned=0.0, ready=0.0
        )
        connection = Connection(_Listener())
        connection.connection_made(cast(asyncio.Transport, _Transport(self._reading)))
        connection._exchange = exchange
        connection.be_read_by(self._receiver)
        for part in parts:
            self._writing.sendall(part)
            select.select([self._reading], [], [])
            self._receiver._receive()
            if exchange.end is not None:
                break
        if close:
            connection.lost(None, 0.0)
        connection.close()
        return exchange.response
