"""VPTQ's public layout: what the tensors of a linear layer mean, in plain numpy, their names in a checkpoint, and
its `quantization_config`.

W is [out, in]. A vector is `vector_len` consecutive outputs of one input column; it is stored as the index of a main
centroid and, where there is a residual codebook, of a residual centroid that is added. The columns lie in permuted
order: first the outlier columns, which have a codebook of their own, then the groups, each with its pair of
codebooks.

Every pair in an entry is (outliers, main); -1 means that there is none. Numbers are bfloat16 or half precision on
disk; numpy knows no bfloat16, so whoever reads gives those as float32.
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
    """The tensors of one layer, indices unpacked."""

    in_features: int
    out_features: int
    centroids: Floats  # [groups, C, v]
    indices: Indices  # [groups, ceil(out / v), columns of a group]
    residual_centroids: Floats | None = None  # [groups, R, v]
    residual_indices: Indices | None = None  # as `indices`
    outliers: Outliers | None = None
    permutation: npt.NDArray[np.int64] | None = (
        None  # position in the stored order -> original column
    )
    weight_scale: Floats | None = None  # per original column
    weight_bias: Floats | None = None  # per original column
    bias: Floats | None = None  # per output


def pack_layout_indices(
    main: Indices, residual: Indices | None, main_bits: int, residual_bits: int
) -> Words:
    """Indices [..., columns] to words [..., ceil(columns * bits / 32)].

    The residual index stands above the main one; the bits of successive columns follow each other, lowest first, and
    each row is padded to a word on its own.
    """
    bits = main_bits + residual_bits
    merged = main.astype(np.uint64)
    if residual is not None:
        merged = merged | residual.astype(np.uint64) << np.uint64(main_bits)
    spread = (merged[..., np.newaxis] >> np.arange(bits, dtype=np.uint64) & np.uint64(1)).astype(
        np.uint8
    )
    flat = spread.reshape(*main.shape[:-1], main.shape[-1] * bits)
    padding = -flat.shape[-1] % WORD_BITS
    flat = np.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, padding)])
    return np.packbits(flat, axis=-1, bitorder="little").view("<i4")


def unpack_layout_indices(
    words: Words, columns: int, main_bits: int, residual_bits: int
) -> tuple[Indices, Indices | None]:
    """The inverse of `pack_layout_indices`; the residual is None where it has no bits."""
    bits = main_bits + residual_bits
    flat = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    spread = flat[..., : columns * bits].reshape(*words.shape[:-1], columns, bits)
    main = _join(spread[..., :main_bits])
    return main, _join(spread[..., main_bits:]) if residual_bits else None


def _join(bits: npt.NDArray[np.uint8]) -> Indices:
    weights = np.left_shift(1, np.arange(bits.shape[-1]))
    return np.asarray(bits @ weights, dtype=np.uint16)


def dequantize_layout(layer: VptqLayer) -> Doubles:
    """W as [out, in], in original column order."""
    parts = (
        []
        if layer.outliers is None
        else [_look_up(layer.outliers.centroids, layer.outliers.indices, layer)]
    )
    for group, (centroids, indices) in enumerate(zip(layer.centroids, layer.indices, strict=True)):
        part = _look_up(centroids, indices, layer)
        if layer.residual_centroids is not None and layer.residual_indices is not None:
            part = part + _look_up(
                layer.residual_centroids[group], layer.residual_indices[group], layer
            )
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
    """From the stored order of columns to the original one, with their scale and bias."""
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
    """What `config_for_layers` says about a layer, in the words of the public models."""

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
    quant_method: str
    config_for_layers: Mapping[str, LayerConfig]
    shared_layer_config: Mapping[str, LayerConfig]  # by the last part of a layer's name


def vptq_layout_config(name: str, config: QuantizationConfig) -> LayerConfig | None:
    """What is said about a layer, by its own name or by that which it shares; None for one that is not quantized."""
    own, shared = config.get("config_for_layers") or {}, config.get("shared_layer_config") or {}
    return own.get(name) or shared.get(name.rpartition(".")[2])


def vptq_layer_from_layout(tensors: Mapping[str, Tensor], config: LayerConfig) -> VptqLayer:
    """From the tensors by their names within the layer; raises ValueError where they do not fit the entry."""
    try:
        return _read(tensors, config)
    except KeyError as error:
        raise ValueError(
            f"this VPTQ layer lacks {error.args[0]}, which its configuration asks for"
        ) from None


def _read(tensors: Mapping[str, Tensor], config: LayerConfig) -> VptqLayer:
    groups, vector = config["group_num"], config["vector_lens"][1]
    entries, residual = config["num_centroids"][1], max(0, config["num_res_centroids"][1])
    outlier_columns = config["outlier_size"]
    columns = (
        config["in_features"] - outlier_columns
    ) // groups  # `group_size` is -1 in some public files
    blocks = -(-config["out_features"] // vector)
    if config["is_indice_packed"]:
        words = _view(tensors["indices"], np.int32)
        main, second = unpack_layout_indices(
            words, columns, _bits(entries), _bits(residual) if residual else 0
        )
    else:
        main = _view(tensors["indices"], np.uint16)
        second = _view(tensors["res_indices"], np.uint16) if residual else None
    if main.shape != (groups, blocks, columns):
        raise ValueError(
            f"indices have the shape {main.shape}, but {(groups, blocks, columns)} follows from the entry"
        )
    permutation = (
        _view(tensors["perm"], np.uint16).astype(np.int64) if config["enable_perm"] else None
    )
    return VptqLayer(
        in_features=config["in_features"],
        out_features=config["out_features"],
        centroids=_floats(tensors["centroids.weight"]).reshape(groups, entries, vector),
        indices=main,
        residual_centroids=_floats(tensors["res_centroids.weight"]).reshape(
            groups, residual, vector
        )
        if residual
        else None,
        residual_indices=second,
        outliers=_outliers(tensors, config) if outlier_columns else None,
        permutation=permutation,
        weight_scale=_floats(tensors["weight_scale"]).ravel() if config["enable_norm"] else None,
        weight_bias=_floats(tensors["weight_bias"]).ravel() if config["enable_norm"] else None,
        bias=_floats(tensors["bias"]) if config.get("bias") else None,
    )


def _outliers(tensors: Mapping[str, Tensor], config: LayerConfig) -> Outliers:
    vector, entries = config["vector_lens"][0], config["num_centroids"][0]
    centroids = _floats(tensors["outlier_centroids.weight"]).reshape(entries, vector)
    return Outliers(centroids, _view(tensors["outlier_indices"], np.uint16)[0])


def _bits(entries: int) -> int:
    bits = entries.bit_length() - 1
    if entries != 1 << bits:
        raise ValueError(f"a codebook of {entries} entries has no whole number of bits per index")
    return bits


def _view(stored: Tensor, wanted: type[_Integer]) -> npt.NDArray[_Integer]:
    """Integers of the same size may be stored as floats (`indices_as_float`) or signed; wider ones count by value."""
    dense = np.ascontiguousarray(stored)
    return (
        dense.view(wanted) if dense.itemsize == np.dtype(wanted).itemsize else dense.astype(wanted)
    )


def _floats(stored: Tensor) -> Floats:
    return np.ascontiguousarray(stored, dtype=np.float32)
