"""What lies beside a variant's checkpoint: what it was made from, how, what came out, and what that weighs in bits
per weight."""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from bitbench.quantize.checkpoint import GgufTensor, linear_layers, read_gguf_tensors
from bitbench.study.base import Record
from bitbench.study.recipe import Recipe
from bitbench.util.model_files import read_safetensors_headers

MANIFEST_FORMAT = 1
# History of MANIFEST_FORMAT:
#   1  first published form


class CalibrationFacts(Record):
    description: str
    content_hash: str
    samples: int | None = None  # that were really used: short texts give fewer than asked for
    tokens: int | None = None  # in all samples together


class WorkerFacts(Record):
    """What a backend says about its work."""

    versions: dict[str, str]
    peak_memory_bytes: int | None = None  # resident, of the worker alone
    samples: int | None = None
    tokens: int | None = None
    rounded_instead: tuple[
        str, ...
    ] = ()  # layers that GPTQ could not solve and rounded to the nearest
    unreached: tuple[
        str, ...
    ] = ()  # experts of a mixture that no token of the calibration text came to
    # Tensors whose rows do not fit the type of a GGUF recipe, counted by what llama.cpp chose: "q5_0 instead of q4_K".
    stored_otherwise: dict[str, int] = Field(default_factory=dict)


class StoredBits(Record):
    """Bits per weight as stored, scales and zero points included."""

    linear_layers: float | None = None  # those that were quantized
    whole_model: float | None = None


class Manifest(Record):
    format: int = MANIFEST_FORMAT
    key: str
    model: str
    model_hash: str
    recipe: Recipe
    calibration: CalibrationFacts | None = None
    seed: int
    created_at: str
    seconds: float
    work: WorkerFacts
    bits_per_weight: StoredBits
    weight_bytes: int
    size_bytes: int
    content_hash: str
    files: dict[str, str]  # name to sha256


_WEIGHT_SUFFIXES = (".safetensors", ".gguf")
_OPENVINO_WEIGHTS = "openvino_model.bin"


def weight_bytes(folder: Path) -> int:
    return sum(
        path.stat().st_size
        for path in folder.iterdir()
        if path.suffix in _WEIGHT_SUFFIXES or path.name == _OPENVINO_WEIGHTS
    )


def manifest_file_hashes(folder: Path) -> dict[str, str]:
    hashes = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            hashes[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def manifest_content_hash(hashes: Mapping[str, str]) -> str:
    return hashlib.sha256(
        "".join(f"{name}\0{digest}\n" for name, digest in hashes.items()).encode()
    ).hexdigest()


def stored_bits(model: Path, checkpoint: Path, recipe: Recipe) -> StoredBits:
    """Counted in weights of the model: a packed tensor's own shape says nothing about them."""
    if recipe.gguf_type:
        return _gguf_bits(checkpoint)
    if recipe.openvino_type:
        return _openvino_bits(model, checkpoint)
    before, after = read_safetensors_headers(model), read_safetensors_headers(checkpoint)
    if not before or not after:
        return StoredBits()
    weights = sum(math.prod(tensor.shape) for tensor in before.values())
    stored_bytes = sum(tensor.size_bytes for tensor in after.values())
    layers = linear_layers(before, recipe.ignored) if recipe.ignored is not None else {}
    layer_weights = sum(math.prod(tensor.shape) for tensor in layers.values())
    layer_bytes = sum(
        tensor.size_bytes
        for name, tensor in after.items()
        if _is_of(name, layers) and not name.endswith(".bias")
    )
    return StoredBits(
        linear_layers=round(8 * layer_bytes / layer_weights, 3) if layer_weights else None,
        whole_model=round(8 * stored_bytes / weights, 3),
    )


def _is_of(tensor: str, layers: Collection[str]) -> bool:
    """`LAYER.weight_packed`, or one step further down: VPTQ has `LAYER.centroids.weight`."""
    owner = tensor.rpartition(".")[0]
    return owner in layers or owner.rpartition(".")[0] in layers


def _gguf_bits(checkpoint: Path) -> StoredBits:
    """A GGUF tensor's shape is that of the model; `blk.` begins the names of the blocks that repeat."""
    tensors = [tensor for path in checkpoint.glob("*.gguf") for tensor in read_gguf_tensors(path)]
    layers = [
        tensor for tensor in tensors if tensor.name.startswith("blk.") and len(tensor.shape) > 1
    ]
    return StoredBits(linear_layers=_bits(layers), whole_model=_bits(tensors))


def _openvino_bits(model: Path, checkpoint: Path) -> StoredBits:
    """Of all weights together: OpenVINO's file of weights does not say which of them are whose."""
    weights = sum(math.prod(tensor.shape) for tensor in read_safetensors_headers(model).values())
    return StoredBits(
        whole_model=round(8 * weight_bytes(checkpoint) / weights, 3) if weights else None
    )


def _bits(tensors: Sequence[GgufTensor]) -> float | None:
    weights = sum(tensor.weights for tensor in tensors)
    return round(8 * sum(tensor.size_bytes for tensor in tensors) / weights, 3) if weights else None
