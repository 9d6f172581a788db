"""Files of a model's folder that others wrote: its JSON, and the headers of safetensors.

A header may lie, so nothing of it is used that does not fit the file. The format's rules:
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

_LARGEST_BYTES = 36 * 10**6  # the largest tokenizers have 34 MB, configurations a few kB
# As objects, a file of brackets takes many times its size. Large tokenizers have a list for each of
# 500,000 merges, and some thousand objects.
_MOST_LISTS = 1_000_000
_MOST_OBJECTS = 100_000


def read_model_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raise ModelError if it is missing, damaged or much too large."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ModelError(
                f"{path} is larger than {_LARGEST_BYTES // 10**6} MB; no model needs that."
            )
        text = path.read_text(encoding="utf-8")
        if text.count("[") > _MOST_LISTS or text.count("{") > _MOST_OBJECTS:
            raise ModelError(
                f"{path} has more lists or objects than such a file ever needs; download the "
                "model again."
            )
        content = json.loads(text)
    except OSError as error:
        raise ModelError(
            f"{path} cannot be read ({error.strerror}); a model folder needs it."
        ) from error
    except (ValueError, RecursionError) as error:
        cause = str(error)
        if isinstance(error, RecursionError):
            cause = "nested too deeply"
        raise ModelError(f"{path} is not JSON ({cause}); download the model again.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} should contain a JSON object; download the model again.")
    return content


# The size for 90,000 tensors. The format allows ten times as much, which could take gigabytes as
# objects.
_HEADER_LIMIT = 10 * 10**6
_LENGTH_BYTES = 8  # before the header
_MOST_DIMENSIONS = 16
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, by the header of the file."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    begin: int = field(default=0, compare=False)  # its first byte in the file


def read_safetensors_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name.

    Raise ModelError if the file cannot be read or is not safetensors, or if its header lies.
    """
    try:
        entries, data = _read_entries(path)
        names = [name for name in entries if name != "__metadata__"]
        return {name: _parse_tensor(name, entries[name], data) for name in names}
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        cause = str(error)
        if isinstance(error, RecursionError):
            cause = "it is nested too deeply"
        raise ModelError(
            f"{path} is not a safetensors file (its header: {cause}); download it again."
        ) from error


def read_safetensors_headers(folder: Path) -> dict[str, StoredTensor]:
    """Return every tensor of a checkpoint by name, from all of its files."""
    tensors: dict[str, StoredTensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= read_safetensors_header(path)
    return tensors


def make_safetensors_header(tensors: Mapping[str, StoredTensor]) -> bytes:
    """Return the header of a safetensors file with these tensors, in this order without gaps."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin = end
        end += tensor.size_bytes
        entries[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)  # tensors begin at a multiple of the length
    return struct.pack("<Q", len(text)) + text


def _read_entries(path: Path) -> tuple[Mapping[str, Any], range]:
    """Return the content of the header, and the range of the tensors' bytes in the file."""
    with path.open("rb") as file:
        room = path.stat().st_size - _LENGTH_BYTES
        if room < 2:
            raise ValueError("the file is too short for one")
        limit = min(room, _HEADER_LIMIT)
        (length,) = struct.unpack("<Q", file.read(_LENGTH_BYTES))
        if not 2 <= length <= limit:
            raise ValueError(f"it claims {length} bytes, of at most {limit}")
        entries = json.loads(file.read(length).decode("utf-8"))
    if not isinstance(entries, dict):
        raise ValueError("it is not a JSON object")
    return entries, range(_LENGTH_BYTES + length, _LENGTH_BYTES + room)


def _parse_tensor(name: str, entry: Any, data: range) -> StoredTensor:
    """Check and return a tensor. Raise ValueError if its entry does not fit the file."""
    name.encode()  # a ValueError for a lone surrogate, which JSON allows but no file can store
    fields = entry if isinstance(entry, dict) else {}
    dtype = fields.get("dtype")
    shape = fields.get("shape")
    offsets = fields.get("data_offsets")
    short_name = name[:80]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise ValueError(f"{short_name} has the unknown dtype {str(dtype)[:20]!r}")
    if not _are_counts(shape) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"the shape of {short_name} is not a list of sizes")
    if not _are_counts(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= len(data):
        raise ValueError(f"the place of {short_name} is outside the file")
    size_bytes = offsets[1] - offsets[0]
    if math.prod(shape) * _BITS[dtype] != 8 * size_bytes:
        raise ValueError(
            f"{short_name} has {size_bytes} bytes, which do not fit its shape and dtype"
        )
    return StoredTensor(dtype, tuple(shape), size_bytes, data.start + offsets[0])


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(part) is int and part >= 0 for part in value)
