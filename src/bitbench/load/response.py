"""One HTTP/1.1 response, followed as its bytes arrive."""

from bisect import bisect_left

HEAD_LIMIT = 65_536  # bytes of status line and headers; servers themselves refuse heads of 8 to 64 KiB
LINE_LIMIT = 4_096  # bytes of a chunk-size or trailer line

_NO_BODY = frozenset((204, 304))


# States as plain numbers: this runs for every read, and an Enum would double its time.
_HEAD, _CHUNK_SIZE, _CHUNK_END, _TRAILER, _DATA, _COMPLETE, _MALFORMED = range(7)
_SIZE_DIGITS = 8  # of a chunk's size on the short way


class Malformed(Exception):
    """These bytes are not an HTTP response; says why."""


class ResponseReader:
    """Takes the framing off a response and remembers when each part of its body came.

    This is the hot path: it neither splits events nor parses JSON, it only keeps the body and, for each read, how
    long the body was after it and when that was. What it holds in the end depends on the bytes alone, not on how
    they were split into reads; only the times do. It never raises: what is not HTTP sets `malformed`.
    """

    __slots__ = ("_after_data", "_ends", "_left", "_pending", "_state", "_times", "body", "headers", "http_status",
                 "last_byte", "malformed", "persistent")  # fmt: skip

    def __init__(self) -> None:
        self._state = _HEAD
        self._pending = b""  # an unfinished head or line
        self._left: int | None = 0  # body bytes to come, of this chunk or of the whole; None: until the end
        self._after_data = _COMPLETE
        self._ends: list[int] = []
        self._times: list[float] = []
        self.body = bytearray()
        self.headers: dict[str, str] = {}
        self.http_status: int | None = None
        self.last_byte: float | None = None
        self.malformed: str | None = None
        self.persistent = False  # whether the connection can carry another request afterwards

    @property
    def complete(self) -> bool:
        return self._state == _COMPLETE

    def feed(self, data: bytes, now: float) -> bool:
        """Take what one read returned; True once nothing more belongs to this response."""
        self.last_byte = now
        if self._state == _CHUNK_SIZE and not self._pending and self._take_whole_chunk(data):
            self._ends.append(len(self.body))
            self._times.append(now)
            return False
        before = len(self.body)
        try:
            self._consume(data)
        except Malformed as problem:
            self.malformed = str(problem)
            self.persistent = False
            self._state = _MALFORMED
        if len(self.body) > before:
            self._ends.append(len(self.body))
            self._times.append(now)
        return self._state in (_COMPLETE, _MALFORMED)

    def close(self) -> None:
        """The other side has closed the connection. That completes a body without a length."""
        self.persistent = False
        if self._state == _DATA and self._left is None:
            self._state = _COMPLETE

    def arrival(self, offset: int) -> float:
        """When the first `offset` bytes of the body were there."""
        return self._times[bisect_left(self._ends, offset)]

    def _take_whole_chunk(self, data: bytes) -> bool:
        """The short way for what nearly every read is: one chunk, whole. False: it is something else."""
        end = data.find(b"\r\n", 0, _SIZE_DIGITS + 2)
        try:
            start, stop = end + 2, len(data) - 2
            if end < 0 or stop <= start or int(data[:end], 16) != stop - start or data[stop:] != b"\r\n":
                return False
        except ValueError:
            return False
        self.body += data[start:stop]
        return True

    def _consume(self, data: bytes) -> None:
        if self._pending:
            data, self._pending = self._pending + data, b""
        position, length = 0, len(data)
        while position < length:
            if self._state == _DATA:
                position += self._take(data, position)
            elif self._state in (_COMPLETE, _MALFORMED):
                self.persistent = False  # bytes that nobody asked for: the two sides disagree about where they are
                return
            else:
                delimiter, limit = (b"\r\n\r\n", HEAD_LIMIT) if self._state == _HEAD else (b"\r\n", LINE_LIMIT)
                end = data.find(delimiter, position, position + limit + len(delimiter))
                if end < 0:
                    if length - position >= limit + len(delimiter):
                        raise Malformed(f"a head or a line of more than {limit} bytes")
                    self._pending = data[position:]
                    return
                self._read_lines(data[position:end])
                position = end + len(delimiter)

    def _take(self, data: bytes, position: int) -> int:
        taken = data[position:] if self._left is None else data[position : position + self._left]
        self.body += taken
        if self._left is not None:
            self._left -= len(taken)
            if self._left == 0:
                self._state = self._after_data
        return len(taken)

    def _read_lines(self, lines: bytes) -> None:
        if self._state == _CHUNK_SIZE:
            self._start_chunk(lines)
        elif self._state == _CHUNK_END:
            if lines:
                raise Malformed(f"a chunk is longer than it says: {lines[:80]!r}")
            self._state = _CHUNK_SIZE
        elif self._state == _HEAD:
            self._read_head(lines.decode("latin-1"))
        elif not lines:  # the empty line that ends the trailer
            self._state = _COMPLETE

    def _start_chunk(self, line: bytes) -> None:
        try:
            size = int(line.split(b";", 1)[0], 16)
        except ValueError:
            size = -1
        if size < 0:
            raise Malformed(f"not a chunk size: {line[:80]!r}")
        self._left = size
        self._state = _DATA if size else _TRAILER

    def _read_head(self, head: str) -> None:
        status_line, *lines = head.split("\r\n")
        version, _, rest = status_line.partition(" ")
        code = rest[:3]
        if version not in ("HTTP/1.1", "HTTP/1.0") or not _is_number(code) or not 100 <= int(code) <= 599:
            raise Malformed(f"not an HTTP/1.1 status line: {status_line[:80]!r}")
        self.http_status = int(code)
        self.headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise Malformed(f"not a header line: {line[:80]!r}")
            name = name.strip().lower()
            self.headers[name] = f"{self.headers[name]}, {value.strip()}" if name in self.headers else value.strip()
        if self.http_status >= 200:  # 1xx heads announce another one
            self._choose_framing(version)

    def _choose_framing(self, version: str) -> None:
        connection = self.headers.get("connection", "").lower()
        self.persistent = "close" not in connection and (version == "HTTP/1.1" or "keep-alive" in connection)
        length = self.headers.get("content-length")
        self._state = _DATA
        if self.http_status in _NO_BODY or length == "0":
            self._state = _COMPLETE
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._state, self._after_data = _CHUNK_SIZE, _CHUNK_END
        elif length is None:
            self._left, self.persistent = None, False
        elif _is_number(length) and int(length) > 0:
            self._left = int(length)
        else:
            raise Malformed(f"not a content length: {length[:80]!r}")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19
