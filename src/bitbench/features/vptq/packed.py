"""The layout that our CPU kernel reads (`native/src/vptq/matrix.hpp` draws it), made from the public one.

Codebooks are rounded to int8 with one scale each: this is the only step that loses anything, and `dequantize` says
exactly what is left, so the error of the rounding and the error of the kernel are told apart.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from bitbench.features.vptq.layout import (
    Doubles,
    Floats,
    Indices,
    VptqLayer,
    restore_layout_columns,
)

if TYPE_CHECKING:
    from bitbench._native import VptqMatrix

Bytes: TypeAlias = npt.NDArray[np.uint8]

VECTOR = 8
STRIP = 64
OFFSET = 128
INT8_MAX = 127
MAIN_BITS = (12, 13, 16)
RESIDUAL_BITS = (8, 9, 16)
_MAIN_BYTES = {12: 96, 13: 104, 16: 128}
_RESIDUAL_BYTES = {0: 0, 8: 64, 9: 72, 16: 128}


@dataclass(frozen=True)
class PackedCodebook:
    entries: Bytes  # [2 ** bits, 8], offset by 128
    scale: float
    bits: int  # of an index in the stream


@dataclass(frozen=True)
class PackedSegment:
    """Columns that share a pair of codebooks."""

    columns: int
    main: PackedCodebook
    residual: PackedCodebook | None
    stream: Bytes  # [blocks, strips, bytes of a strip]


@dataclass(frozen=True)
class PackedMatrix:
    in_features: int
    out_features: int
    segments: tuple[PackedSegment, ...]
    outliers: Floats | None = None  # [blocks, columns, 8], dense
    permutation: npt.NDArray[np.int32] | None = None
    column_scale: Floats | None = None
    column_bias: Floats | None = None
    bias: Floats | None = None

    @property
    def arrays(self) -> list[npt.NDArray[np.generic]]:
        """All that lies in memory for it, and that one product has to read."""
        parts: list[npt.NDArray[np.generic] | None] = [
            self.outliers,
            self.permutation,
            self.column_scale,
        ]
        parts += [self.column_bias, self.bias]
        for segment in self.segments:
            residual = segment.residual.entries if segment.residual else None
            parts += [segment.stream, segment.main.entries, residual]
        return [part for part in parts if part is not None]


def strip_bytes(main_bits: int, residual_bits: int) -> int:
    return _MAIN_BYTES[main_bits] + _RESIDUAL_BYTES[residual_bits]


def packed_index_bits(entries: int, choices: tuple[int, ...]) -> int:
    """The narrowest index that the stream offers for a codebook of so many entries; raises ValueError."""
    for bits in choices:
        if entries <= 1 << bits:
            return bits
    raise ValueError(
        f"a codebook of {entries} entries needs an index of more than {choices[-1]} bits"
    )


def pack_layer(layer: VptqLayer) -> PackedMatrix:
    """Raises ValueError where vectors are not 8 long: the kernel knows no other."""
    if layer.centroids.shape[-1] != VECTOR:
        raise ValueError(
            f"the CPU kernel reads vectors of {VECTOR} outputs, not of {layer.centroids.shape[-1]}"
        )
    segments = tuple(_pack_group(layer, group) for group in range(layer.centroids.shape[0]))
    return PackedMatrix(
        in_features=layer.in_features,
        out_features=layer.out_features,
        segments=segments,
        outliers=_dense_outliers(layer),
        permutation=None if layer.permutation is None else layer.permutation.astype(np.int32),
        column_scale=layer.weight_scale,
        column_bias=layer.weight_bias,
        bias=layer.bias,
    )


def pack_codebook(centroids: Floats, bits: int) -> PackedCodebook:
    """Rounds to int8 with one scale and fills up to as many entries as the index can name."""
    scale = float(np.abs(centroids).max()) / INT8_MAX or 1.0
    rounded = np.rint(centroids / scale).clip(-INT8_MAX, INT8_MAX).astype(np.int16) + OFFSET
    entries = np.full((1 << bits, VECTOR), OFFSET, dtype=np.uint8)
    entries[: len(rounded)] = rounded
    return PackedCodebook(entries, scale, bits)


def pack_stream(
    main: Indices, residual: Indices | None, main_bits: int, residual_bits: int
) -> Bytes:
    """Indices [blocks, columns] to the stream of strips; padding columns name entry 0 and meet zeros."""
    parts = [_pack_main(_in_strips(main), main_bits)]
    if residual is not None:
        parts.append(_pack_residual(_in_strips(residual), residual_bits))
    return np.ascontiguousarray(np.concatenate(parts, axis=-1))


def unpack_stream(
    stream: Bytes, columns: int, main_bits: int, residual_bits: int
) -> tuple[Indices, Indices | None]:
    """The inverse of `pack_stream`."""
    cut = _MAIN_BYTES[main_bits]
    main = _from_strips(_unpack_main(stream[..., :cut], main_bits), columns)
    if residual_bits == 0:
        return main, None
    return main, _from_strips(_unpack_residual(stream[..., cut:], residual_bits), columns)


def dequantize_packed(matrix: PackedMatrix, blocks: slice = slice(None)) -> Doubles:
    """W as the kernel sees it, [out, in] in original column order; of some blocks of 8 outputs where asked."""
    parts = [] if matrix.outliers is None else [_rows(matrix.outliers[blocks].astype(np.float64))]
    for segment in matrix.segments:
        residual_bits = segment.residual.bits if segment.residual else 0
        main, residual = unpack_stream(
            segment.stream[blocks], segment.columns, segment.main.bits, residual_bits
        )
        part = _decode(segment.main, main)
        if segment.residual is not None and residual is not None:
            part = part + _decode(segment.residual, residual)
        parts.append(_rows(part))
    weight = np.concatenate(parts, axis=1)
    first, last, _ = blocks.indices(-(-matrix.out_features // VECTOR))
    weight = weight[: min(VECTOR * last, matrix.out_features) - VECTOR * first]
    return restore_layout_columns(
        weight, matrix.permutation, matrix.column_scale, matrix.column_bias
    )


def native_packed_matrix(matrix: PackedMatrix) -> "VptqMatrix":
    """The kernel's own object, which reads the arrays where they are."""
    from bitbench._native import VptqMatrix

    made = VptqMatrix(
        matrix.in_features,
        matrix.out_features,
        column_scale=matrix.column_scale,
        column_bias=matrix.column_bias,
        permutation=matrix.permutation,
        bias=matrix.bias,
        outliers=matrix.outliers,
    )
    for segment in matrix.segments:
        made.add_segment(
            columns=segment.columns,
            main_bits=segment.main.bits,
            residual_bits=segment.residual.bits if segment.residual else 0,
            stream=segment.stream,
            main=segment.main.entries,
            main_scale=segment.main.scale,
            residual=segment.residual.entries if segment.residual else None,
            residual_scale=segment.residual.scale if segment.residual else 0.0,
        )
    return made


