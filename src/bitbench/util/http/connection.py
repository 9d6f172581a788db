"""Asks a server one thing at a time, within a time and a size that no server can stretch. Follows no redirect."""

import socket
import ssl
from collections.abc import Mapping
from time import monotonic
from typing import NamedTuple, Self

from bitbench.util.http.address import Address, address
from bitbench.util.http.parts import PythonParts
from bitbench.util.http.response import Fault, ResponseReader
from bitbench.util.units import show_bytes

_READ_BYTES = 65_536


class PlainAnswer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class BadAnswer(Exception):
    """What came is no HTTP, or is too large."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.what)
        self.fault = fault


class PlainConnection:
    """Opened when it is needed, and again where the server has announced that it closes it."""

    def __init__(self, url: str, *, limit_s: float, limit_bytes: int) -> None:
        self._address = address(url)
        self._limit_s = limit_s
        self._limit_bytes = limit_bytes
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> PlainAnswer:
        """Raises TimeoutError where it is not complete within the limit, another OSError where there is no
        connection or it breaks, and BadAnswer."""
        until = monotonic() + self._limit_s
        try:
            connected = self._connected(until)
            connected.settimeout(_left(until))
            connected.sendall(_request(method, path, self._address, headers, body))
            response = self._read(connected, until)
        except BaseException:
            self.close()
            raise
        if not response.persistent:
            self.close()
        assert response.http_status is not None, "it is complete"
        return PlainAnswer(response.http_status, response.headers, response.body)

    def _connected(self, until: float) -> socket.socket:
        if self._socket is None:
            host, port, tls = self._address
            self._socket = socket.create_connection((host, port), timeout=_left(until))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls:
                self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=host)
        return self._socket

    def _read(self, connected: socket.socket, until: float) -> ResponseReader:
        response = ResponseReader(PythonParts(self._limit_bytes))
        ended = False
        while not ended:
            connected.settimeout(_left(until))
            data = connected.recv(_READ_BYTES)
            if not data:
                response.close()
                break
            ended = response.feed(data, monotonic())
        if response.oversized:
            raise BadAnswer(Fault(f"it is larger than {show_bytes(self._limit_bytes)}"))
        if response.malformed is not None:
            raise BadAnswer(response.malformed)
        if not response.complete:
            raise ConnectionError("the server closed the connection before the answer was complete")
        return response


def _left(until: float) -> float:
    left_s = until - monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _request(method: str, path: str, to: Address, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = {"Host": to.header, "Accept": "application/json", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body
