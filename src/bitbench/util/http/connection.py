"""Asks a server one thing at a time, within a time and a size that no server can stretch, follows no redirect, and
reads what a server counts about itself.

Of what it counts, any line that is no sample is passed over. The format:
https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

import json
import math
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from bitbench.util.http.response import (
    EVENT_BYTES,
    PLAIN_BYTES,
    Fault,
    ResponseReader,
    new_response_parts,
)
from bitbench.util.text import quote
from bitbench.util.units import show_bytes

_PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    host: str
    port: int
    tls: bool

    @property
    def header(self) -> str:
        """As the header `Host` says it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def connection_address(url: str) -> Address:
    """Where to connect. Anything but http://host:port and https://host:port is refused here."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or parts.hostname is None or parts.path not in ("", "/"):
        raise ValueError(
            f"the endpoint {url!r} should look like http://host:port or https://host:port"
        )
    return Address(parts.hostname, parts.port or _PORTS[parts.scheme], parts.scheme == "https")


REDIRECTS = frozenset((301, 302, 303, 307, 308))


def redirection(headers: Mapping[str, str], key: str) -> str:
    """Where it leads and what to do, as the end of a sentence about the server."""
    place = quote(headers.get("location", ""), key)
    to = f"to {place}; if that is meant, give its address" if place else "without saying where"
    return f"it redirects {to} (bitbench follows no redirect, so that the key goes nowhere else)"


def error_in_answer(body: bytes, key: str) -> str:
    """What an error body says, in the server's words."""
    message = json_object(body) if len(body) <= EVENT_BYTES else None
    return (
        (error_sentence(message, key) if message else None) or quote(body, key) or "no explanation"
    )


def error_sentence(message: Mapping[str, Any], key: str) -> str | None:
    """`{"error": {"message": …}}`, `{"error": …}`, `{"message": …}` and `{"detail": …}` are all in use."""
    found = message.get("error") or message
    if isinstance(found, dict):
        found = found.get("message") or found.get("detail")
    return quote(str(found), key) if found else None


def json_object(data: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


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
        self._address = connection_address(url)
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

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> PlainAnswer:
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
                self._socket = ssl.create_default_context().wrap_socket(
                    self._socket, server_hostname=host
                )
        return self._socket

    def _read(self, connected: socket.socket, until: float) -> ResponseReader:
        response = ResponseReader(new_response_parts(self._limit_bytes))
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
    lines = {
        "Host": to.header,
        "Accept": "application/json",
        "Content-Length": str(len(body)),
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


_LIMIT_S = 2.0  # a server that is well answers within milliseconds; one that is not must not hold up its trial
_OK = 200
_MOST_LINES = 20_000  # vLLM has some hundred, with a line for each bucket of its histograms
_LONGEST_LINE = 2_000
_TYPE = re.compile(r"# TYPE ([A-Za-z_:][\w:]*) (counter|gauge|histogram|summary|untyped)", re.ASCII)
# Labels may hold anything between quotes, also a brace: the last one is theirs.
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{.*\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Samples:
    """By name, without labels: of a gauge the largest, of all else the sum over labels."""

    values: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)


def fetch_samples(url: str, api_key: str = "") -> Samples | None:
    """What GET /metrics of a server says; None where there is none, or no answer."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with PlainConnection(url, limit_s=_LIMIT_S, limit_bytes=PLAIN_BYTES) as connection:
            answer = connection.ask("GET", "/metrics", {**headers, "Accept": "text/plain"})
    except (OSError, BadAnswer):
        return None
    return read_samples(answer.body.decode("utf-8", "replace")) if answer.status == _OK else None


def read_samples(text: str) -> Samples:
    found = Samples()
    for line in text.splitlines()[:_MOST_LINES]:
        if len(line) > _LONGEST_LINE:
            continue
        if kind := _TYPE.fullmatch(line.rstrip()):
            found.kinds[kind[1]] = kind[2]
        elif (sample := _SAMPLE.fullmatch(line.rstrip())) and (
            value := _number(sample[2])
        ) is not None:
            name, known = sample[1], found.values.get(sample[1])
            is_gauge = found.kinds.get(name) == "gauge"
            found.values[name] = (
                value if known is None else max(known, value) if is_gauge else known + value
            )
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
