"""Files of a model's folder that others wrote, and that may lie: its JSON, and the headers of safetensors.

A header may lie: nothing of it is used that does not fit the file. The format's own rules:
https://github.com/huggingface/safetensors#format
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from bitbench.util.errors import ModelError

_LARGEST_BYTES = 36 * 10**6  # the largest tokenizers have 34 MB; configurations, a few kB
# As objects, a file takes many times its size where it holds little but brackets. Large tokenizers have a list for each
# of 500,000 merges, and some thousand objects.
_MOST_LISTS, _MOST_OBJECTS = 1_000_000, 100_000


def read_model_json(path: Path) -> dict[str, Any]:
    """Raises ModelError where it is missing, no JSON object, or larger than such a file ever is."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ModelError(
                f"{path} is larger than {_LARGEST_BYTES // 10**6} MB; no model needs that."
            )
        text = path.read_text(encoding="utf-8")
        if text.count("[") > _MOST_LISTS or text.count("{") > _MOST_OBJECTS:
            raise ModelError(
                f"{path} has more lists or objects than such a file ever needs; download the model again."
            )
        content = json.loads(text)
    except OSError as error:
        raise ModelError(
            f"{path} cannot be read ({error.strerror}); a model folder needs it."
        ) from error
    except (ValueError, RecursionError) as error:
        cause = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ModelError(f"{path} is not JSON ({cause}); download the model again.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} should contain a JSON object; download the model again.")
    return content


# A file of 90,000 tensors needs so much. The format allows ten times that, which could take gigabytes as objects.
_HEADER_LIMIT = 10 * 10**6
_LENGTH_BYTES = 8  # before the header
_MOST_DIMENSIONS = 16
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    begin: int = field(default=0, compare=False)  # its first byte in the file


def read_safetensors_header(path: Path) -> dict[str, StoredTensor]:
    """Name to what is stored under it; raises ModelError where the file is not safetensors, or its header lies."""
    try:
        entries, data = _entries(path)
        return {
            name: _tensor(name, entry, data)
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        cause = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ModelError(
            f"{path} is not a safetensors file (its header: {cause}); download it again."
        ) from error


def read_safetensors_headers(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint, whatever file it lies in."""
    return {
        name: tensor
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in read_safetensors_header(path).items()
    }


def safetensors_header_bytes(tensors: Mapping[str, StoredTensor]) -> bytes:
    """How a safetensors file begins that holds these tensors, in this order and without gaps."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.size_bytes
        entries[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)  # tensors begin at a multiple of it
    return struct.pack("<Q", len(text)) + text


def _entries(path: Path) -> tuple[Mapping[str, Any], range]:
    """The header's content, and where in the file the bytes of tensors are."""
    with path.open("rb") as file:
        room = path.stat().st_size - _LENGTH_BYTES
        if room < 2:
            raise ValueError("the file is too short for one")
        (length,) = struct.unpack("<Q", file.read(_LENGTH_BYTES))
        if not 2 <= length <= min(room, _HEADER_LIMIT):
            raise ValueError(f"it claims {length} bytes, of at most {min(room, _HEADER_LIMIT)}")
        entries = json.loads(file.read(length).decode("utf-8"))
    if not isinstance(entries, dict):
        raise ValueError("it is not a JSON object")
    return entries, range(_LENGTH_BYTES + length, _LENGTH_BYTES + room)


def _tensor(name: str, entry: Any, data: range) -> StoredTensor:
    name.encode()  # half a character, which JSON can hold, could not be written down again: a ValueError
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    shown = name[:80]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise ValueError(f"{shown} has the unknown dtype {str(dtype)[:20]!r}")
    if not _are_counts(shape) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"the shape of {shown} is not a list of sizes")
    if not _are_counts(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= len(data):
        raise ValueError(f"the place of {shown} is outside the file")
    size_bytes = offsets[1] - offsets[0]
    if math.prod(shape) * _BITS[dtype] != 8 * size_bytes:
        raise ValueError(f"{shown} has {size_bytes} bytes, which do not fit its shape and dtype")
    return StoredTensor(dtype, tuple(shape), size_bytes, data.start + offsets[0])


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(part) is int and part >= 0 for part in value)
