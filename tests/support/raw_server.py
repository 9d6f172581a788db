"""A server on a real socket that reads requests properly and answers whatever a script writes, HTTP or not."""

import contextlib
import json
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple


class Asked(NamedTuple):
    path: str
    authorization: str  # the header, empty where there was none
    model: str


Answerer = Callable[[socket.socket, Asked], None]


def models(*names: object) -> bytes:
    """A whole answer to /v1/models."""
    return plain(json.dumps({"data": [{"id": name} for name in names]}).encode())


def plain(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("utf-8", errors="surrogateescape") + b"\r\n\r\n" + body


class RawServer:
    """Keeps what it was asked, in `asked`."""

    def __init__(self, answer: Answerer, encryption: ssl.SSLContext | None = None) -> None:
        self._answer = answer
        self._encryption = encryption
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self.asked: list[Asked] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{'https' if self._encryption else 'http'}://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        with contextlib.suppress(OSError), connected:
            encrypted = self._encryption
            stream = encrypted.wrap_socket(connected, server_side=True) if encrypted else connected
            with stream, stream.makefile("rb") as reader:
                while (asked := _next_request(reader)) is not None:
                    self.asked.append(asked)
                    self._answer(stream, asked)


@contextmanager
def serving(answer: Answerer, encryption: ssl.SSLContext | None = None) -> Iterator[RawServer]:
    server = RawServer(answer, encryption)
    try:
        yield server
    finally:
        server.stop()


def _next_request(reader: IO[bytes]) -> Asked | None:
    first = reader.readline().split()
    if len(first) < 2:
        return None
    headers = {}
    while (line := reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    body = reader.read(int(headers.get("content-length", "0")))
    model = json.loads(body).get("model", "") if body else ""
    return Asked(first[1].decode(), headers.get("authorization", ""), model)


# What scripts are made of.


def send(*parts: bytes) -> Answerer:
    """And leave the connection open."""

    def answer(connected: socket.socket, asked: Asked) -> None:
        connected.sendall(b"".join(parts))

    return answer


def send_and_close(*parts: bytes) -> Answerer:
    def answer(connected: socket.socket, asked: Asked) -> None:
        connected.sendall(b"".join(parts))
        connected.shutdown(socket.SHUT_RDWR)

    return answer


def send_and_reset(*parts: bytes) -> Answerer:
    def answer(connected: socket.socket, asked: Asked) -> None:
        connected.sendall(b"".join(parts))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(connected.detach())  # `close` would wait for whoever reads from it

    return answer


def flood(
    head: bytes, block: bytes, most_bytes: int = 1_500_000_000, *, each_alone: bool = False
) -> Answerer:
    """As much as the client takes. `each_alone`: with so much time in between that a read brings one block."""

    def answer(connected: socket.socket, asked: Asked) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.sendall(head)
        for _ in range(most_bytes // len(block)):
            connected.sendall(block)
            if each_alone:
                time.sleep(0.0005)

    return answer


def drip(head: bytes, rest: bytes, pause_s: float = 0.02) -> Answerer:
    """Byte by byte, so that there is always news."""

    def answer(connected: socket.socket, asked: Asked) -> None:
        connected.sendall(head)
        for place in range(len(rest)):
            connected.sendall(rest[place : place + 1])
            time.sleep(pause_s)

    return answer


def silence(connected: socket.socket, asked: Asked) -> None:
    time.sleep(10.0)
