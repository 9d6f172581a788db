"""The null engine: a real HTTP server that streams tokens at moments that are known beforehand.

`python -m bitbench.engines.workers.null_server PORT BEHAVIOUR`, where BEHAVIOUR is JSON with the fields of
`Behaviour`, and the key that requests must show is in BITBENCH_NULL_KEY. Standard library alone.

The first token of a request leaves at t0 + ttft and token i at t0 + ttft + i × tpot, where t0 is the moment at which
the request had been received completely. These are absolute times: a token that was late does not delay the next.
"""

import contextlib
import heapq
import itertools
import json
import math
import os
import random
import select
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from bitbench.timerfd import Timer

MODEL = "null"
KEY_VARIABLE = "BITBENCH_NULL_KEY"

# A sleeping process is scheduled 20 to 80 µs after its timer fired; so it wakes this much early and polls until due.
WAKE_EARLY_S = 100e-6
READ_BYTES = 262_144
BACKLOG = 4_096
# Memory grows by 400 MB/s: quick enough for a test, slow enough for a watcher that looks ten times a second.
MEMORY_STEP_BYTES, MEMORY_PAUSE_S = 8_000_000, 0.02

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 503: "Service Unavailable"}


@dataclass(frozen=True)
class Behaviour:
    ttft: float
    tpot: float
    vary: float
    vary_instance: float
    slow_requests: tuple[int, ...]
    slow_factor: float
    per_stream: float
    fail: str | None
    memory_mb: int
    seed: int


class Schedule:
    """The times of each request, from the behaviour and the request's number alone."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._instance_factor = self._factor("instance", behaviour.vary_instance)

    def request(self, number: int) -> tuple[float, float]:
        """ttft and tpot of the instance's request of this number (from 1), for a single stream."""
        factor = self._instance_factor * self._factor(number, self._behaviour.vary)
        if number in self._behaviour.slow_requests:
            factor *= self._behaviour.slow_factor
        return factor * self._behaviour.ttft, factor * self._behaviour.tpot

    def crowding(self, streams: int) -> float:
        """How much slower a token is with so many streams in flight."""
        return 1 + self._behaviour.per_stream * (streams - 1)

    def _factor(self, what: object, relative_sd: float) -> float:
        """Log-normal with mean 1 and this standard deviation."""
        variance = math.log1p(relative_sd**2)
        return random.Random(f"{self._behaviour.seed}/{what}").lognormvariate(-variance / 2, math.sqrt(variance))


@dataclass
class Client:
    """A connection: what it has sent of the next request, and what it has not yet taken of the answer."""

    socket: socket.socket
    received: bytes = b""
    unsent: bytes = b""
    stream: "Stream | None" = None


@dataclass
class Stream:
    """One answer on its way."""

    client: Client
    pieces: list[bytes]  # what is still to be sent, last one first
    first_due: float
    tpot: float
    sent: int = 0
    head: bytes = field(default=STREAM_HEAD)


