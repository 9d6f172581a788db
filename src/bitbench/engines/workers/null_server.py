"""The null engine: a real HTTP server that streams tokens at moments that are known beforehand, run by `python -m`.

How it is put on the wire is the loop's business.

`python -m bitbench.engines.workers.null_server PORT BEHAVIOUR`, where BEHAVIOUR is JSON with fields of
`NullBehaviour`, and the key that requests must show is in BITBENCH_NULL_KEY (empty: none is asked for). The loop that
serves is native (`native/src/server.cpp`).

The first token of a request leaves at t0 + ttft and token i at t0 + ttft + i × tpot, where t0 is the moment at which
the request had been received completely. These are absolute times: a token that was late does not delay the next.
What was really sent when is told at /truth.
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
# What /metrics counts of simulated drafts, by the fields of `EngineMetrics`.
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
    """The fields of `engines.null.NullArguments`, where they are explained, and a seed."""

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
    """The times of each request, from the behaviour and the request's number alone."""

    def __init__(self, behaviour: NullBehaviour) -> None:
        self._behaviour = behaviour
        self._instance_factor = self._factor("instance", behaviour.vary_instance)

    def request(self, number: int) -> tuple[float, float]:
        """ttft and tpot of the instance's request of this number (from 1), for a single stream."""
        factor = self._instance_factor * self._factor(number, self._behaviour.vary)
        if number in self._behaviour.slow_requests:
            factor *= self._behaviour.slow_factor
        return factor * self._behaviour.ttft, factor * self._behaviour.tpot * self._drafted()

    def _drafted(self) -> float:
        """How much longer a token takes with drafts: below 1 where they are worth their cost."""
        if not self._behaviour.draft_tokens:
            return 1.0
        return self._behaviour.draft_step / (1 + self._behaviour.draft_accepted)

    def _factor(self, what: object, relative_sd: float) -> float:
        """Log-normal with mean 1 and this standard deviation."""
        if relative_sd == 0:
            return 1.0  # what the draw would give, without seeding a generator for each request
        variance = math.log1p(relative_sd**2)
        return random.Random(f"{self._behaviour.seed}/{what}").lognormvariate(
            -variance / 2, math.sqrt(variance)
        )


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """One answer: `piece` so many times, then `last`; each at a due time of its own, `head` with the first of them.

    The first is due `ttft_s` after the request was received, the others `tpot_s` apart.
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
        self._authorization = f"Bearer {key}" if key else None  # without a key it asks for none
        self._behaviour = behaviour
        self._schedule = AnswerPlan(behaviour)
        self._take_truth = take_truth
        self._requests = 0
        self._drafts = 0.0

    def respond(
        self, method: str, path: str, authorization: str, body: bytes
    ) -> bytes | StreamPlan:
        match method, path:
            case "GET", "/health":
                return _reply(503 if self._behaviour.fail == "never_ready" else 200, {})
            case "GET", "/truth" | "/metrics":
                return (
                    self._counters()
                    if path == "/metrics"
                    else _reply(200, dict(self._take_truth()))
                )
            case ("GET", "/v1/models") | ("POST", "/v1/completions" | "/v1/chat/completions"):
                if self._authorization is not None and authorization != self._authorization:
                    return _reply(401, _error("the key is missing or wrong"))
                if method == "GET":
                    return _reply(
                        200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
                    )
                return self._stream(body, chat=path == "/v1/chat/completions")
            case _:
                return _reply(404, _error(f"there is no {method} {path}"))

    def _stream(self, body: bytes, *, chat: bool) -> bytes | StreamPlan:
        try:
            prompt_tokens, asked = _read(json.loads(body), chat=chat)
        except (ValueError, KeyError, TypeError) as problem:
            return _reply(
                400,
                _error(f"not a streaming completion of token ids, text or messages: {problem!r}"),
            )
        self._requests += 1
        fail = self._behaviour.fail
        tokens = asked // 2 if fail in ("short", "hang", "disconnect") else asked
        events = _Events(f"{'chatcmpl' if chat else 'cmpl'}-{self._requests}", chat=chat)
        ttft_s, tpot_s = self._schedule.request(self._requests)
        if self._behaviour.draft_tokens:
            self._drafts += max(tokens - 1, 0) / (
                1 + self._behaviour.draft_accepted
            )  # the first token needs none
        if fail in ("hang", "disconnect"):
            ending: Ending = "hang" if fail == "hang" else "close"
            return StreamPlan(ttft_s, tpot_s, STREAM_HEAD, events.token(None), tokens, b"", ending)
        # The last token leaves with usage and the end.
        last = events.token("stop" if fail == "short" else "length") if tokens else b""
        last += events.usage(prompt_tokens, tokens) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        return StreamPlan(
            ttft_s, tpot_s, STREAM_HEAD, events.token(None), max(tokens - 1, 0), last, "keep"
        )

    def _counters(self) -> bytes:
        each = (1.0, self._behaviour.draft_tokens, self._behaviour.draft_accepted)
        lines = [
            f"# TYPE {name} counter\n{name} {self._drafts * per_draft}\n"
            for name, per_draft in zip(DRAFT_COUNTERS.values(), each, strict=True)
        ]
        return _answer(200, "text/plain", "".join(lines).encode())


class _Events:
    """The server-sent events of one answer, each in a chunk of its own."""

    def __init__(self, name: str, *, chat: bool) -> None:
        self._chat = chat
        self._head = {
            "id": name,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": 0,
            "model": MODEL,
        }

    def token(self, finish_reason: str | None) -> bytes:
        text = (
            {"delta": {"role": "assistant", "content": " null"}}
            if self._chat
            else {"text": " null"}
        )
        return self._event(
            [{"index": 0, **text, "logprobs": None, "finish_reason": finish_reason}], None
        )

    def usage(self, prompt_tokens: int, tokens: int) -> bytes:
        return self._event(
            [],
            {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": tokens,
                "total_tokens": prompt_tokens + tokens,
            },
        )

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None) -> bytes:
        message = {**self._head, "choices": choices, "usage": usage}
        return _chunk(f"data: {json.dumps(message, separators=(',', ':'))}\n\n".encode())


def _read(request: dict[str, Any], *, chat: bool) -> tuple[int, int]:
    """Prompt tokens (of text: words) and the asked number of tokens; raises ValueError, KeyError or TypeError."""
    streams = request["stream"]  # first of all: where the body is no object this says so
    asked = int(request.get("max_completion_tokens") or request["max_tokens"])
    if not streams or asked < 1:
        raise ValueError("this server only streams, and at least one token")
    if chat:
        return sum(_count(message["content"]) for message in request["messages"]), asked
    return _count(request["prompt"]), asked


def _count(content: str | list[Any]) -> int:
    return len(content.split()) if isinstance(content, str) else len(content)


def _error(sentence: str) -> dict[str, Any]:
    return {"error": {"message": sentence, "type": "invalid_request_error"}}


def _reply(status: int, message: dict[str, Any]) -> bytes:
    return _answer(status, "application/json", json.dumps(message).encode())


def _answer(status: int, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


KEY_VARIABLE = "BITBENCH_NULL_KEY"

# Memory grows by 400 MB/s: quick enough for a test, slow enough for a watcher that looks ten times a second.
MEMORY_STEP_BYTES, MEMORY_PAUSE_S = 8_000_000, 0.02


def _make_server(port: int, key: str, behaviour: NullBehaviour) -> "NullServer":
    from bitbench._native import NullServer

    def take_truth() -> dict[str, float | None]:
        return server.take_truth()

    answers = Answers(key, behaviour, take_truth)
    server = NullServer(
        port,
        answers.respond,
        per_stream=behaviour.per_stream,
        capacity=behaviour.capacity,
        stall_at_s=behaviour.stall_at,
        stall_for_s=behaviour.stall_for,
    )
    return server


def _fill_memory(megabytes: int) -> list[bytes]:
    """Grow like an engine that loads a model of this size; serves nothing meanwhile."""
    held = []
    for _ in range(0, megabytes * 1_000_000, MEMORY_STEP_BYTES):
        held.append(os.urandom(1) * MEMORY_STEP_BYTES)  # written to, so that it is really there
        time.sleep(MEMORY_PAUSE_S)
    return held


def _start_children(count: int) -> None:
    """Like the workers of a real engine: each has left our session, and its parent has ended."""
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
