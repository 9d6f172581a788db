"""VPTQ's public layout in plain numpy: the tensors of a linear layer and its configuration.

W is [out, in]. A vector is `vector_len` consecutive outputs of one input column. It is stored as
the index of a main centroid. With a residual codebook, it also has the index of a residual
centroid, which is added. The columns are in permuted order: first the outlier columns, which have
their own codebook, then the groups, each with its pair of codebooks.

Each pair in a layer's configuration is (outliers, main), and -1 means that the part is missing.
Numbers are bfloat16 or half precision on disk. numpy has no bfloat16, so readers convert bfloat16
to float32.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Doubles: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.uint16]
Words: TypeAlias = npt.NDArray[np.int32]

WORD_BITS = 32


@dataclass(frozen=True)
class Outliers:
    """The first columns in permuted order, with a codebook of their own and no residual."""

    centroids: Floats  # [C, v]
    indices: Indices  # [ceil(out / v), columns]


@dataclass(frozen=True)
class VptqLayer:
    """The tensors of one layer, with unpacked indices."""

    in_features: int
    out_features: int
    centroids: Floats  # [groups, C, v]
    indices: Indices  # [groups, ceil(out / v), columns of a group]
    residual_centroids: Floats | None = None  # [groups, R, v]
    residual_indices: Indices | None = None  # as `indices`
    outliers: Outliers | None = None
    permutation: npt.NDArray[np.int64] | None = None  # stored position -> original column
    weight_scale: Floats | None = None  # per original column
    weight_bias: Floats | None = None  # per original column
    bias: Floats | None = None  # per output


def pack_layout_indices(
    main: Indices, residual: Indices | None, main_bits: int, residual_bits: int
) -> Words:
    """Pack indices [..., columns] into words [..., ceil(columns * bits / 32)].

    The residual index is above the main index. The bits of successive columns follow each other,
    lowest first. Each row is padded to a whole word.
    """
    bits = main_bits + residual_bits
    merged = main.astype(np.uint64)
    if residual is not None:
        merged = merged | residual.astype(np.uint64) << np.uint64(main_bits)
    positions = np.arange(bits, dtype=np.uint64)
    spread = (merged[..., np.newaxis] >> positions & np.uint64(1)).astype(np.uint8)
    flat = spread.reshape(*main.shape[:-1], main.shape[-1] * bits)
    padding = -flat.shape[-1] % WORD_BITS
    flat = np.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, padding)])
    return np.packbits(flat, axis=-1, bitorder="little").view("<i4")


def unpack_layout_indices(
    words: Words, columns: int, main_bits: int, residual_bits: int
) -> tuple[Indices, Indices | None]:
    """Unpack the words of `pack_layout_indices`. The residual is None if it has no bits."""
    bits = main_bits + residual_bits
    flat = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    spread = flat[..., : columns * bits].reshape(*words.shape[:-1], columns, bits)
    main = _join_bits(spread[..., :main_bits])
    if not residual_bits:
        return main, None
    return main, _join_bits(spread[..., main_bits:])


def _join_bits(bits: npt.NDArray[np.uint8]) -> Indices:
    weights = np.left_shift(1, np.arange(bits.shape[-1]))
    return np.asarray(bits @ weights, dtype=np.uint16)


def dequantize_layout(layer: VptqLayer) -> Doubles:
    """Return W as [out, in], in original column order."""
    parts = []
    if layer.outliers is not None:
        parts.append(_look_up(layer.outliers.centroids, layer.outliers.indices, layer))
    for group, (centroids, indices) in enumerate(zip(layer.centroids, layer.indices, strict=True)):
        part = _look_up(centroids, indices, layer)
        if layer.residual_centroids is not None and layer.residual_indices is not None:
            residual_centroids = layer.residual_centroids[group]
            part = part + _look_up(residual_centroids, layer.residual_indices[group], layer)
        parts.append(part)
    return restore_layout_columns(
        np.concatenate(parts, axis=1), layer.permutation, layer.weight_scale, layer.weight_bias
    )


def restore_layout_columns(
    stored: Doubles,
    permutation: npt.NDArray[np.integer] | None,
    weight_scale: Floats | None,
    weight_bias: Floats | None,
) -> Doubles:
    """Return the columns in original order, with their scale and bias."""
    weight = stored if permutation is None else stored[:, np.argsort(permutation)]
    if weight_scale is not None:
        weight = weight * weight_scale.astype(np.float64)
    return weight if weight_bias is None else weight + weight_bias.astype(np.float64)


def _look_up(centroids: Floats, indices: Indices, layer: VptqLayer) -> Doubles:
    vectors = centroids[indices].astype(np.float64)  # [blocks, columns, v]
    rows = vectors.transpose(0, 2, 1).reshape(-1, indices.shape[1])
    return rows[: layer.out_features]


METHOD = "vptq"  # `quant_method` of a quantization_config
Tensor: TypeAlias = npt.NDArray[np.generic]
_Integer = TypeVar("_Integer", np.int32, np.uint16)


class LayerConfig(TypedDict):
    """A layer's configuration in `config_for_layers`, with the keys of the public models."""

    in_features: int
    out_features: int
    vector_lens: Sequence[int]
    num_centroids: Sequence[int]
    num_res_centroids: Sequence[int]
    group_num: int
    group_size: int
    outlier_size: int
    indices_as_float: bool
    enable_norm: bool
    enable_perm: bool
    is_indice_packed: bool
    bias: bool


