"""The least that bitbench needs of an OpenAI-compatible server. Runs in the environment, without bitbench."""

import json
import os
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import six

KEY = os.environ["EXAMPLE_API_KEY"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    word = ""

    def do_GET(self) -> None:
        """/health, which says that it is ready."""
        self._answer(200)

    def do_POST(self) -> None:
        """/v1/completions, always as a stream."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != f"Bearer {KEY}":
            self._answer(401)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self._events(asked):
            data = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        """Nothing is written while requests are timed."""

    def _events(self, asked: dict[str, Any]) -> Iterator[str]:
        count, prompt = asked["max_tokens"], asked["prompt"]
        for number in range(count):
            reason = "length" if number == count - 1 else None
            yield json.dumps(
                {"choices": [{"index": 0, "text": f" {self.word}", "finish_reason": reason}]}
            )
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": count,
            "total_tokens": len(prompt) + count,
        }
        yield json.dumps({"choices": [], "usage": usage})
        yield "[DONE]"

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


if __name__ == "__main__":
    Handler.word = sys.argv[2]
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print(f"serving with six {six.__version__}", flush=True)
    server.serve_forever()
