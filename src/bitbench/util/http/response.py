"""One HTTP/1.1 response, parsed as its bytes arrive: the limits, and the time and content of each
read.

Each limit is several times what real servers send, so none of them reaches it. It is small enough
to give up a server that sends without end before this machine suffers.
"""

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from bitbench.util.text import quote

if TYPE_CHECKING:
    from bitbench._native import Parts

HEAD_BYTES = 65_536  # status line and headers. Servers themselves refuse heads of 8 to 64 KiB.
LINE_BYTES = 4_096  # a chunk-size or trailer line
# Heads of 1xx before the real one (servers send one or two) and trailer lines after the body (most
# send none).
EXTRA_LINES = 64

# Limits of an answer that is not a stream: a list of models (OpenRouter's 400 take 500 kB), or
# log-probabilities of a window of 4,096 tokens with 100 alternatives each at 60 bytes (25 MB).
PLAIN_BYTES = 1_000_000
LOGPROB_BYTES = 256_000_000
MODEL_NAMES = 10_000

# An event of one token takes 150 to 400 bytes, or 1,000 with a gateway's filter results. Error
# bodies may repeat the request with every character escaped.
_STREAM_BYTES = 1_000_000
_BYTES_PER_TOKEN = 4_096
_REQUEST_REPEATED = 2
# A megabyte of the densest JSON becomes 30 MB of objects. No event of a token comes near.
EVENT_BYTES = 1_000_000
# The memory of one worker for a trial's answers: 1,024 streams with 8,000 tokens of 250 bytes each.
TRIAL_BYTES = 2 * 2**30


def compute_answer_limit(output_tokens: int, request_bytes: int) -> int:
    """Return the largest accepted size of a streamed answer's body."""
    return _STREAM_BYTES + _BYTES_PER_TOKEN * output_tokens + _REQUEST_REPEATED * request_bytes


def make_response_parts(limit_bytes: int) -> "Parts":
    """Return empty parts of a body of at most this size. The caller checks the limit."""
    # Imported here, because reports are also read on machines without the native part.
    from bitbench._native import Parts

    return Parts(limit_bytes)


_CHUNK_LENGTH = re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*(;|\Z)")
_SHOWN = 80  # characters of a line that is not HTTP
_NO_BODY = frozenset((204, 304))

# States as plain numbers: an Enum would double the time.
_HEAD, _CHUNK_SIZE, _CHUNK_END, _TRAILER, _DATA, _COMPLETE, _GIVEN_UP = range(7)


class Fault(NamedTuple):
    """A reason why bytes are not an HTTP response, with the bytes that show it."""

    what: str
    evidence: bytes = b""

    def show(self, key: str) -> str:
        """Return the reason and the evidence, without the key."""
        if not self.evidence:
            return self.what
        return f"{self.what}: {quote(self.evidence, key, _SHOWN)}"


class Malformed(Exception):
    """A response that is not HTTP."""

    def __init__(self, what: str, evidence: bytes = b"") -> None:
        super().__init__(what)
        self.fault = Fault(what, evidence[:LINE_BYTES])