def native_isa() -> str | None:
    """The instruction set that the native kernel uses here; None where there is no native part.

    Raises ValueError where BITBENCH_ISA names one that this processor does not run.
    """
    try:
        from bitbench._native import vptq_isas
    except ImportError:
        return None
    return vptq_isas()[0]


def _pack_group(layer: VptqLayer, group: int) -> PackedSegment:
    centroids, indices = layer.centroids[group], layer.indices[group]
    main = pack_codebook(centroids, packed_index_bits(len(centroids), MAIN_BITS))
    residual, residual_indices = None, None
    if layer.residual_centroids is not None and layer.residual_indices is not None:
        second = layer.residual_centroids[group]
        residual = pack_codebook(second, packed_index_bits(len(second), RESIDUAL_BITS))
        residual_indices = layer.residual_indices[group]
    stream = pack_stream(indices, residual_indices, main.bits, residual.bits if residual else 0)
    return PackedSegment(indices.shape[1], main, residual, stream)


def _dense_outliers(layer: VptqLayer) -> Floats | None:
    if layer.outliers is None:
        return None
    vectors = layer.outliers.centroids[
        layer.outliers.indices
    ]  # [blocks of their own length, columns, v]
    columns = vectors.shape[1]
    rows = vectors.transpose(0, 2, 1).reshape(-1, columns)[: layer.out_features]
    padded = np.pad(rows, ((0, -layer.out_features % VECTOR), (0, 0)))
    return np.ascontiguousarray(
        padded.reshape(-1, VECTOR, columns).transpose(0, 2, 1), dtype=np.float32
    )


def _in_strips(indices: Indices) -> npt.NDArray[np.uint32]:
    """[blocks, columns] to [blocks, strips, g, i]: column 8 g + i of a strip."""
    blocks, columns = indices.shape
    padded = np.pad(indices, ((0, 0), (0, -columns % STRIP)))
    return padded.reshape(blocks, -1, 8, 8).astype(np.uint32)


def _from_strips(indices: npt.NDArray[np.uint32], columns: int) -> Indices:
    return indices.reshape(indices.shape[0], -1)[:, :columns].astype(np.uint16)