class QuantizationConfig(TypedDict, total=False):
    """The `quantization_config` of a checkpoint."""

    quant_method: str
    config_for_layers: Mapping[str, LayerConfig]
    shared_layer_config: Mapping[str, LayerConfig]  # by the last part of a layer's name


def find_layer_config(name: str, config: QuantizationConfig) -> LayerConfig | None:
    """Return the configuration of a layer, by its full or shared name, or None if not quantized."""
    by_name = config.get("config_for_layers") or {}
    shared = config.get("shared_layer_config") or {}
    return by_name.get(name) or shared.get(name.rpartition(".")[2])


def parse_vptq_layer(tensors: Mapping[str, Tensor], config: LayerConfig) -> VptqLayer:
    """Return the layer that these tensors form. Their keys are names within the layer.

    Raise ValueError if they do not fit its configuration.
    """
    try:
        return _read_layer(tensors, config)
    except KeyError as error:
        raise ValueError(
            f"this VPTQ layer lacks {error.args[0]}, which its configuration asks for"
        ) from None


def _read_layer(tensors: Mapping[str, Tensor], config: LayerConfig) -> VptqLayer:
    groups = config["group_num"]
    vector = config["vector_lens"][1]
    entries = config["num_centroids"][1]
    residual_entries = max(0, config["num_res_centroids"][1])
    outlier_columns = config["outlier_size"]
    # Computed, because `group_size` is -1 in some public files.
    columns = (config["in_features"] - outlier_columns) // groups
    blocks = -(-config["out_features"] // vector)
    indices, residual_indices = _read_indices(tensors, config, columns, entries, residual_entries)
    if indices.shape != (groups, blocks, columns):
        raise ValueError(
            f"indices have the shape {indices.shape}, but {(groups, blocks, columns)} follows from "
            "the entry"
        )
    permutation = None
    if config["enable_perm"]:
        permutation = _convert_integers(tensors["perm"], np.uint16).astype(np.int64)
    centroids = _convert_floats(tensors["centroids.weight"]).reshape(groups, entries, vector)
    residual_centroids = None
    if residual_entries:
        stored = _convert_floats(tensors["res_centroids.weight"])
        residual_centroids = stored.reshape(groups, residual_entries, vector)
    outliers = _read_outliers(tensors, config) if outlier_columns else None
    weight_scale = None
    weight_bias = None
    if config["enable_norm"]:
        weight_scale = _convert_floats(tensors["weight_scale"]).ravel()
        weight_bias = _convert_floats(tensors["weight_bias"]).ravel()
    bias = _convert_floats(tensors["bias"]) if config.get("bias") else None
    return VptqLayer(
        in_features=config["in_features"],
        out_features=config["out_features"],
        centroids=centroids,
        indices=indices,
        residual_centroids=residual_centroids,
        residual_indices=residual_indices,
        outliers=outliers,
        permutation=permutation,
        weight_scale=weight_scale,
        weight_bias=weight_bias,
        bias=bias,
    )


def _read_indices(
    tensors: Mapping[str, Tensor],
    config: LayerConfig,
    columns: int,
    entries: int,
    residual_entries: int,
) -> tuple[Indices, Indices | None]:
    """Return the main indices, and the residual indices or None without a residual codebook."""
    if config["is_indice_packed"]:
        words = _convert_integers(tensors["indices"], np.int32)
        residual_bits = _count_bits(residual_entries) if residual_entries else 0
        return unpack_layout_indices(words, columns, _count_bits(entries), residual_bits)
    indices = _convert_integers(tensors["indices"], np.uint16)
    if not residual_entries:
        return indices, None
    return indices, _convert_integers(tensors["res_indices"], np.uint16)


def _read_outliers(tensors: Mapping[str, Tensor], config: LayerConfig) -> Outliers:
    """Return the outlier columns. Their sizes come first in each pair of the configuration.

    A checkpoint stores their indices as a single group: [1, blocks, columns].
    """
    entries = config["num_centroids"][0]
    vector = config["vector_lens"][0]
    centroids = _convert_floats(tensors["outlier_centroids.weight"]).reshape(entries, vector)
    return Outliers(centroids, _convert_integers(tensors["outlier_indices"], np.uint16)[0])


def _count_bits(entries: int) -> int:
    """Return the bits of an index. Raise ValueError if `entries` is not a power of two."""
    bits = entries.bit_length() - 1
    if entries != 1 << bits:
        raise ValueError(f"a codebook of {entries} entries has no whole number of bits per index")
    return bits


def _convert_integers(stored: Tensor, dtype: type[_Integer]) -> npt.NDArray[_Integer]:
    """Return stored integers in another type.

    Integers of the same size keep their bits, because a checkpoint may store them as floats
    (`indices_as_float`) or signed. Integers of another size keep their values.
    """
    dense = np.ascontiguousarray(stored)
    if dense.itemsize == np.dtype(dtype).itemsize:
        return dense.view(dtype)
    return dense.astype(dtype)


def _convert_floats(stored: Tensor) -> Floats:
    return np.ascontiguousarray(stored, dtype=np.float32)
