"""The HTTP side of a small OpenAI-style server: it checks requests and hands them to the thread that computes.

A part of the servers that lie beside it, loaded by path in their environments; imports nothing of ours. Of a stream
that thread writes one event per token to its socket at once. A request without `stream` wants log-probabilities of a
prompt, or a greedy text, in one whole answer, and speaks what vLLM's server does: `prompt_logprobs: K` (each prompt
token and the K likeliest at its place), the older `echo` with `logprobs: K`, which lm-eval asks for, and `stop`,
`ignore_eos` and `return_token_ids` for a text.
"""

import hmac
import json
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn, Protocol

from tokenizers.decoders import DecodeStream  # type: ignore[import-not-found]

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class Job:
    """One request and the socket that waits for its answer. Written to by the computing thread alone."""

    def __init__(
        self, body: dict[str, Any], batch_size: int, connection: socket.socket, tokenizer: Any
    ) -> None:
        self.prompt: list[int] = body["prompt"]
        self.max_tokens: int = body["max_tokens"]
        self.batch_size = batch_size
        self.done = threading.Event()
        self.error: str | None = None
        self.count = 0
        self._model = body.get("model", "")
        self._wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._connection = connection
        self._tokenizer = tokenizer
        self._decoder = DecodeStream(skip_special_tokens=False)
        self._pending = STREAM_HEAD
        self.is_broken = False

    def add(self, token: int) -> None:
        """Sends a token at once; its text may be empty while a character is incomplete."""
        self.count += 1
        text = self._decoder.step(self._tokenizer, token) or ""
        self._send_event(
            {"choices": [{"index": 0, "text": text, "token_ids": [token], "finish_reason": None}]}
        )
        if self.count == self.max_tokens:
            self._finish()

    def _finish(self) -> None:
        self._send_event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        if self._wants_usage:
            sent = len(self.prompt)
            usage = {
                "prompt_tokens": sent,
                "completion_tokens": self.count,
                "total_tokens": sent + self.count,
            }
            self._send_event({"choices": [], "usage": usage})
        self._send(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        self.done.set()

    def _send_event(self, event: dict[str, Any]) -> None:
        text = json.dumps(
            {"object": "text_completion", "model": self._model, **event}, separators=(",", ":")
        )
        self._send(_chunk(f"data: {text}\n\n".encode()))

    def _send(self, data: bytes) -> None:
        """A client that went away is noted; the others of its batch go on."""
        if self.is_broken:
            return
        try:
            self._connection.sendall(self._pending + data)
            self._pending = b""
        except OSError:
            self.is_broken = True


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _stream_fault(body: Any, context_tokens: int | None) -> str | None:
    """What is wrong with a request, or None."""
    if not isinstance(body, dict):
        return "the body must be a JSON object"
    prompt, count = body.get("prompt"), body.get("max_tokens")
    if not (isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt)):
        return "prompt must be a list of token ids"
    if not (type(count) is int and count > 0):
        return "max_tokens must be a positive number"
    if body.get("ignore_eos") is not True:
        return "a stream of this server always has max_tokens tokens: set ignore_eos"
    if context_tokens is not None and len(prompt) + count > context_tokens:
        return f"{len(prompt)} tokens in and {count} out are more than the model's context of {context_tokens}"
    return None


Place = dict[
    int, float
]  # token -> log-probability: the K likeliest first, then the one that stands there


class WholeModel(Protocol):
    """What answers are made with."""

    def score(self, prompt: list[int], top: int) -> list[Place]:
        """For each place from the second on, and for the one after the prompt (the likeliest token stands there)."""

    def write(
        self, prompt: list[int], max_tokens: int, stop: list[str], *, ignore_eos: bool
    ) -> list[int]:
        """Greedy tokens; where a text of `stop` appears they may end."""

    def text_of(self, tokens: list[int], *, skip_special: bool) -> str: ...


class WholeJob:
    """One request; the thread that computes fills `answer`."""

    batch_size = 1
    count = 0
    is_broken = False

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.prompts = _prompts_of(body)
        self.done = threading.Event()
        self.error: str | None = None
        self.answer: dict[str, Any] | None = None


def _prompts_of(body: dict[str, Any]) -> list[list[int]]:
    """One prompt of token ids, or a list of such."""
    prompt = body["prompt"]
    return prompt if isinstance(prompt[0], list) else [prompt]


def _whole_fault(body: Any, context_tokens: int | None) -> str | None:
    """What is wrong with a request, or None."""
    prompt, count = body.get("prompt"), body.get("max_tokens")
    if not (isinstance(prompt, list) and prompt):
        return "prompt must be a list of token ids"
    for tokens in _prompts_of(body):
        if not (
            isinstance(tokens, list) and tokens and all(type(token) is int for token in tokens)
        ):
            return "prompt must be a list of token ids, or a list of such lists"
        if (
            type(count) is int
            and context_tokens is not None
            and len(tokens) + count > context_tokens
        ):
            return f"{len(tokens)} tokens in and {count} out are more than the model's context of {context_tokens}"
    if not (type(count) is int and count > 0):
        return "max_tokens must be a positive number"
    return _unknown_wish(body)


