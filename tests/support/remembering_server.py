"""A server that remembers prompts by prefixes of 16 tokens, as vLLM's default does, and says so at GET /metrics."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.scripted_server import END, TOKEN, event

BLOCK = 16
BLOCK_S = 0.05  # of each that has to be computed
TOKEN_S = 0.2


class RememberingServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.known: set[tuple[int, ...]] = set()
        self.prompts: list[tuple[int, ...]] = []
        self.cached_tokens = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def take(self, prompt: list[int]) -> int:
        """How many of its tokens are known; at least one is computed."""
        blocks = [tuple(prompt[: end + BLOCK]) for end in range(0, len(prompt) - BLOCK, BLOCK)]
        with self.lock:
            self.prompts.append(tuple(prompt))
            cached = BLOCK * sum(block in self.known for block in blocks)
            self.known.update(blocks)
            self.cached_tokens += cached
        return cached


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RememberingServer

    def do_GET(self) -> None:
        counted = f"# TYPE vllm:prefix_cache_hits_total counter\nvllm:prefix_cache_hits_total {self.server.cached_tokens}\n"
        pages = {"/metrics": counted, "/v1/models": json.dumps({"data": [{"id": "remembers"}]})}
        body = pages.get(self.path, "").encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        cached = self.server.take(asked["prompt"])
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        time.sleep(BLOCK_S * (len(asked["prompt"]) - cached) / BLOCK)
        for number in range(asked["max_tokens"]):
            time.sleep(TOKEN_S if number else 0.0)
            self.wfile.write(TOKEN)
            self.wfile.flush()
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": asked["max_tokens"]}
        self.wfile.write(event(choices=[], usage=usage) + END)

    def log_message(self, *_: object) -> None:
        """Nothing is to be read on the terminal."""


@contextmanager
def remembering() -> Iterator[RememberingServer]:
    server = RememberingServer()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
