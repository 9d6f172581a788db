"""The null engine's serving loop in Python: the reference for the native one, and what runs where that is missing.

The same as `bitbench._native.NullServer` but for speed and for t0, which is when this process had read the request
completely, not when the kernel had received it. Standard library alone.
"""

import contextlib
import heapq
import itertools
import select
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from bitbench.engines.workers.null_answers import StreamPlan
from bitbench.ground.timerfd import Timer

# A sleeping process is scheduled 20 to 80 µs after its timer fired; so it wakes this much early and polls until due.
WAKE_EARLY_S = 100e-6
READ_BYTES = 262_144
BACKLOG = 4_096
NEVER = float("inf")


@dataclass(eq=False)
class Client:
    """A connection: what it has sent of the next request, and what it has not yet taken of the answer."""

    socket: socket.socket
    received: bytes = b""
    unsent: bytes = b""
    stream: "Stream | None" = None


@dataclass(eq=False)
class Stream:
    """One answer on its way, or waiting in line."""

    client: Client
    plan: StreamPlan
    arrived: float
    tpot: float
    first_due: float = 0.0
    first_sent: float = 0.0
    sent: int = 0
    served: bool = False


class NullServer:
    """One thread, one heap of due times, one wait for whatever comes first: a request or a due token."""

    def __init__(
        self,
        port: int,
        respond: Callable[[str, str, str, bytes], bytes | StreamPlan],
        *,
        per_stream: float,
        capacity: int | None,
        stall_at_s: float | None,
        stall_for_s: float,
    ) -> None:
        self._respond = respond
        self._per_stream = per_stream
        self._capacity = NEVER if capacity is None else capacity
        self._stall_at, self._stall_for = stall_at_s, stall_for_s
        self._stall_from = self._stall_until = NEVER
        self._clients: dict[int, Client] = {}
        self._unread: deque[tuple[Client, float]] = deque()  # have sent something, and when it was received
        self._line: deque[Stream] = deque()
        self._due: list[tuple[float, int, Stream]] = []
        self._order = itertools.count()
        self._serving = 0
        self._truth = Truth()
        self._timer = Timer()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
        self._listener.setblocking(False)
        self._poller = select.epoll()
        self._poller.register(self._listener.fileno(), select.EPOLLIN)
        self._poller.register(self._timer.fileno(), select.EPOLLIN)

    def take_truth(self) -> dict[str, float | None]:
        """What was really sent since this was asked last, as against the schedule."""
        truth, self._truth = self._truth, Truth()
        return truth.summary()

    def serve(self) -> None:
        while True:
            events = self._poller.poll(self._time_to_wait())
            for descriptor, happened in events:
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor == self._timer.fileno():
                    self._timer.acknowledge()
                elif descriptor in self._clients:
                    self._attend(self._clients[descriptor], happened)
            now = monotonic()
            while self._due and self._held(self._due[0][0]) <= now and not self._stall_from <= now < self._stall_until:
                self._send_due()
            if self._unread and not events:
                self._answer(*self._unread.popleft())

    def _time_to_wait(self) -> int:
        """Without end (the timer will wake us), or not at all when something is due within a moment."""
        if self._unread:
            return 0
        if not self._due:
            return -1
        now = monotonic()
        stalled = self._stall_from <= now < self._stall_until
        wake = (self._stall_until if stalled else self._held(self._due[0][0])) - WAKE_EARLY_S
        if wake <= now:
            return 0
        self._timer.arm(wake)
        return -1

    def _held(self, due: float) -> float:
        """When something that is due at this moment really leaves."""
        return self._stall_until if self._stall_from <= due < self._stall_until else due

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
        stream, client.stream = client.stream, None
        if self._clients.pop(client.socket.fileno(), None) is not None:
            client.socket.close()  # which also takes it out of the poller
        if stream is not None and stream.served:
            self._next_in_line(monotonic())

    def _answer(self, client: Client, received_at: float) -> None:
        """Answer the next request of this connection if it is there as a whole."""
        head, separator, rest = client.received.partition(b"\r\n\r\n")
        if client.stream is not None or not separator or client.socket.fileno() < 0:
            return
        request_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        client.received = rest[length:]
        method, path = request_line.split(" ")[:2]
        answer = self._respond(method, path, headers.get("authorization", ""), rest[:length])
        if isinstance(answer, bytes):
            self._send(client, answer)
        else:
            self._begin(client, answer, received_at)

    def _begin(self, client: Client, plan: StreamPlan, received_at: float) -> None:
        if self._stall_at is not None and self._stall_from == NEVER:
            self._stall_from = received_at + self._stall_at
            self._stall_until = self._stall_from + self._stall_for
        client.stream = Stream(client, plan, received_at, plan.tpot_s)
        if self._serving >= self._capacity:
            self._line.append(client.stream)
        else:
            self._serve_stream(client.stream, received_at)

    def _serve_stream(self, stream: Stream, start: float) -> None:
        stream.served = True
        stream.first_due = start + stream.plan.ttft_s
        self._serving += 1
        heapq.heappush(self._due, (stream.first_due, next(self._order), stream))

    def _next_in_line(self, freed_at: float) -> None:
        """Whoever waits longest takes the place, free from the scheduled end of the one before."""
        self._serving -= 1
        while self._line:
            stream = self._line.popleft()
            if stream.client.stream is stream:
                self._serve_stream(stream, max(stream.arrived, freed_at))
                return

    def _send_due(self) -> None:
        """Send the token that is due first, and put the stream's next one in its place."""
        due, _, stream = heapq.heappop(self._due)
        client, plan = stream.client, stream.plan
        if client.stream is not stream:  # its reader has gone
            return
        if stream.sent == 0:
            # A server's step time follows from how many it serves; here it is fixed when decoding begins.
            stream.tpot *= 1 + self._per_stream * (self._serving - 1)
        is_last = stream.sent == plan.repeats
        if is_last and plan.ending != "keep":
            if plan.ending == "close":
                self._drop(client)
            return
        self._note(stream, self._held(due), is_last=is_last)
        piece = plan.last if is_last else plan.piece
        if stream.sent == 0:
            piece = plan.head + piece
        stream.sent += 1
        if not is_last:
            heapq.heappush(self._due, (stream.first_due + stream.sent * stream.tpot, next(self._order), stream))
        self._send(client, piece)
        if is_last and client.stream is stream:
            client.stream = None
            self._next_in_line(self._held(due))
            self._answer(client, monotonic())  # a request that came too early has waited until now

    def _note(self, stream: Stream, due: float, *, is_last: bool) -> None:
        now = monotonic()
        self._truth.late_s.append(now - due)
        if stream.sent == 0:
            stream.first_sent = now
            self._truth.ttft_s.append(now - stream.arrived)
        elif is_last:
            self._truth.tpot_s.append((now - stream.first_sent) / stream.sent)

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


class Truth:
    """Between two looks at it: what requests really met, and how late each token was against the schedule."""

    def __init__(self) -> None:
        self.ttft_s: list[float] = []
        self.tpot_s: list[float] = []
        self.late_s: list[float] = []

    def summary(self) -> dict[str, float | None]:
        return {
            "requests": len(self.ttft_s),
            "tokens": len(self.late_s),
            "ttft_p50_s": _quantile(self.ttft_s, 0.50),
            "ttft_p99_s": _quantile(self.ttft_s, 0.99),
            "tpot_p50_s": _quantile(self.tpot_s, 0.50),
            "tpot_p99_s": _quantile(self.tpot_s, 0.99),
            "late_p50_s": _quantile(self.late_s, 0.50) or 0.0,
            "late_p99_s": _quantile(self.late_s, 0.99) or 0.0,
            "late_max_s": max(self.late_s, default=0.0),
        }


def _quantile(values: list[float], share: float) -> float | None:
    """Linear between the two nearest ranks."""
    if not values:
        return None
    ordered = sorted(values)
    below, part = divmod(share * (len(ordered) - 1), 1)
    low, high = ordered[int(below)], ordered[min(int(below) + 1, len(ordered) - 1)]
    return low + part * (high - low)
