"""Serves a fixed set of pages to browsers on this machine: loopback only, GET only, nothing from the disk."""

import math
import socketserver
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, cast

from bitbench.util.errors import UsageError

HOST = "127.0.0.1"
_SLOWEST_REQUEST_S = 5.0


class LiveServer:
    """A context manager. Pages are bytes that were made before: a request costs no more than sending them."""

    def __init__(self, port: int = 0) -> None:
        """Port 0: any that is free. Raises UsageError where it is taken."""
        try:
            self._server = _Server((HOST, port), _Handler)
        except OSError as error:
            raise UsageError(f"--port {port} cannot be used ({error.strerror}); give another, or none") from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}/"

    def publish(self, path: str, kind: str, content: str) -> None:
        """`path` as a browser asks for it, such as `/`; what it held before is replaced."""
        self._server.pages[path] = (kind, content.encode())

    def was_asked_since(self, moment_s: float) -> bool:
        """For a page, by `time.monotonic`."""
        return self._server.last_asked_s > moment_s

    def __enter__(self) -> "LiveServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self.pages: dict[str, tuple[str, bytes]] = {}
        self.last_asked_s = -math.inf
        super().__init__(*arguments)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _SLOWEST_REQUEST_S
    server_version, sys_version = "bitbench", ""

    def do_GET(self) -> None:
        server = cast("_Server", self.server)
        port = server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):  # a name that was bent to loopback
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return
        server.last_asked_s = time.monotonic()
        if self.path not in server.pages:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, content = server.pages[self.path]
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """The terminal is for the study."""