class ResponseReader:
    """A reader that removes the framing of a response and records the time of each part.

    This is the hot path. It does not split events or parse JSON, but only keeps what each read
    added to the body, and when. The body depends on the bytes alone, and only the times depend on
    how they were split into reads. It never raises: bytes that are not HTTP set `malformed`, and
    a body beyond the limit of its parts sets `oversized`.
    """

    __slots__ = (
        "_after_data", "_extra_lines", "_last_byte", "_left", "_pending", "_state",
        "between_chunks", "headers", "http_status", "malformed", "oversized", "parts", "persistent",
    )  # fmt: skip

    def __init__(self, parts: "Parts | None" = None) -> None:
        if parts is None:
            parts = make_response_parts(PLAIN_BYTES)
        # A caller that reads a whole chunk while `between_chunks` may add it to the parts itself.
        self.parts = parts
        self.between_chunks = False
        self._state = _HEAD
        self._pending = b""  # an unfinished head or line
        # Body bytes to come, of this chunk or of the whole. None: until the end.
        self._left: int | None = 0
        self._after_data = _COMPLETE
        self._last_byte: float | None = None
        self.headers: dict[str, str] = {}
        self.http_status: int | None = None
        self._extra_lines = 0  # heads before the real one, lines after the body
        self.malformed: Fault | None = None
        self.oversized = False
        self.persistent = False  # whether the connection can carry another request afterwards

    @property
    def complete(self) -> bool:
        return self._state == _COMPLETE

    @property
    def last_byte(self) -> float | None:
        """Return the time of the last read with content, or None."""
        times = [time for time in (self.parts.last_time, self._last_byte) if time is not None]
        return max(times, default=None)

    @property
    def times(self) -> Sequence[float]:
        """Return the time of each part of the body."""
        return self.parts.times

    @property
    def body(self) -> bytes:
        return self.parts.body

    @property
    def part_ends(self) -> list[int]:
        """Return the length of the body at each of `times`."""
        return list(accumulate(self.parts.lengths))

    def feed(self, data: bytes, now: float) -> bool:
        """Add the bytes of one read. Return True if the response is complete or given up."""
        if self.between_chunks and self.parts.take_chunk(data, now):
            return False
        self._last_byte = now
        content: list[bytes] = []
        try:
            self._consume_bytes(data, content)
        except Malformed as problem:
            self.malformed = problem.fault
            self._give_up()
        if content:
            self.parts.add(b"".join(content), now)
            if self.parts.body_bytes > self.parts.limit_bytes:
                self.oversized = True
                self._give_up()
        self.between_chunks = self._state == _CHUNK_SIZE and not self._pending
        return self._state in (_COMPLETE, _GIVEN_UP)

    @property
    def held_bytes(self) -> int:
        """Return the memory that the body takes."""
        return self.parts.about_bytes

    def close(self) -> None:
        """Note that the server closed the connection. That completes a body without a length."""
        self.persistent = False
        if self._state == _DATA and self._left is None:
            self._state = _COMPLETE

    def _give_up(self) -> None:
        self.persistent = False
        self._state = _GIVEN_UP

    def _consume_bytes(self, data: bytes, content: list[bytes]) -> None:
        if self._pending:
            data = self._pending + data
            self._pending = b""
        position = 0
        length = len(data)
        while position < length:
            if self._state == _DATA:
                position += self._take_body(data, position, content)
                continue
            if self._state in (_COMPLETE, _GIVEN_UP):
                # Unexpected bytes: the two sides disagree about the position in the stream.
                self.persistent = False
                return
            delimiter = b"\r\n"
            limit = LINE_BYTES
            if self._state == _HEAD:
                delimiter = b"\r\n\r\n"
                limit = HEAD_BYTES
            end = data.find(delimiter, position, position + limit + len(delimiter))
            if end < 0:
                if length - position >= limit + len(delimiter):
                    raise Malformed(f"a head or a line of more than {limit} bytes")
                self._pending = data[position:]
                return
            self._read_lines(data[position:end])
            position = end + len(delimiter)

    def _take_body(self, data: bytes, position: int, content: list[bytes]) -> int:
        """Add bytes of the body to `content` and return their number."""
        if self._left is None:
            content.append(data[position:])
            return len(data) - position
        part = data[position : position + self._left]
        content.append(part)
        self._left -= len(part)
        if self._left == 0:
            self._state = self._after_data
        return len(part)

    def _read_lines(self, lines: bytes) -> None:
        if self._state == _CHUNK_SIZE:
            self._start_chunk(lines)
        elif self._state == _CHUNK_END:
            if lines:
                raise Malformed("a chunk is longer than it says", lines)
            self._state = _CHUNK_SIZE
        elif self._state == _HEAD:
            self._read_head(lines.decode("latin-1"))
        elif not lines:  # the empty line that ends the trailer
            self._state = _COMPLETE
        else:
            self._count_extra_line()

    def _start_chunk(self, line: bytes) -> None:
        if not _CHUNK_LENGTH.match(line):
            raise Malformed("not a chunk size", line)
        self._left = int(line.split(b";", 1)[0], 16)
        self._state = _TRAILER
        if self._left:
            self._state = _DATA

    def _read_head(self, head: str) -> None:
        status_line, *lines = head.split("\r\n")
        version, _, rest = status_line.partition(" ")
        code = rest[:3]
        is_status = _is_number(code) and 100 <= int(code) <= 599
        if version not in ("HTTP/1.1", "HTTP/1.0") or not is_status:
            raise Malformed("not an HTTP/1.1 status line", status_line.encode("latin-1"))
        self.http_status = int(code)
        self.headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise Malformed("not a header line", line.encode("latin-1"))
            name = name.strip().lower()
            value = value.strip()
            if name in self.headers:
                value = f"{self.headers[name]}, {value}"
            self.headers[name] = value
        if self.http_status >= 200:
            self._choose_framing(version)
        else:  # a head of 1xx announces another one
            self._count_extra_line()

    def _count_extra_line(self) -> None:
        self._extra_lines += 1
        if self._extra_lines > EXTRA_LINES:
            raise Malformed(f"more than {EXTRA_LINES} heads or trailer lines")

    def _choose_framing(self, version: str) -> None:
        connection = self.headers.get("connection", "").lower()
        self.persistent = "close" not in connection and (
            version == "HTTP/1.1" or "keep-alive" in connection
        )
        length = self.headers.get("content-length")
        self._state = _DATA
        if self.http_status in _NO_BODY or length == "0":
            self._state = _COMPLETE
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._state = _CHUNK_SIZE
            self._after_data = _CHUNK_END
        elif length is None:
            self._left = None
            self.persistent = False
        elif _is_number(length) and int(length) > 0:
            self._left = int(length)
        else:
            raise Malformed("not a content length", length.encode("latin-1"))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19
