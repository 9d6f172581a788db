"""What the header of a GGUF file says about its tensors, read without touching the weights.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of a value, by its type's number
# Number of a tensor type to its name, the weights in a block of it and the bytes of a block.
_TENSOR_TYPES = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    10: ("q2_K", 256, 84),
    11: ("q3_K", 256, 110),
    12: ("q4_K", 256, 144),
    13: ("q5_K", 256, 176),
    14: ("q6_K", 256, 210),
    20: ("iq4_nl", 32, 18),
    23: ("iq4_xs", 256, 136),
    30: ("bf16", 1, 2),
}


@dataclass(frozen=True)
class GgufTensor:
    name: str
    type: str
    shape: tuple[int, ...]  # as the file has it: columns first
    weights: int
    size_bytes: int


def read_tensors(path: Path) -> tuple[GgufTensor, ...]:
    """Raises ValueError where the file is not GGUF, or holds a type that is not known here."""
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise ValueError(f"{path} is not a GGUF file")
        _version, tensors, pairs = _unpack(file, "<IQQ")
        for _ in range(pairs):
            _string(file)
            _skip_value(file, _unpack(file, "<I")[0])
        return tuple(_tensor(file) for _ in range(tensors))


def _tensor(file: BinaryIO) -> GgufTensor:
    name = _string(file).decode()
    (dimensions,) = _unpack(file, "<I")
    shape = _unpack(file, f"<{dimensions}Q")
    number, _offset = _unpack(file, "<IQ")
    if number not in _TENSOR_TYPES:
        raise ValueError(f"{name} has an unknown GGUF type ({number})")
    type, block_weights, block_bytes = _TENSOR_TYPES[number]
    weights = math.prod(shape)
    return GgufTensor(name, type, shape, weights, weights // block_weights * block_bytes)


def _skip_value(file: BinaryIO, type: int) -> None:
    if type == _STRING:
        _string(file)
    elif type == _ARRAY:
        element, count = _unpack(file, "<IQ")
        if element in _SIZES:
            file.seek(count * _SIZES[element], 1)
        else:
            for _ in range(count):
                _skip_value(file, element)
    elif type in _SIZES:
        file.seek(_SIZES[type], 1)
    else:
        raise ValueError(f"a GGUF value has an unknown type ({type})")


def _string(file: BinaryIO) -> bytes:
    (length,) = _unpack(file, "<Q")
    return file.read(length)


def _unpack(file: BinaryIO, format: str) -> tuple[int, ...]:
    data = file.read(struct.calcsize(format))
    try:
        return struct.unpack(format, data)
    except struct.error as error:
        raise ValueError("the GGUF header is truncated") from error