def _unknown_wish(body: dict[str, Any]) -> str | None:
    if body.get("temperature", 0) != 0:
        return "this server decodes greedily: set temperature to 0"
    if _wanted_top(body) is not None and body["max_tokens"] != 1:
        return "log-probabilities of a prompt are given with max_tokens 1 only"
    return None


def _wanted_top(body: dict[str, Any]) -> int | None:
    """How many likely tokens are wanted at each place of the prompt; None: none, not even the prompt's own."""
    if body.get("prompt_logprobs") is not None:
        return int(body["prompt_logprobs"])
    return int(body["logprobs"]) if body.get("echo") and body.get("logprobs") is not None else None


def answer_whole_completion(job: WholeJob, model: WholeModel) -> None:
    """Computes every choice of a request, one after the other: a batch would be padded, and round differently."""
    top = _wanted_top(job.body)
    choices = []
    for index, prompt in enumerate(job.prompts):
        if top is not None:
            choice = _scored(job.body, prompt, model.score(prompt, top), model)
        else:
            choice = _written(job.body, prompt, model)
        choices.append({"index": index, **choice})
    answered = sum(len(choice["token_ids"]) for choice in choices)
    usage = {"prompt_tokens": sum(map(len, job.prompts)), "completion_tokens": answered}
    job.answer = {
        "object": "text_completion",
        "model": job.body.get("model", ""),
        "choices": choices,
        "usage": usage,
    }


def _scored(
    body: dict[str, Any], prompt: list[int], places: list[Place], model: WholeModel
) -> dict[str, Any]:
    following = [*prompt[1:], max(places[-1], key=places[-1].__getitem__)]
    if body.get("prompt_logprobs") is not None:
        shown = [
            {str(token): {"logprob": value} for token, value in place.items()}
            for place in places[:-1]
        ]
        return {
            "text": "",
            "finish_reason": "length",
            "token_ids": following[-1:],
            "prompt_logprobs": [None, *shown],
        }
    words = [f"token_id:{token}" for token in [prompt[0], *following]]
    return {
        "text": model.text_of([prompt[0], *following], skip_special=False),
        "finish_reason": "length",
        "token_ids": following[-1:],
        "logprobs": {
            "tokens": words,
            "token_logprobs": [
                None,
                *(place[token] for place, token in zip(places, following, strict=True)),
            ],
            "top_logprobs": [
                None,
                *(
                    {f"token_id:{candidate}": place[candidate] for candidate in place}
                    for place in places
                ),
            ],
        },
    }


def _written(body: dict[str, Any], prompt: list[int], model: WholeModel) -> dict[str, Any]:
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else [word for word in stop if word]
    tokens = model.write(prompt, body["max_tokens"], stop, ignore_eos=bool(body.get("ignore_eos")))
    text = model.text_of(tokens, skip_special=True)
    ends = [place for word in stop if (place := text.find(word)) >= 0]
    text = text[: min(ends)] if ends else text
    reason = "length" if len(tokens) == body["max_tokens"] and not ends else "stop"
    return {"text": text, "finish_reason": reason, "token_ids": tokens}


BATCH_HEADER = "X-Batch-Size"


def end_completion_server(error: Exception, jobs: Iterable[Any]) -> NoReturn:
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
        self.answer(
            HTTPStatus.OK if known else HTTPStatus.NOT_FOUND,
            {"status": "ready" if known else "unknown path"},
        )

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path not in ("/v1/completions", *self.more_paths):
            return self.refuse(HTTPStatus.NOT_FOUND, f"unknown path {self.path}")
        if not hmac.compare_digest(
            self.headers.get("Authorization", ""), f"Bearer {self.server.key}"
        ):
            return self.refuse(HTTPStatus.UNAUTHORIZED, "wrong or missing key")
        if self.path != "/v1/completions":
            return self.answer_more(content)
        try:
            body = json.loads(content)
            whole = isinstance(body, dict) and not body.get("stream")
            fault = (_whole_fault if whole else _stream_fault)(
                body, self.server.model.context_tokens
            )
            batch_size = int(self.headers.get(BATCH_HEADER) or 1)
        except ValueError as error:
            return self.refuse(HTTPStatus.BAD_REQUEST, str(error))
        if fault:
            return self.refuse(HTTPStatus.BAD_REQUEST, fault)
        job: Any = (
            WholeJob(body)
            if whole
            else Job(body, batch_size, self.connection, self.server.model.tokenizer)
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

    def __init__(
        self, port: int, key: str, model: ServedModel, handler: type[Handler] = Handler
    ) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.key = key
        self.model = model
        self.jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class names them
        print(f"a connection broke: {sys.exc_info()[1]}", flush=True)
