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


class PythonParts:
    """What the native parts hold, said plainly: their reference in tests, and in use where they were not built."""

    __slots__ = ("_contents", "_times")

    def __init__(self) -> None:
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
        """Judged by one read in the middle: to look at all would take longer."""
        count = len(self)
        return count * (len(self._contents[count // 2]) + _BYTES_PER_READ) if count else 0

    def __len__(self) -> int:
        return len(self._times)

    def take_chunk(self, data: bytes, time: float) -> bool:
        line, _, rest = data.partition(b"\r\n")
        size = len(rest) - 2
        if size <= 0 or line != b"%x" % size or not rest.endswith(b"\r\n"):
            return False
        self.add(rest[:-2], time)
        return True

    def add(self, content: bytes, time: float) -> None:
        self._contents.append(content)
        self._times.append(time)


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
