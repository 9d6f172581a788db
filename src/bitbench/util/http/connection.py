"""Simple requests to a server, limited in time and size, without redirects, and the reader of the
server's own metrics.

The reader skips lines that are not samples. The format of metrics:
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
    make_response_parts,
)
from bitbench.util.text import quote
from bitbench.util.units import show_bytes

_PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    """The address of a server."""

    host: str
    port: int
    tls: bool

    @property
    def header(self) -> str:
        """Return the value of the header `Host`."""
        if ":" in self.host:
            return f"[{self.host}]:{self.port}"
        return f"{self.host}:{self.port}"


def parse_address(url: str) -> Address:
    """Return the address of http://host:port or https://host:port, or raise ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or parts.hostname is None or parts.path not in ("", "/"):
        raise ValueError(
            f"the endpoint {url!r} should look like http://host:port or https://host:port"
        )
    return Address(parts.hostname, parts.port or _PORTS[parts.scheme], parts.scheme == "https")


REDIRECTS = frozenset((301, 302, 303, 307, 308))


def describe_redirect(headers: Mapping[str, str], key: str) -> str:
    """Return the target of a redirect and the remedy, as the end of a sentence about the server."""
    target = "without saying where"
    if location := quote(headers.get("location", ""), key):
        target = f"to {location}; if that is meant, give its address"
    return (
        f"it redirects {target} (bitbench follows no redirect, so that the key goes nowhere else)"
    )


def describe_error(body: bytes, key: str) -> str:
    """Return the message of an error body, in the server's words."""
    message = None
    if len(body) <= EVENT_BYTES:
        message = parse_json_object(body)
    if message and (sentence := find_error_message(message, key)):
        return sentence
    return quote(body, key) or "no explanation"


def find_error_message(message: Mapping[str, Any], key: str) -> str | None:
    """Return the message of an error in any of the forms in use, or None.

    These are `{"error": {"message": …}}`, `{"error": …}`, `{"message": …}` and `{"detail": …}`.
    """
    error = message.get("error") or message
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail")
    if not error:
        return None
    return quote(str(error), key)


def parse_json_object(data: bytes) -> dict[str, Any] | None:
    """Parse a JSON object. Return None for anything else."""
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    return message


_READ_BYTES = 65_536


class PlainAnswer(NamedTuple):
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class BadAnswer(Exception):
    """A response that is not HTTP, or too large."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.what)
        self.fault = fault


class PlainConnection:
    """A connection that opens on first use, and again after the server has closed it."""

    def __init__(self, url: str, *, limit_s: float, limit_bytes: int) -> None:
        self._address = parse_address(url)
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
        """Send a request and return the complete response.

        Raise TimeoutError after the limit, another OSError if the connection fails, and
        BadAnswer.
        """
        until = monotonic() + self._limit_s
        try:
            connected = self._connected(until)
            connected.settimeout(_compute_time_left(until))
            connected.sendall(_format_request(method, path, self._address, headers, body))
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
            self._socket = socket.create_connection((host, port), timeout=_compute_time_left(until))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls:
                self._socket = ssl.create_default_context().wrap_socket(
                    self._socket, server_hostname=host
                )
        return self._socket

    def _read(self, connected: socket.socket, until: float) -> ResponseReader:
        response = ResponseReader(make_response_parts(self._limit_bytes))
        ended = False
        while not ended:
            connected.settimeout(_compute_time_left(until))
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


def _compute_time_left(until: float) -> float:
    left_s = until - monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _format_request(
    method: str, path: str, to: Address, headers: Mapping[str, str], body: bytes
) -> bytes:
    lines = {
        "Host": to.header,
        "Accept": "application/json",
        "Content-Length": str(len(body)),
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


# A healthy server answers within milliseconds. Any other must not delay its trial.
_LIMIT_S = 2.0
_OK = 200
_MOST_LINES = 20_000  # vLLM has some hundred, with a line for each bucket of its histograms
_LONGEST_LINE = 2_000
_TYPE = re.compile(r"# TYPE ([A-Za-z_:][\w:]*) (counter|gauge|histogram|summary|untyped)", re.ASCII)
# Labels may contain anything between quotes, even a brace. The last brace ends them.
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{.*\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Samples:
    """Metrics by name, without labels: the largest value of a gauge, and sums for other kinds."""

    values: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)


def fetch_samples(url: str, api_key: str = "") -> Samples | None:
    """Return the metrics of GET /metrics, or None if the server offers none or does not answer."""
    headers = {"Accept": "text/plain"}
    if api_key:
        headers = {"Authorization": f"Bearer {api_key}", **headers}
    try:
        with PlainConnection(url, limit_s=_LIMIT_S, limit_bytes=PLAIN_BYTES) as connection:
            answer = connection.ask("GET", "/metrics", headers)
    except (OSError, BadAnswer):
        return None
    if answer.status != _OK:
        return None
    return read_samples(answer.body.decode("utf-8", "replace"))


def read_samples(text: str) -> Samples:
    """Parse metrics in the text format of Prometheus."""
    samples = Samples()
    for line in text.splitlines()[:_MOST_LINES]:
        if len(line) > _LONGEST_LINE:
            continue
        if kind := _TYPE.fullmatch(line.rstrip()):
            samples.kinds[kind[1]] = kind[2]
            continue
        sample = _SAMPLE.fullmatch(line.rstrip())
        if sample is not None and (value := _parse_number(sample[2])) is not None:
            _add_sample(samples, sample[1], value)
    return samples


def _add_sample(samples: Samples, name: str, value: float) -> None:
    earlier = samples.values.get(name)
    if earlier is None:
        samples.values[name] = value
    elif samples.kinds.get(name) == "gauge":
        samples.values[name] = max(earlier, value)
    else:
        samples.values[name] = earlier + value


def _parse_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return value