class Server:
    """One thread, one heap of due times, one wait for whatever comes first: a request or a due token."""

    def __init__(self, port: int, key: str, behaviour: Behaviour) -> None:
        self._key = key
        self._behaviour = behaviour
        self._schedule = Schedule(behaviour)
        self._clients: dict[int, Client] = {}
        self._unread: deque[tuple[Client, float]] = deque()  # have sent something, and when it was received
        self._due: list[tuple[float, int, Stream]] = []
        self._order = itertools.count()
        self._requests = 0
        self._streaming = 0
        self._lateness: list[float] = []
        self._timer = Timer()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
        self._listener.setblocking(False)
        self._poller = select.epoll()
        self._poller.register(self._listener.fileno(), select.EPOLLIN)
        self._poller.register(self._timer.fileno(), select.EPOLLIN)

    def serve(self) -> None:
        while True:
            events = self._poller.poll(self._time_to_wait())
            for descriptor, happened in events:
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor == self._timer.fileno():
                    self._timer.acknowledge()
                else:
                    self._attend(self._clients[descriptor], happened)
            now = monotonic()
            while self._due and self._due[0][0] <= now:
                self._send_due()
            if self._unread and not events:
                self._answer(*self._unread.popleft())

    def _time_to_wait(self) -> int:
        """Without end (the timer will wake us), or not at all when something is due within a moment."""
        if self._unread:
            return 0
        if not self._due:
            return -1
        wake = self._due[0][0] - WAKE_EARLY_S
        if wake <= monotonic():
            return 0
        self._timer.arm(wake)
        return -1

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                connected, _ = self._listener.accept()
                connected.setblocking(False)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._clients[connected.fileno()] = Client(connected)
                self._poller.register(connected.fileno(), select.EPOLLIN)

    def _attend(self, client: Client, happened: int) -> None:
        if happened & select.EPOLLOUT:
            self._flush(client)
        if happened & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            try:
                data = client.socket.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            received_at = monotonic()
            if not data:
                self._drop(client)
                return
            client.received += data
            # Parsed when nothing else is to be received: the requests of a batch come together, and parsing one
            # would move the t0 of the next.
            self._unread.append((client, received_at))

    def _drop(self, client: Client) -> None:
        if client.stream is not None:
            self._streaming -= 1
            client.stream = None
        if self._clients.pop(client.socket.fileno(), None) is not None:
            client.socket.close()  # which also takes it out of the poller

    def _answer(self, client: Client, received_at: float) -> None:
        """Answer the next request of this connection if it is there as a whole."""
        head, separator, rest = client.received.partition(b"\r\n\r\n")
        if client.stream is not None or not separator:
            return
        request_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        client.received = rest[length:]
        method, path = request_line.split(" ")[:2]
        if (method, path) == ("GET", "/health"):
            self._reply(client, 503 if self._behaviour.fail == "never_ready" else 200, {})
        elif (method, path) == ("GET", "/lateness"):
            self._reply(client, 200, self._take_lateness())
        elif (method, path) != ("POST", "/v1/completions"):
            self._reply(client, 404, _error(f"there is no {method} {path}"))
        elif headers.get("authorization") != f"Bearer {self._key}":
            self._reply(client, 401, _error("the key is missing or wrong"))
        else:
            self._start_stream(client, rest[:length], received_at)

    def _start_stream(self, client: Client, body: bytes, received_at: float) -> None:
        try:
            request = json.loads(body)
            prompt_tokens, asked = len(request["prompt"]), int(request["max_tokens"])
            if not request["stream"] or asked < 1:
                raise ValueError("this server only streams, and at least one token")
        except (ValueError, KeyError, TypeError) as problem:
            self._reply(client, 400, _error(f"not a streaming completion of a list of token ids: {problem!r}"))
            return
        self._requests += 1
        self._streaming += 1
        ttft, tpot = self._schedule.request(self._requests)
        pieces = self._pieces(f"cmpl-{self._requests}", prompt_tokens, asked)
        client.stream = Stream(client, pieces, received_at + ttft, tpot)
        heapq.heappush(self._due, (client.stream.first_due, next(self._order), client.stream))

    def _pieces(self, name: str, prompt_tokens: int, asked: int) -> list[bytes]:
        """What is sent at each due time, last one first. The last token leaves with usage and the end."""
        fail = self._behaviour.fail
        tokens = asked // 2 if fail in ("short", "hang", "disconnect") else asked
        end = _event(name, [], {"prompt_tokens": prompt_tokens, "completion_tokens": tokens,
                                "total_tokens": prompt_tokens + tokens})  # fmt: skip
        end += _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        if fail in ("hang", "disconnect"):
            return [b""] + tokens * [_event(name, [_choice(None)], None)]
        if tokens == 0:
            return [end]
        finished = _event(name, [_choice("stop" if fail == "short" else "length")], None)
        return [finished + end] + (tokens - 1) * [_event(name, [_choice(None)], None)]

    def _send_due(self) -> None:
        """Send the token that is due first, and put the stream's next one in its place."""
        due, _, stream = self._due[0]
        client = stream.client
        if client.stream is not stream:  # its reader has gone
            heapq.heappop(self._due)
            return
        if stream.sent == 0:
            # A server's step time follows from how many it serves; here it is fixed when decoding begins.
            stream.tpot *= self._schedule.crowding(self._streaming)
        piece = stream.head + stream.pieces.pop()
        stream.head = b""
        stream.sent += 1
        self._lateness.append(monotonic() - due)
        if stream.pieces:
            following = stream.first_due + stream.sent * stream.tpot
            heapq.heapreplace(self._due, (following, next(self._order), stream))
            self._send(client, piece)
            return
        heapq.heappop(self._due)
        if self._behaviour.fail == "disconnect":
            self._drop(client)
        elif self._behaviour.fail != "hang":
            client.stream = None
            self._streaming -= 1
            self._send(client, piece)
            self._answer(client, monotonic())  # a request that came too early has waited until now

    def _send(self, client: Client, data: bytes) -> None:
        if client.unsent:
            client.unsent += data
            return
        try:
            sent = client.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(client)
            return
        if sent < len(data):
            client.unsent = data[sent:]
            self._poller.modify(client.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, client: Client) -> None:
        data, client.unsent = client.unsent, b""
        self._poller.modify(client.socket.fileno(), select.EPOLLIN)
        self._send(client, data)

    def _reply(self, client: Client, status: int, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        self._send(client, head.encode() + b"\r\n\r\n" + body)

    def _take_lateness(self) -> dict[str, Any]:
        """How late tokens left since this was asked last: the server's share of any difference to the schedule."""
        ordered = sorted(self._lateness)
        self._lateness.clear()
        if not ordered:
            return {"tokens": 0}
        middle, high = ordered[len(ordered) // 2], ordered[int(0.99 * len(ordered))]
        return {"tokens": len(ordered), "p50_s": middle, "p99_s": high, "worst_s": ordered[-1]}


def _error(sentence: str) -> dict[str, Any]:
    return {"error": {"message": sentence, "type": "invalid_request_error"}}


def _choice(finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": " null", "logprobs": None, "finish_reason": finish_reason}


def _event(name: str, choices: list[dict[str, Any]], usage: dict[str, int] | None) -> bytes:
    message = {"id": name, "object": "text_completion", "model": MODEL, "choices": choices, "usage": usage}
    return _chunk(f"data: {json.dumps(message, separators=(',', ':'))}\n\n".encode())


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def fill_memory(megabytes: int) -> list[bytes]:
    """Grow like an engine that loads a model of this size; serves nothing meanwhile."""
    held = []
    for _ in range(0, megabytes * 1_000_000, MEMORY_STEP_BYTES):
        held.append(os.urandom(1) * MEMORY_STEP_BYTES)  # written to, so that it is really there
        time.sleep(MEMORY_PAUSE_S)
    return held


def main(port: str, behaviour_json: str) -> None:
    behaviour = Behaviour(**json.loads(behaviour_json))
    print(f"null engine: {behaviour}", flush=True)
    if behaviour.fail == "exit":
        sys.stderr.write("NullEngineError: it was told to exit at its start (fail: exit)\n")
        sys.exit(3)
    held = fill_memory(behaviour.memory_mb) if behaviour.fail == "memory" else []
    server = Server(int(port), os.environ[KEY_VARIABLE], behaviour)
    print(f"null engine: listening on port {port}, {len(held)} blocks of memory held", flush=True)
    server.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
