"""What the files of a checkpoint say before any weight is read: linear layers, group sizes that fit, room on the
disk, the header of a GGUF file.

A header may lie: nothing of it is used that does not fit the file. The format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import re
import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitbench.study.recipe import Recipe
from bitbench.study.variant import TENSOR_TYPES
from bitbench.util.errors import ModelError, QuantizeError, RecipeError
from bitbench.util.model_files import StoredTensor, read_model_json
from bitbench.util.text import printable
from bitbench.util.units import show_bytes

_CAUSAL = re.compile(r"(ForCausalLM|LMHeadModel)$")
# Linear layers of the blocks that repeat ("model.layers.7.mlp.up_proj.weight"); embeddings carry no such number.
_LINEAR = re.compile(r"^(?P<layer>.*\.\d+\..*)\.weight$")
_COMMON_GROUP_SIZES = (16, 32, 64, 128, 256)
# A compressed checkpoint is smaller than its model; beside it lie the tokenizer, the log and the calibration text.
_ROOM_BESIDE_WEIGHTS_BYTES = 64 * 2**20

MAKE_ROOM = "free some space (`bitbench variant list` shows what can be removed) or set BITBENCH_HOME to another disk"


def linear_layers(
    tensors: Mapping[str, StoredTensor], ignore: Sequence[str]
) -> dict[str, StoredTensor]:
    """Layer name to its weight: those that a recipe which ignores `ignore` rounds."""
    found = {}
    for name, tensor in tensors.items():
        match = _LINEAR.match(name)
        if match and len(tensor.shape) == 2 and not is_ignored(match["layer"], ignore):
            found[match["layer"]] = tensor
    return found


def refuse_unsuitable_checkpoint(folder: Path) -> None:
    config = read_model_json(folder / "config.json")
    named = config.get("architectures")
    architectures = (
        [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    )
    if not any(_CAUSAL.search(name) for name in architectures):
        shown = printable(", ".join(architectures)) or "none"
        raise ModelError(
            f"{folder.name} is not a causal language model (architectures in its config.json: {shown}); "
            "recipes are for models whose architecture ends in ForCausalLM."
        )
    if "quantization_config" in config:
        raise ModelError(
            f"{folder.name} is already quantized (its config.json has a quantization_config); give the original model."
        )


def refuse_group_size_that_does_not_fit(
    recipe: Recipe, tensors: Mapping[str, StoredTensor]
) -> None:
    scheme = recipe.scheme
    if scheme is None or scheme.group_size is None:
        return
    columns = {
        layer: tensor.shape[1] for layer, tensor in linear_layers(tensors, scheme.ignore).items()
    }
    misfits = sorted(layer for layer, count in columns.items() if count % scheme.group_size)
    if not misfits:
        return
    divisor = math.gcd(*columns.values())
    fitting = [str(size) for size in _COMMON_GROUP_SIZES if divisor % size == 0]
    advice = (
        f"sizes that divide them: {', '.join(fitting)}"
        if fitting
        else "remove group_size for one scale per row"
    )
    raise RecipeError(
        f"recipe {recipe.name}: group_size {scheme.group_size} does not divide the {columns[misfits[0]]} columns of "
        f"{misfits[0]} ({len(misfits)} of {len(columns)} layers); {advice}."
    )


def refuse_without_room(place: Path, weight_bytes: int) -> None:
    needed, free = weight_bytes + _ROOM_BESIDE_WEIGHTS_BYTES, shutil.disk_usage(place).free
    if free < needed:
        raise QuantizeError(
            f"{place} has {show_bytes(free)} free; this variant may need {show_bytes(needed)}; {MAKE_ROOM}."
        )


def is_ignored(layer: str, ignore: Sequence[str]) -> bool:
    """As compressed-tensors reads it: a layer's name, or `re:` and a pattern for its beginning."""
    return any(
        re.match(pattern.removeprefix("re:"), layer) is not None
        if pattern.startswith("re:")
        else layer == pattern
        for pattern in ignore
    )


_MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # 1 had shorter counts, and was gone within months
_STRING, _ARRAY = 8, 9
# Of a value, as `struct` spells it, by its type's number.
_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
TOKENS, TOKEN_TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
# A vocabulary of 256,000 tokens and its merges take 15 MB, the largest mixtures have some thousand tensors.
_HEADER_LIMIT = 32 * 2**20
_MOST = 100_000  # tensors, and values before them
_MOST_DIMENSIONS = 4  # of ggml
_LENGTH = struct.Struct("<Q")  # before a string


