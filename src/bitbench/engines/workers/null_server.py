"""The null engine: an HTTP server that streams tokens at times that are known beforehand.

`python -m bitbench.engines.workers.null_server PORT BEHAVIOUR`: BEHAVIOUR is JSON with the fields
of `NullBehaviour`. Requests must have the key in BITBENCH_NULL_KEY, unless it is empty. The loop
that serves is native (`native/src/server.cpp`) and decides how tokens are put on the wire.

The first token of a request leaves at t0 + ttft, and token i at t0 + ttft + i × tpot. t0 is the
time at which the whole request had been received. These times are absolute: a late token does not
delay the next one. /truth tells when tokens were really sent.
"""

import gc
import json
import math
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from bitbench._native import NullServer


MODEL = "null"
# The counters of simulated drafts at /metrics, by the fields of `EngineMetrics`.
DRAFT_COUNTERS = {
    name: f"null:spec_decode_num_{name}_total"
    for name in ("drafts", "draft_tokens", "accepted_tokens")
}

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    503: "Service Unavailable",
}

Ending = Literal["keep", "hang", "close"]


@dataclass(frozen=True)
class NullBehaviour:
    """The fields of `engines.null.NullArguments`, which explains them, and a seed."""

    ttft: float
    tpot: float
    vary: float
    vary_instance: float
    slow_requests: tuple[int, ...]
    slow_factor: float
    per_stream: float
    capacity: int | None
    stall_at: float | None
    stall_for: float
    fail: str | None
    memory_mb: int
    children: int
    seed: int
    draft_tokens: int = 0
    draft_accepted: float = 1.0
    draft_step: float = 1.5


class AnswerPlan:
    """The times of each request, which depend only on the behaviour and the request's number."""

    def __init__(self, behaviour: NullBehaviour) -> None:
        self._behaviour = behaviour
        self._instance_factor = self._factor("instance", behaviour.vary_instance)

    def request(self, number: int) -> tuple[float, float]:
        """Return ttft and tpot of the instance's n-th request (from 1) in a single stream."""
        factor = self._instance_factor * self._factor(number, self._behaviour.vary)
        if number in self._behaviour.slow_requests:
            factor *= self._behaviour.slow_factor
        return (
            factor * self._behaviour.ttft,
            factor * self._behaviour.tpot * self._compute_draft_factor(),
        )

    def _compute_draft_factor(self) -> float:
        """Return how much longer a token takes with drafts: below 1 if they pay off."""
        if not self._behaviour.draft_tokens:
            return 1.0
        return self._behaviour.draft_step / (1 + self._behaviour.draft_accepted)

    def _factor(self, what: object, relative_sd: float) -> float:
        """Return a log-normal factor with mean 1 and this standard deviation."""
        if relative_sd == 0:
            return 1.0  # the same value as a draw, without seeding a generator for each request
        variance = math.log1p(relative_sd**2)
        generator = random.Random(f"{self._behaviour.seed}/{what}")
        return generator.lognormvariate(-variance / 2, math.sqrt(variance))


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """One answer: `piece` several times, then `last`, each at its own due time.

    `head` leaves with the first. It is due `ttft_s` after the request was received, and the others
    follow `tpot_s` apart.
    """

    ttft_s: float
    tpot_s: float
    head: bytes
    piece: bytes
    repeats: int
    last: bytes
    ending: Ending


class Answers:
    """Turns requests into replies (bytes) and streams."""

    def __init__(
        self,
        key: str,
        behaviour: NullBehaviour,
        take_truth: Callable[[], Mapping[str, float | None]],
    ) -> None:
        self._authorization = f"Bearer {key}" if key else None  # without a key it needs none
        self._behaviour = behaviour
        self._schedule = AnswerPlan(behaviour)
        self._take_truth = take_truth
        self._requests = 0
        self._drafts = 0.0

    def answer_request(
        self, method: str, path: str, authorization: str, body: bytes
    ) -> bytes | StreamPlan:
        match method, path:
            case "GET", "/health":
                status = 503 if self._behaviour.fail == "never_ready" else 200
                return _format_reply(status, {})
            case "GET", "/truth":
                message: dict[str, Any] = dict(self._take_truth())
            case "GET", "/metrics":
                return self._format_counters()
            case ("GET", "/v1/models") | ("POST", "/v1/completions" | "/v1/chat/completions"):
                if self._authorization not in (None, authorization):
                    return _format_reply(401, _make_error("the key is missing or wrong"))
                if method == "POST":
                    return self._stream(body, chat=path == "/v1/chat/completions")
                message = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
            case _:
                return _format_reply(404, _make_error(f"there is no {method} {path}"))
        return _format_reply(200, message)

    def _stream(self, body: bytes, *, chat: bool) -> bytes | StreamPlan:
        try:
            prompt_tokens, requested = _parse_request(json.loads(body), chat=chat)
        except (ValueError, KeyError, TypeError) as problem:
            message = f"not a streaming completion of token ids, text or messages: {problem!r}"
            return _format_reply(400, _make_error(message))
        self._requests += 1
        fail = self._behaviour.fail
        tokens = requested // 2 if fail in ("short", "hang", "disconnect") else requested
        events = _Events(self._requests, chat=chat)
        ttft_s, tpot_s = self._schedule.request(self._requests)
        if self._behaviour.draft_tokens:
            steps = max(tokens - 1, 0)  # the first token needs no draft
            self._drafts += steps / (1 + self._behaviour.draft_accepted)
        if fail in ("hang", "disconnect"):
            ending: Ending = "hang" if fail == "hang" else "close"
            return StreamPlan(ttft_s, tpot_s, STREAM_HEAD, events.token(None), tokens, b"", ending)
        # The last token leaves together with usage and the end.
        last = b""
        if tokens:
            finish_reason = "stop" if fail == "short" else "length"
            last = events.token(finish_reason)
        last += (
            events.usage(prompt_tokens, tokens) + _format_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        )
        return StreamPlan(
            ttft_s, tpot_s, STREAM_HEAD, events.token(None), max(tokens - 1, 0), last, "keep"
        )

    def _format_counters(self) -> bytes:
        per_draft = (1.0, self._behaviour.draft_tokens, self._behaviour.draft_accepted)
        text = ""
        for name, count in zip(DRAFT_COUNTERS.values(), per_draft, strict=True):
            text += f"# TYPE {name} counter\n{name} {self._drafts * count}\n"
        return _format_response(200, "text/plain", text.encode())


