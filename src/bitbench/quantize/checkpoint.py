"""Checks of a checkpoint before any weight is read, and the header of a GGUF file.

The checks cover linear layers, group sizes and disk space. A header may be wrong, so nothing in it
is used that does not fit the file. The GGUF format:
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
from bitbench.util.text import format_printable
from bitbench.util.units import show_bytes

_CAUSAL = re.compile(r"(ForCausalLM|LMHeadModel)$")
# Linear layers of the blocks that repeat ("model.layers.7.mlp.up_proj.weight"). Embeddings have no
# such number.
_LINEAR = re.compile(r"^(?P<layer>.*\.\d+\..*)\.weight$")
_COMMON_GROUP_SIZES = (16, 32, 64, 128, 256)
# A compressed checkpoint is smaller than its model. The rest is for the tokenizer, the log and the
# calibration text.
_ROOM_BESIDE_WEIGHTS_BYTES = 64 * 2**20

MAKE_ROOM = (
    "free some space (`bitbench variant list` shows what can be removed) "
    "or set BITBENCH_HOME to another disk"
)


def collect_linear_layers(
    tensors: Mapping[str, StoredTensor], ignore: Sequence[str]
) -> dict[str, StoredTensor]:
    """Return the weights, by layer, that a recipe with this `ignore` rounds."""
    layers = {}
    for name, tensor in tensors.items():
        match = _LINEAR.match(name)
        if match and len(tensor.shape) == 2 and not is_ignored(match["layer"], ignore):
            layers[match["layer"]] = tensor
    return layers


def refuse_unsuitable_checkpoint(folder: Path) -> None:
    """Raise ModelError for a model that is not causal, or is already quantized."""
    config = read_model_json(folder / "config.json")
    architectures = config.get("architectures")
    if not isinstance(architectures, list):
        architectures = []
    names = [name for name in architectures if isinstance(name, str)]
    if not any(map(_CAUSAL.search, names)):
        listed = format_printable(", ".join(names)) or "none"
        raise ModelError(
            f"{folder.name} is not a causal language model "
            f"(architectures in its config.json: {listed}); "
            "recipes are for models whose architecture ends in ForCausalLM."
        )
    if "quantization_config" in config:
        raise ModelError(
            f"{folder.name} is already quantized (its config.json has a quantization_config); "
            "give the original model."
        )


def refuse_group_size_that_does_not_fit(
    recipe: Recipe, tensors: Mapping[str, StoredTensor]
) -> None:
    """Raise RecipeError if the group size does not divide the columns of every layer."""
    scheme = recipe.scheme
    if scheme is None or scheme.group_size is None:
        return
    layers = collect_linear_layers(tensors, scheme.ignore)
    columns = {layer: tensor.shape[1] for layer, tensor in layers.items()}
    misfits = sorted(layer for layer, count in columns.items() if count % scheme.group_size)
    if not misfits:
        return
    divisor = math.gcd(*columns.values())
    advice = "remove group_size for one scale per row"
    if fitting := [str(size) for size in _COMMON_GROUP_SIZES if divisor % size == 0]:
        advice = f"sizes that divide them: {', '.join(fitting)}"
    first = misfits[0]
    raise RecipeError(
        f"recipe {recipe.name}: group_size {scheme.group_size} does not divide the "
        f"{columns[first]} columns of {first} ({len(misfits)} of {len(columns)} layers); {advice}."
    )


def refuse_without_room(folder: Path, weight_bytes: int) -> None:
    """Raise QuantizeError if the folder's disk has no room for a variant with these weights."""
    needed = weight_bytes + _ROOM_BESIDE_WEIGHTS_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise QuantizeError(
            f"{folder} has {show_bytes(free)} free; "
            f"this variant may need {show_bytes(needed)}; {MAKE_ROOM}."
        )


def is_ignored(layer: str, ignore: Sequence[str]) -> bool:
    """Return True if an entry matches the layer, by the rules of compressed-tensors.

    An entry is a layer's name, or `re:` and a pattern for its beginning.
    """
    for entry in ignore:
        if entry.startswith("re:"):
            if re.match(entry.removeprefix("re:"), layer):
                return True
        elif layer == entry:
            return True
    return False


_MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # version 1 had shorter counts, and was replaced within months
# Types of values, by their numbers.
_STRING = 8
_ARRAY = 9
# The format of a value in `struct`.
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
TOKENS = "tokenizer.ggml.tokens"
TOKEN_TYPES = "tokenizer.ggml.token_type"
# A vocabulary of 256,000 tokens and its merges take 15 MB. The largest mixtures have some thousand
# tensors.
_HEADER_LIMIT = 32 * 2**20
_MOST = 100_000  # tensors, or values before them
_MOST_DIMENSIONS = 4  # the limit in ggml
_LENGTH = struct.Struct("<Q")  # the length before a string


