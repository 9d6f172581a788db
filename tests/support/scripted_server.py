"""A server on a real socket that answers each request by a script, and the pieces of answers."""

import contextlib
import itertools
import json
import socket
import ssl
import threading
from collections.abc import Callable
from typing import IO

Script = Callable[[socket.socket, int], None]


def event(**message: object) -> bytes:
    data = b"data: " + json.dumps(message).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = event(choices=[{"text": "x", "finish_reason": None}])
USAGE = event(choices=[], usage={"prompt_tokens": 4, "completion_tokens": 2})
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class ScriptedServer:
    """Counts connections and keeps what was asked. The script gets the connection and its requests' number on it."""

    def __init__(self, script: Script, encryption: ssl.SSLContext | None = None) -> None:
        self._script = script
        self._encryption = encryption
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.prompts: list[list[int]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._encryption is not None:
                connected = self._encryption.wrap_socket(connected, server_side=True)
            with connected, connected.makefile("rb") as reader:
                for number in itertools.count():
                    length = _length_of_next_request(reader)
                    if length is None:
                        return
                    self.prompts.append(json.loads(reader.read(length))["prompt"])
                    self._script(connected, number)


def _length_of_next_request(reader: IO[bytes]) -> int | None:
    """Read a head; None when there is no further request."""
    length = None
    while (line := reader.readline()).strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return length