class _Events:
    """The server-sent events of one answer, each in its own chunk."""

    def __init__(self, number: int, *, chat: bool) -> None:
        self._content: dict[str, Any] = {"text": " null"}
        kind = "text_completion"
        name = "cmpl"
        if chat:
            self._content = {"delta": {"role": "assistant", "content": " null"}}
            kind = "chat.completion.chunk"
            name = "chatcmpl"
        self._head = {"id": f"{name}-{number}", "object": kind, "created": 0, "model": MODEL}

    def token(self, finish_reason: str | None) -> bytes:
        choice = {"index": 0, **self._content, "logprobs": None, "finish_reason": finish_reason}
        return self._event([choice], None)

    def usage(self, prompt_tokens: int, tokens: int) -> bytes:
        counts = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": prompt_tokens + tokens,
        }
        return self._event([], counts)

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None) -> bytes:
        message = {**self._head, "choices": choices, "usage": usage}
        return _format_chunk(f"data: {json.dumps(message, separators=(',', ':'))}\n\n".encode())


def _parse_request(request: dict[str, Any], *, chat: bool) -> tuple[int, int]:
    """Return the number of prompt tokens (of words in a text) and of requested tokens.

    Raise ValueError, KeyError or TypeError.
    """
    streams = request["stream"]  # first, since it fails if the body is not an object
    requested = int(request.get("max_completion_tokens") or request["max_tokens"])
    if not streams or requested < 1:
        raise ValueError("this server only streams, and at least one token")
    if chat:
        return sum(_count_tokens(message["content"]) for message in request["messages"]), requested
    return _count_tokens(request["prompt"]), requested


def _count_tokens(content: str | list[Any]) -> int:
    return len(content.split()) if isinstance(content, str) else len(content)


def _make_error(sentence: str) -> dict[str, Any]:
    return {"error": {"message": sentence, "type": "invalid_request_error"}}


def _format_reply(status: int, message: dict[str, Any]) -> bytes:
    return _format_response(status, "application/json", json.dumps(message).encode())


def _format_response(status: int, kind: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _format_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


KEY_VARIABLE = "BITBENCH_NULL_KEY"

# Memory grows by 400 MB/s: quick enough for a test, slow enough for a watcher that polls ten times
# a second.
MEMORY_STEP_BYTES = 8_000_000
MEMORY_PAUSE_S = 0.02


def _make_server(port: int, key: str, behaviour: NullBehaviour) -> "NullServer":
    from bitbench._native import NullServer

    def take_truth() -> dict[str, float | None]:
        return server.take_truth()

    answers = Answers(key, behaviour, take_truth)
    server = NullServer(
        port,
        answers.answer_request,
        per_stream=behaviour.per_stream,
        capacity=behaviour.capacity,
        stall_at_s=behaviour.stall_at,
        stall_for_s=behaviour.stall_for,
    )
    return server


def _fill_memory(megabytes: int) -> list[bytes]:
    """Allocate memory like an engine that loads a model of this size. Nothing is served yet."""
    held = []
    for _ in range(0, megabytes * 1_000_000, MEMORY_STEP_BYTES):
        held.append(os.urandom(1) * MEMORY_STEP_BYTES)  # written to, so that it is really used
        time.sleep(MEMORY_PAUSE_S)
    return held


def _start_children(count: int) -> None:
    """Start processes like a real engine's workers: outside our session, with a dead parent."""
    for _ in range(count):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    time.sleep(3600)
            os._exit(0)
        os.wait()


def main(port: str, behaviour_json: str) -> None:
    behaviour = NullBehaviour(**json.loads(behaviour_json))
    print(f"null engine: {behaviour}", flush=True)
    if behaviour.fail == "exit":
        sys.stderr.write("NullEngineError: it was told to exit at its start (fail: exit)\n")
        sys.exit(3)
    _start_children(behaviour.children)
    held = _fill_memory(behaviour.memory_mb) if behaviour.fail == "memory" else []
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # a connection each
    server = _make_server(int(port), os.environ[KEY_VARIABLE], behaviour)
    print(f"null engine: listening on port {port}, {len(held)} blocks of memory held", flush=True)
    gc.freeze()
    gc.disable()  # a collection would make tokens late, and requests leave no cycles
    server.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