@dataclass(frozen=True)
class GgufTensor:
    name: str
    type: str
    shape: tuple[int, ...]  # as the file has it: columns first
    weights: int
    size_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """`values` by their keys: single ones, and of the lists the tokens and their types."""

    values: Mapping[str, object]
    tensors: tuple[GgufTensor, ...]


def read_gguf_tensors(path: Path) -> tuple[GgufTensor, ...]:
    """As `read_gguf_header`."""
    return read_gguf_header(path).tensors


def read_gguf_header(path: Path) -> GgufHeader:
    """Raises ModelError where the file is not GGUF, holds a type that is not known here, or lies."""
    try:
        with path.open("rb") as file:
            header = _Header(file.read(_HEADER_LIMIT), path.stat().st_size)
        return header.read()
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise ModelError(
            f"{path} is not a GGUF file that can be used: {error}; create or download it again."
        ) from error


class _Header:
    """Read from front to back; `data` ends where the file or the largest header does."""

    def __init__(self, data: bytes, file_bytes: int) -> None:
        self._data = data
        self._file_bytes = file_bytes
        self._place = len(_MAGIC)

    def read(self) -> GgufHeader:
        if not self._data.startswith(_MAGIC):
            raise ValueError("it does not begin like one")
        version, count, pairs = self._unpack("<IQQ")
        if version not in _VERSIONS:
            raise ValueError(f"its version {version} is unknown")
        if max(count, pairs) > _MOST:
            raise ValueError(f"its header claims {count} tensors and {pairs} values")
        values = {}
        for _ in range(pairs):
            key = self._string().decode(errors="replace")
            values[key] = self._value(key, self._unpack("<I")[0])
        found = [self._tensor() for _ in range(count)]
        for tensor, offset in found:
            if self._place + offset + tensor.size_bytes > self._file_bytes:
                raise ValueError(f"{tensor.name[:80]} is outside the file")
        return GgufHeader(values, tuple(tensor for tensor, _ in found))

    def _tensor(self) -> tuple[GgufTensor, int]:
        """With where it lies, counted from the end of the header."""
        name = self._string().decode()
        (dimensions,) = self._unpack("<I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"{name[:80]} has {dimensions} dimensions")
        shape = self._unpack(f"<{dimensions}Q")
        number, offset = self._unpack("<IQ")
        if number not in TENSOR_TYPES:
            raise ValueError(f"{name[:80]} has an unknown GGUF type ({number})")
        type, weights = TENSOR_TYPES[number], math.prod(shape)
        if (shape[0] if shape else 1) % type.block_weights:
            raise ValueError(f"the columns of {name[:80]} do not fill blocks of {type.name}")
        return GgufTensor(name, type.name, shape, weights, type.bytes_of(weights)), offset

    def _value(self, key: str, type: int) -> object:
        """None of a list that was not asked for. An array in an array is an unknown type, as it is to ggml."""
        element, count = self._unpack("<IQ") if type == _ARRAY else (type, 1)
        if element != _STRING and element not in _FORMATS:
            raise ValueError(f"a value of its header has an unknown type ({element})")
        if type == _ARRAY:
            begin = self._place
            self._skip_strings(count) if element == _STRING else self._skip(
                count * struct.calcsize(_FORMATS[element])
            )
            if key not in (TOKENS, TOKEN_TYPES):
                return None
            self._place = begin
        if element == _STRING:
            texts = [self._string().decode(errors="replace") for _ in range(count)]
            return texts if type == _ARRAY else texts[0]
        numbers = self._unpack(f"<{count}{_FORMATS[element]}")
        return list(numbers) if type == _ARRAY else numbers[0]

    def _skip_strings(self, count: int) -> None:
        """There are some hundred thousand of them in a vocabulary."""
        data, end = self._data, len(self._data)
        for _ in range(count):
            begin = self._place + _LENGTH.size
            if begin > end:
                raise self._cut_off()
            self._place = begin + _LENGTH.unpack_from(data, self._place)[0]
        self._skip(0)

    def _string(self) -> bytes:
        (length,) = self._unpack("<Q")
        self._skip(length)
        return self._data[self._place - length : self._place]

    def _unpack(self, format: str) -> tuple[int, ...]:
        begin = self._place
        self._skip(struct.calcsize(format))
        return struct.unpack_from(format, self._data, begin)

    def _skip(self, count: int) -> None:
        self._place += count
        if self._place > len(self._data):
            raise self._cut_off()

    def _cut_off(self) -> ValueError:
        return ValueError(
            f"its header is {'truncated' if len(self._data) < _HEADER_LIMIT else 'too long'}"
        )
