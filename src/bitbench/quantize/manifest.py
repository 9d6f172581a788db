"""The manifest next to a variant's checkpoint: its inputs, its making, and its bits per weight."""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from bitbench.quantize.checkpoint import GgufTensor, collect_linear_layers, read_gguf_tensors
from bitbench.study.base import Record
from bitbench.study.recipe import Recipe
from bitbench.util.model_files import StoredTensor, read_safetensors_headers

MANIFEST_FORMAT = 1
# History of MANIFEST_FORMAT:
#   1  first published form


class CalibrationFacts(Record):
    description: str
    content_hash: str
    samples: int | None = None  # really used: short texts give fewer than requested
    tokens: int | None = None  # in all samples together


class WorkerFacts(Record):
    """The facts that a backend reports about its work."""

    versions: dict[str, str]
    peak_memory_bytes: int | None = None  # resident, in the worker alone
    samples: int | None = None
    tokens: int | None = None
    # Layers that GPTQ could not solve and rounded to the nearest value.
    rounded_instead: tuple[str, ...] = ()
    # Experts of a mixture that no token of the calibration text reached.
    unreached: tuple[str, ...] = ()
    # Tensors whose rows do not fit the type of a GGUF recipe, counted by the type that llama.cpp
    # chose: "q5_0 instead of q4_K".
    stored_otherwise: dict[str, int] = Field(default_factory=dict)


class StoredBits(Record):
    """Bits per weight as stored, scales and zero points included."""

    linear_layers: float | None = None  # the quantized ones
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
    """Return the size of the weight files in a folder."""
    size = 0
    for path in folder.iterdir():
        if path.suffix in _WEIGHT_SUFFIXES or path.name == _OPENVINO_WEIGHTS:
            size += path.stat().st_size
    return size


def hash_checkpoint_files(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file by its path relative to the folder, in sorted order."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            hashes[str(path.relative_to(folder))] = digest
    return hashes


def hash_checkpoint_content(hashes: Mapping[str, str]) -> str:
    """Return one sha256 over all files' paths and hashes."""
    lines = [f"{name}\0{digest}\n" for name, digest in hashes.items()]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def compute_stored_bits(model: Path, checkpoint: Path, recipe: Recipe) -> StoredBits:
    """Return a variant's bits per weight, relative to the number of weights in the model.

    A packed tensor's own shape does not tell that number.
    """
    if recipe.gguf_type:
        return _compute_gguf_bits(checkpoint)
    if recipe.openvino_type:
        return _compute_openvino_bits(model, checkpoint)
    before = read_safetensors_headers(model)
    after = read_safetensors_headers(checkpoint)
    if not before or not after:
        return StoredBits()
    layers: Mapping[str, StoredTensor] = {}
    if recipe.ignored is not None:
        layers = collect_linear_layers(before, recipe.ignored)
    layer_bytes = 0
    for name, tensor in after.items():
        if _is_of(name, layers) and not name.endswith(".bias"):
            layer_bytes += tensor.size_bytes
    stored_bytes = sum(tensor.size_bytes for tensor in after.values())
    return StoredBits(
        linear_layers=_compute_bits_per_weight(layer_bytes, _count_weights(layers)),
        whole_model=_compute_bits_per_weight(stored_bytes, _count_weights(before)),
    )


def _count_weights(tensors: Mapping[str, StoredTensor]) -> int:
    return sum(math.prod(tensor.shape) for tensor in tensors.values())


def _compute_bits_per_weight(size_bytes: int, weights: int) -> float | None:
    return round(8 * size_bytes / weights, 3) if weights else None


def _is_of(tensor: str, layers: Collection[str]) -> bool:
    """Return True for `LAYER.weight_packed`, or VPTQ's `LAYER.centroids.weight`, a level deeper."""
    owner = tensor.rpartition(".")[0]
    return owner in layers or owner.rpartition(".")[0] in layers


def _compute_gguf_bits(checkpoint: Path) -> StoredBits:
    """Return the bits of GGUF files, whose tensors have the model's shapes.

    `blk.` begins the names in the blocks that repeat.
    """
    all_tensors: list[GgufTensor] = []
    for path in checkpoint.glob("*.gguf"):
        all_tensors += read_gguf_tensors(path)
    layers = [
        tensor for tensor in all_tensors if tensor.name.startswith("blk.") and len(tensor.shape) > 1
    ]
    return StoredBits(
        linear_layers=_compute_tensor_bits(layers), whole_model=_compute_tensor_bits(all_tensors)
    )


def _compute_tensor_bits(tensors: Sequence[GgufTensor]) -> float | None:
    size_bytes = sum(tensor.size_bytes for tensor in tensors)
    return _compute_bits_per_weight(size_bytes, sum(tensor.weights for tensor in tensors))


def _compute_openvino_bits(model: Path, checkpoint: Path) -> StoredBits:
    """Return the bits of the whole model: OpenVINO's weight file does not name its layers."""
    weights = _count_weights(read_safetensors_headers(model))
    return StoredBits(whole_model=_compute_bits_per_weight(weight_bytes(checkpoint), weights))
