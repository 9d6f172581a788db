"""A linear layer in VPTQ's public layout: what its tensors mean, in plain numpy.

W is [out, in]. A vector is `vector_len` consecutive outputs of one input column; it is stored as the index of a main
centroid and, where there is a residual codebook, of a residual centroid that is added. The columns lie in permuted
order: first the outlier columns, which have a codebook of their own, then the groups, each with its pair of codebooks.
"""

from dataclasses import dataclass
from typing import TypeAlias

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
    permutation: npt.NDArray[np.int64] | None = None  # position in the stored order -> original column
    weight_scale: Floats | None = None  # per original column
    weight_bias: Floats | None = None  # per original column
    bias: Floats | None = None  # per output


def pack(main: Indices, residual: Indices | None, main_bits: int, residual_bits: int) -> Words:
    """Indices [..., columns] to words [..., ceil(columns * bits / 32)].

    The residual index stands above the main one; the bits of successive columns follow each other, lowest first, and
    each row is padded to a word on its own.
    """
    bits = main_bits + residual_bits
    merged = main.astype(np.uint64)
    if residual is not None:
        merged = merged | residual.astype(np.uint64) << np.uint64(main_bits)
    spread = (merged[..., np.newaxis] >> np.arange(bits, dtype=np.uint64) & np.uint64(1)).astype(np.uint8)
    flat = spread.reshape(*main.shape[:-1], main.shape[-1] * bits)
    padding = -flat.shape[-1] % WORD_BITS
    flat = np.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, padding)])
    return np.packbits(flat, axis=-1, bitorder="little").view("<i4")


def unpack(words: Words, columns: int, main_bits: int, residual_bits: int) -> tuple[Indices, Indices | None]:
    """The inverse of `pack`; the residual is None where it has no bits."""
    bits = main_bits + residual_bits
    flat = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    spread = flat[..., : columns * bits].reshape(*words.shape[:-1], columns, bits)
    main = _join(spread[..., :main_bits])
    return main, _join(spread[..., main_bits:]) if residual_bits else None


def _join(bits: npt.NDArray[np.uint8]) -> Indices:
    weights = np.left_shift(1, np.arange(bits.shape[-1]))
    return np.asarray(bits @ weights, dtype=np.uint16)


def dequantize(layer: VptqLayer) -> Doubles:
    """W as [out, in], in original column order."""
    parts = [] if layer.outliers is None else [_look_up(layer.outliers.centroids, layer.outliers.indices, layer)]
    for group, (centroids, indices) in enumerate(zip(layer.centroids, layer.indices, strict=True)):
        part = _look_up(centroids, indices, layer)
        if layer.residual_centroids is not None and layer.residual_indices is not None:
            part = part + _look_up(layer.residual_centroids[group], layer.residual_indices[group], layer)
        parts.append(part)
    return restore_columns(np.concatenate(parts, axis=1), layer.permutation, layer.weight_scale, layer.weight_bias)


def restore_columns(
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


def multiply(weight: Doubles, x: npt.NDArray[np.floating], bias: Floats | None = None) -> Doubles:
    """x W^T + bias in double precision: what every kernel is checked against."""
    product = x.astype(np.float64) @ weight.T
    return product if bias is None else product + bias.astype(np.float64)


def _look_up(centroids: Floats, indices: Indices, layer: VptqLayer) -> Doubles:
    vectors = centroids[indices].astype(np.float64)  # [blocks, columns, v]
    rows = vectors.transpose(0, 2, 1).reshape(-1, indices.shape[1])
    return rows[: layer.out_features]
