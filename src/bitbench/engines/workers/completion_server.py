"""The HTTP part of a small OpenAI-style server: it checks requests and queues them.

A part of the other servers in this folder, loaded by path in their environments. It imports
nothing of ours. The computing thread takes the requests from the queue.

- **With `stream`:** that thread writes one event per token to the socket at once.
- **Without `stream`:** one whole answer has the log-probabilities of a prompt, or a greedy text.

Whole answers use the fields of vLLM's server. `prompt_logprobs: K` returns each prompt token and
the K likeliest tokens at its position. lm-eval sends the older `echo` with `logprobs: K`. A text
takes `stop`, `ignore_eos` and `return_token_ids`.
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
from typing import Any, NoReturn, Protocol, TypeGuard

from tokenizers.decoders import DecodeStream  # type: ignore[import-not-found]

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class Job:
    """A streaming request and its client's socket. Only the computing thread writes to it."""

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
        """Send a token at once. Its text may be empty while a character is incomplete."""
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
            usage = {
                "prompt_tokens": len(self.prompt),
                "completion_tokens": self.count,
                "total_tokens": len(self.prompt) + self.count,
            }
            self._send_event({"choices": [], "usage": usage})
        self._send(_format_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        self.done.set()

    def _send_event(self, event: dict[str, Any]) -> None:
        text = json.dumps(
            {"object": "text_completion", "model": self._model, **event}, separators=(",", ":")
        )
        self._send(_format_chunk(f"data: {text}\n\n".encode()))

    def _send(self, data: bytes) -> None:
        """Send data, and note a lost client. The other requests of its batch continue."""
        if self.is_broken:
            return
        try:
            self._connection.sendall(self._pending + data)
            self._pending = b""
        except OSError:
            self.is_broken = True


def _format_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _find_stream_fault(body: Any, context_tokens: int | None) -> str | None:
    """Return the fault of a streaming request, or None."""
    if not isinstance(body, dict):
        return "the body must be a JSON object"
    prompt = body.get("prompt")
    count = body.get("max_tokens")
    if not _is_token_list(prompt):
        return "prompt must be a list of token ids"
    if not (type(count) is int and count > 0):
        return "max_tokens must be a positive number"
    if body.get("ignore_eos") is not True:
        return "a stream of this server always has max_tokens tokens: set ignore_eos"
    return _find_context_fault(prompt, count, context_tokens)


def _is_token_list(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _find_context_fault(prompt: list[int], count: int, context_tokens: int | None) -> str | None:
    """Return a message if a prompt and `count` new tokens exceed the model's context."""
    if context_tokens is None or len(prompt) + count <= context_tokens:
        return None
    return (
        f"{len(prompt)} tokens in and {count} out are more than "
        f"the model's context of {context_tokens}"
    )


# Log-probabilities by token at one position: the K likeliest first, then the actual token.
Logprobs = dict[int, float]


class WholeModel(Protocol):
    """A model that computes whole answers."""

    def score(self, prompt: list[int], top: int) -> list[Logprobs]:
        """Return log-probabilities for every position of the prompt after the first, and one more.

        The last ones are for the position after the prompt. The actual token is the likeliest
        there.
        """

    def write(
        self, prompt: list[int], max_tokens: int, stop: list[str], *, ignore_eos: bool
    ) -> list[int]:
        """Return greedy tokens. They may end after a text of `stop`."""

    def text_of(self, tokens: list[int], *, skip_special: bool) -> str: ...


class WholeJob:
    """A request without `stream`. The computing thread sets `answer`."""

    batch_size = 1
    count = 0
    is_broken = False

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.prompts = _list_prompts(body)
        self.done = threading.Event()
        self.error: str | None = None
        self.answer: dict[str, Any] | None = None


def _list_prompts(body: dict[str, Any]) -> list[list[int]]:
    """Return the prompts of a request, which has one list of token ids or several."""
    prompt = body["prompt"]
    return prompt if isinstance(prompt[0], list) else [prompt]


def _find_whole_fault(body: Any, context_tokens: int | None) -> str | None:
    """Return the fault of a request without `stream`, or None."""
    prompt = body.get("prompt")
    count = body.get("max_tokens")
    if not (isinstance(prompt, list) and prompt):
        return "prompt must be a list of token ids"
    for tokens in _list_prompts(body):
        if not _is_token_list(tokens):
            return "prompt must be a list of token ids, or a list of such lists"
        if type(count) is int:
            fault = _find_context_fault(tokens, count, context_tokens)
            if fault:
                return fault
    if not (type(count) is int and count > 0):
        return "max_tokens must be a positive number"
    return _find_unsupported_option(body)


def _find_unsupported_option(body: dict[str, Any]) -> str | None:
    """Return a message if this server does not support an option of the request."""
    if body.get("temperature", 0) != 0:
        return "this server decodes greedily: set temperature to 0"
    if _find_requested_top(body) is not None and body["max_tokens"] != 1:
        return "log-probabilities of a prompt are given with max_tokens 1 only"
    return None


def _find_requested_top(body: dict[str, Any]) -> int | None:
    """Return how many likely tokens are requested at each position of the prompt.

    None means that no log-probabilities are requested, not even of the prompt's tokens.
    """
    if body.get("prompt_logprobs") is not None:
        return int(body["prompt_logprobs"])
    if body.get("echo") and body.get("logprobs") is not None:
        return int(body["logprobs"])
    return None


def answer_whole_completion(job: WholeJob, model: WholeModel) -> None:
    """Compute the choices of a request, and set its answer.

    They are computed one after the other. A batch would be padded, and would round differently.
    """
    top = _find_requested_top(job.body)
    choices = []
    for index, prompt in enumerate(job.prompts):
        if top is not None:
            choice = _build_scored_choice(job.body, prompt, model.score(prompt, top), model)
        else:
            choice = _generate_choice(job.body, prompt, model)
        choices.append({"index": index, **choice})
    completion_tokens = sum(len(choice["token_ids"]) for choice in choices)
    usage = {
        "prompt_tokens": sum(map(len, job.prompts)),
        "completion_tokens": completion_tokens,
    }
    job.answer = {
        "object": "text_completion",
        "model": job.body.get("model", ""),
        "choices": choices,
        "usage": usage,
    }


def _build_scored_choice(
    body: dict[str, Any], prompt: list[int], distributions: list[Logprobs], model: WholeModel
) -> dict[str, Any]:
    """Return the log-probabilities of a prompt, in the form that the request names."""
    likeliest = max(distributions[-1], key=distributions[-1].__getitem__)
    if body.get("prompt_logprobs") is not None:
        prompt_logprobs: list[dict[str, Any] | None] = [None]
        for logprobs in distributions[:-1]:
            prompt_logprobs.append(
                {str(token): {"logprob": value} for token, value in logprobs.items()}
            )
        return {
            "text": "",
            "finish_reason": "length",
            "token_ids": [likeliest],
            "prompt_logprobs": prompt_logprobs,
        }
    tokens = [*prompt, likeliest]
    token_logprobs: list[float | None] = [None]
    top_logprobs: list[dict[str, float] | None] = [None]
    for token, logprobs in zip(tokens[1:], distributions, strict=True):
        token_logprobs.append(logprobs[token])
        top_logprobs.append({_format_token(other): value for other, value in logprobs.items()})
    return {
        "text": model.text_of(tokens, skip_special=False),
        "finish_reason": "length",
        "token_ids": [likeliest],
        "logprobs": {
            "tokens": [_format_token(token) for token in tokens],
            "token_logprobs": token_logprobs,
            "top_logprobs": top_logprobs,
        },
    }


def _format_token(token: int) -> str:
    return f"token_id:{token}"


def _generate_choice(body: dict[str, Any], prompt: list[int], model: WholeModel) -> dict[str, Any]:
    """Return a greedy text, which ends before the first text of `stop`."""
    stop = body.get("stop") or []
    if isinstance(stop, str):
        stop = [stop]
    stop = [word for word in stop if word]
    tokens = model.write(prompt, body["max_tokens"], stop, ignore_eos=bool(body.get("ignore_eos")))
    text = model.text_of(tokens, skip_special=True)
    reason = "stop"
    ends = [text.find(word) for word in stop if word in text]
    if ends:
        text = text[: min(ends)]
    elif len(tokens) == body["max_tokens"]:
        reason = "length"
    return {"text": text, "finish_reason": reason, "token_ids": tokens}


BATCH_HEADER = "X-Batch-Size"


def end_completion_server(error: Exception, jobs: Iterable[Any]) -> NoReturn:
    """End the process after an error of the computing thread.

    The error is written to the log and to the answers of all given jobs.
    """
    traceback.print_exc()
    for job in jobs:
        job.error = f"{type(error).__name__}: {error}"
        job.done.set()
    time.sleep(0.2)  # time to send the answers
    os._exit(1)


class ServedModel(Protocol):
    """A model with the fields that the HTTP part reads."""

    tokenizer: Any  # from the package `tokenizers`
    context_tokens: int | None


class Handler(BaseHTTPRequestHandler):
    """A handler for GET /health and POST /v1/completions.

    A subclass lists further paths for POST in `more_paths` and implements `answer_more`.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "CompletionServer"
    more_paths: tuple[str, ...] = ()

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(HTTPStatus.OK, {"status": "ready"})
        else:
            self.answer(HTTPStatus.NOT_FOUND, {"status": "unknown path"})

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
            is_whole = isinstance(body, dict) and not body.get("stream")
            find_fault = _find_whole_fault if is_whole else _find_stream_fault
            fault = find_fault(body, self.server.model.context_tokens)
            batch_size = int(self.headers.get(BATCH_HEADER) or 1)
        except ValueError as error:
            return self.refuse(HTTPStatus.BAD_REQUEST, str(error))
        if fault:
            return self.refuse(HTTPStatus.BAD_REQUEST, fault)
        job: Any
        if is_whole:
            job = WholeJob(body)
        else:
            job = Job(body, batch_size, self.connection, self.server.model.tokenizer)
        self.server.jobs.put(job)
        job.done.wait()
        self.close_connection = self.close_connection or job.is_broken or job.error is not None
        if job.error is not None and job.count == 0:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, job.error)
        elif is_whole:
            self.answer(HTTPStatus.OK, job.answer)
        return None

    def answer_more(self, content: bytes) -> None:
        """Answer a POST to one of `more_paths`."""

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
        """Write nothing: a line per request would be written while the next batch is computed."""


class CompletionServer(ThreadingHTTPServer):
    """A server with one thread per connection. The computing thread takes from `jobs`."""

    daemon_threads = True
    request_queue_size = 4096  # a batch of thousands connects at once

    def __init__(
        self, port: int, key: str, model: ServedModel, handler: type[Handler] = Handler
    ) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.key = key
        self.model = model
        self.jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()

    # The base class sets the names of the parameters.
    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        print(f"a connection broke: {sys.exc_info()[1]}", flush=True)
