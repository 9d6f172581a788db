"""What the reads of one response brought of its body, and when: kept as it comes, looked into after the trial."""

import zlib
from array import array
from collections.abc import Sequence
from typing import Protocol

_BYTES_PER_READ = 33 + 24 + 2 * 8  # of memory besides its bytes: two objects and their places in lists
_COMPRESSION = 1  # events of one stream differ by a few bytes: the quickest level makes them twenty times smaller


class HeldParts(Protocol):
    """One part for each read that brought some of the body."""

    @property
    def times(self) -> Sequence[float]: ...
    @property
    def lengths(self) -> Sequence[int]: ...
    @property
    def body(self) -> bytes: ...
    @property
    def about_bytes(self) -> int:
        """The memory that it takes."""


class Parts(HeldParts, Protocol):
    """While the response comes."""

    @property
    def last_time(self) -> float | None: ...
    @property
    def limit_bytes(self) -> int:
        """Of the body: `take_chunk` keeps no more, and who adds more has to say that it is too large."""

    @property
    def body_bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def take_chunk(self, data: bytes, time: float) -> bool:
        """Keep a read that is one HTTP chunk, whole, as nearly every one is; False where it is not for certain, or
        where there is no room for it."""

    def add(self, content: bytes, time: float) -> None: ...


class PythonParts:
    """What the native parts hold, said plainly: their reference in tests, and in use where they were not built."""

    __slots__ = ("_contents", "_times", "body_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.body_bytes = 0
        self._contents: list[bytes] = []
        self._times: list[float] = []

    @property
    def times(self) -> Sequence[float]:
        return self._times

    @property
    def lengths(self) -> Sequence[int]:
        return [len(content) for content in self._contents]

    @property
    def body(self) -> bytes:
        return b"".join(self._contents)

    @property
    def last_time(self) -> float | None:
        return self._times[-1] if self._times else None

    @property
    def about_bytes(self) -> int:
        return self.body_bytes + len(self) * _BYTES_PER_READ

    def __len__(self) -> int:
        return len(self._times)

    def take_chunk(self, data: bytes, time: float) -> bool:
        line, _, rest = data.partition(b"\r\n")
        size = len(rest) - 2
        if size <= 0 or line != b"%x" % size or not rest.endswith(b"\r\n"):
            return False
        if self.body_bytes + size > self.limit_bytes:
            return False
        self.add(rest[:-2], time)
        return True

    def add(self, content: bytes, time: float) -> None:
        self._contents.append(content)
        self._times.append(time)
        self.body_bytes += len(content)


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

    @property
    def about_bytes(self) -> int:
        return len(self._body) + len(self.times) * (8 + 4)


try:
    from bitbench._native import Parts as NativeParts
except ImportError:  # no compiler when it was installed
    NativeParts = None  # type: ignore[assignment,misc]


def new_parts(limit_bytes: int) -> Parts:
    return PythonParts(limit_bytes) if NativeParts is None else NativeParts(limit_bytes)
