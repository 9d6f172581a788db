"""Messages between processes: bytes with their length before them, over pipes."""

import struct
from typing import IO

_LENGTH = struct.Struct("<Q")


def write_frame(pipe: IO[bytes], payload: bytes) -> None:
    rest = memoryview(_LENGTH.pack(len(payload)) + payload)
    while rest:
        rest = rest[pipe.write(rest) :]  # a pipe without a buffer may take less than all
    pipe.flush()


def read_frame(pipe: IO[bytes], most_bytes: int | None = None) -> bytes:
    """The next frame; raises EOFError when the other side is gone, also in the middle of one, and ValueError where it
    announces more than `most_bytes`."""
    (length,) = _LENGTH.unpack(_read_exactly(pipe, _LENGTH.size))
    if most_bytes is not None and length > most_bytes:
        raise ValueError(f"a frame of {length} bytes")
    return _read_exactly(pipe, length)


def _read_exactly(pipe: IO[bytes], count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        some = pipe.read(count - len(data))
        if not some:
            raise EOFError
        data += some
    return bytes(data)