def _pack_main(at: npt.NDArray[np.uint32], bits: int) -> Bytes:
    if bits == 16:
        return _pack16(at)
    g = [at[:, :, i] for i in range(8)]
    if bits == 12:
        a = g[6] & 0xFF | g[0] << 8 | g[1] << 20
        b = g[7] & 0xFF | g[2] << 8 | g[3] << 20
        c = g[6] >> 8 | g[7] >> 8 << 4 | g[4] << 8 | g[5] << 20
        return _as_bytes(a, b, c)
    a = g[0] | (g[6] & 0x3F) << 13 | g[1] << 19
    b = g[2] | (g[6] >> 6 & 0x3F) << 13 | g[3] << 19
    c = g[4] | (g[7] & 0x3F) << 13 | g[5] << 19
    rest = g[6] >> 12 | g[7] >> 6 << 1
    return np.concatenate([_as_bytes(a, b, c), rest.astype(np.uint8)], axis=-1)


def _unpack_main(stream: Bytes, bits: int) -> npt.NDArray[np.uint32]:
    if bits == 16:
        return _unpack16(stream)
    a, b, c = _as_words(stream[..., :96])
    if bits == 12:
        fields = [field for word in (a, b, c) for field in (word >> 8 & 0xFFF, word >> 20)]
        fields += [a & 0xFF | (c & 0xF) << 8, b & 0xFF | (c >> 4 & 0xF) << 8]
    else:
        rest = stream[..., 96:].astype(np.uint32)
        fields = [field for word in (a, b, c) for field in (word & 0x1FFF, word >> 19)]
        fields += [
            a >> 13 & 0x3F | (b >> 13 & 0x3F) << 6 | (rest & 1) << 12,
            c >> 13 & 0x3F | rest >> 1 << 6,
        ]
    return np.stack(fields, axis=2)


def _pack_residual(at: npt.NDArray[np.uint32], bits: int) -> Bytes:
    if bits == 16:
        return _pack16(at)
    if bits == 8:
        return at.reshape(*at.shape[:2], STRIP).astype(np.uint8)
    g = [at[:, :, i] for i in range(8)]
    a = g[0] | g[1] << 9 | g[2] << 18 | (g[6] & 0x1F) << 27
    b = g[3] | g[4] << 9 | g[5] << 18 | (g[7] & 0x1F) << 27
    rest = g[6] >> 5 | g[7] >> 5 << 4
    return np.concatenate([_as_bytes(a, b), rest.astype(np.uint8)], axis=-1)


def _unpack_residual(stream: Bytes, bits: int) -> npt.NDArray[np.uint32]:
    if bits == 16:
        return _unpack16(stream)
    if bits == 8:
        return stream.reshape(*stream.shape[:2], 8, 8).astype(np.uint32)
    a, b = _as_words(stream[..., :64])
    rest = stream[..., 64:].astype(np.uint32)
    fields = [word >> shift & 0x1FF for word in (a, b) for shift in (0, 9, 18)]
    fields += [a >> 27 | (rest & 0xF) << 5, b >> 27 | rest >> 4 << 5]
    return np.stack(fields, axis=2)


def _pack16(at: npt.NDArray[np.uint32]) -> Bytes:
    return _as_bytes(*(at[:, :, 2 * h] | at[:, :, 2 * h + 1] << 16 for h in range(4)))


def _unpack16(stream: Bytes) -> npt.NDArray[np.uint32]:
    return np.stack(
        [field for word in _as_words(stream) for field in (word & 0xFFFF, word >> 16)], axis=2
    )


def _as_bytes(*parts: npt.NDArray[np.integer]) -> Bytes:
    """Parts of 8 dwords, one after the other."""
    return np.ascontiguousarray(np.concatenate(parts, axis=-1), dtype="<u4").view(np.uint8)


def _as_words(stream: Bytes) -> list[npt.NDArray[np.uint32]]:
    """The inverse of `_as_bytes`."""
    words = np.ascontiguousarray(stream).view("<u4").astype(np.uint32, copy=False)
    return np.split(words, words.shape[-1] // 8, axis=-1)


def _decode(codebook: PackedCodebook, indices: Indices) -> Doubles:
    return (codebook.entries[indices].astype(np.float64) - OFFSET) * codebook.scale


def _rows(vectors: Doubles) -> Doubles:
    """[blocks, columns, 8] to [outputs, columns]"""
    return vectors.transpose(0, 2, 1).reshape(-1, vectors.shape[1])
