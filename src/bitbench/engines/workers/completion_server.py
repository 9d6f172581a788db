"""The HTTP side of a small OpenAI-style server: it checks requests and hands them to the thread that computes.

A part of the servers that lie beside it, loaded by path in their environments; imports nothing of ours. Streams are
written by `streamed_answers.py`, requests without `stream` are answered by `whole_answers.py`.
"""

import hmac
import json
import os
import queue
import sys
import time
import traceback
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn, Protocol

import streamed_answers  # type: ignore[import-not-found]
import whole_answers  # type: ignore[import-not-found]

BATCH_HEADER = "X-Batch-Size"


def end_with(error: Exception, jobs: Iterable[Any]) -> NoReturn:
    """For an error of the thread that computes: it is in the log and in the answers, and the process ends."""
    traceback.print_exc()
    for job in jobs:
        job.error = f"{type(error).__name__}: {error}"
        job.done.set()
    time.sleep(0.2)  # for the answers to go out
    os._exit(1)


class ServedModel(Protocol):
    tokenizer: Any  # of the package `tokenizers`
    context_tokens: int | None


class Handler(BaseHTTPRequestHandler):
    """GET /health and POST /v1/completions; a server that answers more names it in `more_paths`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "CompletionServer"
    more_paths: tuple[str, ...] = ()

    def do_GET(self) -> None:
        known = self.path == "/health"
        self.answer(HTTPStatus.OK if known else HTTPStatus.NOT_FOUND, {"status": "ready" if known else "unknown path"})

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path not in ("/v1/completions", *self.more_paths):
            return self.refuse(HTTPStatus.NOT_FOUND, f"unknown path {self.path}")
        if not hmac.compare_digest(self.headers.get("Authorization", ""), f"Bearer {self.server.key}"):
            return self.refuse(HTTPStatus.UNAUTHORIZED, "wrong or missing key")
        if self.path != "/v1/completions":
            return self.answer_more(content)
        try:
            body = json.loads(content)
            whole = isinstance(body, dict) and not body.get("stream")
            kind = whole_answers if whole else streamed_answers
            fault = kind.fault_of(body, self.server.model.context_tokens)
            batch_size = int(self.headers.get(BATCH_HEADER) or 1)
        except ValueError as error:
            return self.refuse(HTTPStatus.BAD_REQUEST, str(error))
        if fault:
            return self.refuse(HTTPStatus.BAD_REQUEST, fault)
        job: Any = (
            whole_answers.WholeJob(body)
            if whole
            else streamed_answers.Job(body, batch_size, self.connection, self.server.model.tokenizer)
        )
        self.server.jobs.put(job)
        job.done.wait()
        self.close_connection = self.close_connection or job.is_broken or job.error is not None
        if job.error is not None and job.count == 0:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, job.error)
        elif whole:
            self.answer(HTTPStatus.OK, job.answer)
        return None

    def answer_more(self, content: bytes) -> None:
        """A POST to one of `more_paths`."""

    def refuse(self, status: HTTPStatus, message: str) -> None:
        self.answer(status, {"error": {"message": message, "code": status}})

    def answer(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """A line per request would be written while the next batch is computed."""


class CompletionServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 4096  # a batch of thousands connects at once

    def __init__(self, port: int, key: str, model: ServedModel, handler: type[Handler] = Handler) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.key = key
        self.model = model
        self.jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class names them
        print(f"a connection broke: {sys.exc_info()[1]}", flush=True)
