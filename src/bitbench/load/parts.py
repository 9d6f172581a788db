"""What the reads of one response brought of its body, and when: kept as it comes, looked into after the trial."""

import zlib
from array import array
from collections.abc import Sequence
from typing import Protocol, cast

_CR, _LF = b"\r\n"
_SHORT_WAY_BYTES = 8_192  # longest read that is taken the short way: an event has some hundred bytes
_BYTES_PER_READ = 33 + 24 + 2 * 8  # of memory besides its bytes: two objects and their places in the list
_COMPRESSION = 1  # events of one stream differ by a few bytes: the quickest level makes them twenty times smaller


class HeldParts(Protocol):
    """One part for each read that brought some of the body."""

    @property
    def times(self) -> Sequence[float]: ...
    @property
    def lengths(self) -> Sequence[int]: ...
    @property
    def body(self) -> bytes: ...


class Parts(HeldParts, Protocol):
    """While the response comes."""

    @property
    def last_time(self) -> float | None: ...
    @property
    def about_bytes(self) -> int:
        """The memory that it takes."""

    def __len__(self) -> int: ...
    def take_chunk(self, data: bytes, time: float) -> bool:
        """Keep a read that is one HTTP chunk, whole, as nearly every one is; False where it is not for certain."""

    def add(self, content: bytes, time: float) -> None: ...


def _beginnings(read_length: int) -> tuple[bytes, bytes]:
    """What a read of this length begins with where it is one chunk, whole: the size line, and the bytes next to it.

    Between these two lies what begins with the line: two comparisons are three times quicker than `startswith`.
    """
    for digits in range(1, 9):
        size = read_length - digits - 4
        if size > 0 and len(f"{size:x}") == digits:
            return b"%x\r\n" % size, b"%x\r\v" % size
    return b"\xff", b""  # no read of this length is


_BEGINNINGS = tuple(_beginnings(length) for length in range(_SHORT_WAY_BYTES))


class PythonParts:
    """Where there is no native module."""

    __slots__ = ("_reads",)

    def __init__(self) -> None:
        # A chunk, followed by its time, and so on: one list where two would be read from memory for every token.
        self._reads: list[bytes | float] = []

    @property
    def times(self) -> Sequence[float]:
        return cast(list[float], self._reads[1::2])

    @property
    def lengths(self) -> Sequence[int]:
        return [len(part) for part in self._contents()]

    @property
    def body(self) -> bytes:
        return b"".join(self._contents())

    @property
    def last_time(self) -> float | None:
        return cast(float, self._reads[-1]) if self._reads else None

    @property
    def about_bytes(self) -> int:
        """Judged by one read in the middle: to look at all would take longer."""
        count = len(self)
        return count * (len(cast(bytes, self._reads[count // 2 * 2])) + _BYTES_PER_READ) if count else 0

    def __len__(self) -> int:
        return len(self._reads) // 2

    def take_chunk(self, data: bytes, time: float) -> bool:
        length = len(data)
        if length >= _SHORT_WAY_BYTES:
            return False
        line, next_to_it = _BEGINNINGS[length]
        if line <= data < next_to_it and data[-1] == _LF and data[-2] == _CR:
            self._reads += (data, time)
            return True
        return False

    def add(self, content: bytes, time: float) -> None:
        self._reads += (b"%x\r\n%b\r\n" % (len(content), content), time)

    def _contents(self) -> list[bytes]:
        return [chunk[chunk.index(b"\n") + 1 : -2] for chunk in cast(list[bytes], self._reads[0::2])]


class CompressedParts:
    """Of a response to which nothing more comes. Half of making it needs no interpreter lock: a thread can do it."""

    __slots__ = ("_body", "lengths", "times")

    def __init__(self, parts: HeldParts) -> None:
        self.times: Sequence[float] = array("d", parts.times)
        self.lengths: Sequence[int] = array("I", parts.lengths)
        self._body = zlib.compress(parts.body, _COMPRESSION)

    @property
    def body(self) -> bytes:
        return zlib.decompress(self._body)


try:
    from bitbench._native import Parts as NativeParts
except ImportError:  # no compiler when it was installed
    NativeParts = None  # type: ignore[assignment,misc]


def new_parts() -> Parts:
    return PythonParts() if NativeParts is None else NativeParts()