@dataclass(frozen=True)
class GgufTensor:
    name: str
    type: str
    shape: tuple[int, ...]  # in the order of the file: columns first
    weights: int
    size_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """A file's tensors, and its values by key. Arrays other than the tokens are None."""

    values: Mapping[str, object]
    tensors: tuple[GgufTensor, ...]


def read_gguf_tensors(path: Path) -> tuple[GgufTensor, ...]:
    """Return the tensors of a GGUF file. Raise ModelError as `read_gguf_header` does."""
    return read_gguf_header(path).tensors


def read_gguf_header(path: Path) -> GgufHeader:
    """Return the header of a GGUF file.

    Raise ModelError if it is not GGUF, has an unknown type or contradicts the file.
    """
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
    """A reader from front to back. `data` ends with the file, or after the largest header."""

    def __init__(self, data: bytes, file_bytes: int) -> None:
        self._data = data
        self._file_bytes = file_bytes
        self._position = len(_MAGIC)

    def read(self) -> GgufHeader:
        if not self._data.startswith(_MAGIC):
            raise ValueError("it does not begin like one")
        version, count, pairs = self._read_numbers("<IQQ")
        if version not in _VERSIONS:
            raise ValueError(f"its version {version} is unknown")
        if max(count, pairs) > _MOST:
            raise ValueError(f"its header claims {count} tensors and {pairs} values")
        values = {}
        for _ in range(pairs):
            key = self._read_string().decode(errors="replace")
            values[key] = self._read_value(key, self._read_numbers("<I")[0])
        tensors = [self._read_tensor() for _ in range(count)]
        for tensor, offset in tensors:
            if self._position + offset + tensor.size_bytes > self._file_bytes:
                raise ValueError(f"{tensor.name[:80]} is outside the file")
        return GgufHeader(values, tuple(tensor for tensor, _ in tensors))

    def _read_tensor(self) -> tuple[GgufTensor, int]:
        """Return a tensor and its offset from the end of the header."""
        name = self._read_string().decode()
        (dimensions,) = self._read_numbers("<I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"{name[:80]} has {dimensions} dimensions")
        shape = self._read_numbers(f"<{dimensions}Q")
        number, offset = self._read_numbers("<IQ")
        if number not in TENSOR_TYPES:
            raise ValueError(f"{name[:80]} has an unknown GGUF type ({number})")
        type = TENSOR_TYPES[number]
        columns = shape[0] if shape else 1
        if columns % type.block_weights:
            raise ValueError(f"the columns of {name[:80]} do not fill blocks of {type.name}")
        weights = math.prod(shape)
        return GgufTensor(name, type.name, shape, weights, type.count_bytes(weights)), offset

    def _read_value(self, key: str, type: int) -> object:
        """Return a value, or None for an array that is not needed."""
        if type != _ARRAY:
            _check_type(type)
            return self._read_items(type, 1)[0]
        element, count = self._read_numbers("<IQ")
        _check_type(element)
        begin = self._position
        if element == _STRING:
            self._skip_strings(count)
        else:
            self._skip_bytes(count * struct.calcsize(_FORMATS[element]))
        if key not in (TOKENS, TOKEN_TYPES):
            return None
        self._position = begin
        return self._read_items(element, count)

    def _read_items(self, type: int, count: int) -> list[str] | list[int]:
        if type == _STRING:
            return [self._read_string().decode(errors="replace") for _ in range(count)]
        return list(self._read_numbers(f"<{count}{_FORMATS[type]}"))

    def _skip_strings(self, count: int) -> None:
        """Skip strings without a call for each: a vocabulary has some hundred thousand of them."""
        data = self._data
        end = len(data)
        for _ in range(count):
            begin = self._position + _LENGTH.size
            if begin > end:
                raise self._cut_off()
            self._position = begin + _LENGTH.unpack_from(data, self._position)[0]
        self._skip_bytes(0)

    def _read_string(self) -> bytes:
        (length,) = self._read_numbers("<Q")
        self._skip_bytes(length)
        return self._data[self._position - length : self._position]

    def _read_numbers(self, format: str) -> tuple[int, ...]:
        begin = self._position
        self._skip_bytes(struct.calcsize(format))
        return struct.unpack_from(format, self._data, begin)

    def _skip_bytes(self, count: int) -> None:
        self._position += count
        if self._position > len(self._data):
            raise self._cut_off()

    def _cut_off(self) -> ValueError:
        state = "truncated" if len(self._data) < _HEADER_LIMIT else "too long"
        return ValueError(f"its header is {state}")


def _check_type(type: int) -> None:
    """Raise ValueError for an unknown type. As in ggml, an array inside an array is unknown too."""
    if type != _STRING and type not in _FORMATS:
        raise ValueError(f"a value of its header has an unknown type ({type})")
