"""What the header of a safetensors file says, read without torch and without touching the weights."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

# A safetensors header is JSON behind its length; the format itself allows no more than this.
_HEADER_LIMIT = 100 * 10**6


@dataclass(frozen=True)
class StoredTensor:
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Name to what is stored under it; raises ValueError where the file is not safetensors."""
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= _HEADER_LIMIT:
            raise ValueError(f"{path} is not a safetensors file: its header is broken")
        header = json.loads(file.read(length))
    return {
        name: StoredTensor(entry["dtype"], tuple(entry["shape"]), entry["data_offsets"][1] - entry["data_offsets"][0])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint, whatever file it lies in."""
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in read_header(path).items()}
