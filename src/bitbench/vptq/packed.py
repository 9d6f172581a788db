"""The layout that our CPU kernel reads (`native/src/vptq/matrix.hpp` draws it), made from the public one.

Codebooks are rounded to int8 with one scale each: this is the only step that loses anything, and `dequantize` says
exactly what is left, so the error of the rounding and the error of the kernel are told apart.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from bitbench.vptq.layout import Doubles, Floats, Indices, VptqLayer, restore_columns

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
    def weight_bytes(self) -> int:
        """What one product has to read: stream, codebooks, outliers and the vectors beside them."""
        parts: list[npt.NDArray[np.generic] | None] = [
            self.outliers,
            self.permutation,
            self.column_scale,
            self.column_bias,
            self.bias,
        ]
        for segment in self.segments:
            parts += [segment.stream, segment.main.entries]
            parts += [segment.residual.entries] if segment.residual else []
        return sum(part.nbytes for part in parts if part is not None)


def strip_bytes(main_bits: int, residual_bits: int) -> int:
    return _MAIN_BYTES[main_bits] + _RESIDUAL_BYTES[residual_bits]


def index_bits(entries: int, choices: tuple[int, ...]) -> int:
    """The narrowest index that the stream offers for a codebook of so many entries; raises ValueError."""
    for bits in choices:
        if entries <= 1 << bits:
            return bits
    raise ValueError(f"a codebook of {entries} entries needs an index of more than {choices[-1]} bits")


def pack_layer(layer: VptqLayer) -> PackedMatrix:
    """Raises ValueError where vectors are not 8 long: the kernel knows no other."""
    if layer.centroids.shape[-1] != VECTOR:
        raise ValueError(f"the CPU kernel reads vectors of {VECTOR} outputs, not of {layer.centroids.shape[-1]}")
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


def pack_stream(main: Indices, residual: Indices | None, main_bits: int, residual_bits: int) -> Bytes:
    """Indices [blocks, columns] to the stream of strips; padding columns name entry 0 and meet zeros."""
    parts = [_pack_main(_in_strips(main), main_bits)]
    if residual is not None:
        parts.append(_pack_residual(_in_strips(residual), residual_bits))
    return np.ascontiguousarray(np.concatenate(parts, axis=-1))


def unpack_stream(stream: Bytes, columns: int, main_bits: int, residual_bits: int) -> tuple[Indices, Indices | None]:
    """The inverse of `pack_stream`."""
    cut = _MAIN_BYTES[main_bits]
    main = _from_strips(_unpack_main(stream[..., :cut], main_bits), columns)
    if residual_bits == 0:
        return main, None
    return main, _from_strips(_unpack_residual(stream[..., cut:], residual_bits), columns)


def dequantize(matrix: PackedMatrix, blocks: slice = slice(None)) -> Doubles:
    """W as the kernel sees it, [out, in] in original column order; of some blocks of 8 outputs where asked."""
    parts = [] if matrix.outliers is None else [_rows(matrix.outliers[blocks].astype(np.float64))]
    for segment in matrix.segments:
        residual_bits = segment.residual.bits if segment.residual else 0
        main, residual = unpack_stream(segment.stream[blocks], segment.columns, segment.main.bits, residual_bits)
        part = _decode(segment.main, main)
        if segment.residual is not None and residual is not None:
            part = part + _decode(segment.residual, residual)
        parts.append(_rows(part))
    weight = np.concatenate(parts, axis=1)
    first, last, _ = blocks.indices(-(-matrix.out_features // VECTOR))
    weight = weight[: min(VECTOR * last, matrix.out_features) - VECTOR * first]
    return restore_columns(weight, matrix.permutation, matrix.column_scale, matrix.column_bias)


def native_matrix(matrix: PackedMatrix) -> "VptqMatrix":
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


def _pack_group(layer: VptqLayer, group: int) -> PackedSegment:
    centroids, indices = layer.centroids[group], layer.indices[group]
    main = pack_codebook(centroids, index_bits(len(centroids), MAIN_BITS))
    residual, residual_indices = None, None
    if layer.residual_centroids is not None and layer.residual_indices is not None:
        second = layer.residual_centroids[group]
        residual = pack_codebook(second, index_bits(len(second), RESIDUAL_BITS))
        residual_indices = layer.residual_indices[group]
    stream = pack_stream(indices, residual_indices, main.bits, residual.bits if residual else 0)
    return PackedSegment(indices.shape[1], main, residual, stream)


def _dense_outliers(layer: VptqLayer) -> Floats | None:
    if layer.outliers is None:
        return None
    vectors = layer.outliers.centroids[layer.outliers.indices]  # [blocks of their own length, columns, v]
    columns = vectors.shape[1]
    rows = vectors.transpose(0, 2, 1).reshape(-1, columns)[: layer.out_features]
    padded = np.pad(rows, ((0, -layer.out_features % VECTOR), (0, 0)))
    return np.ascontiguousarray(padded.reshape(-1, VECTOR, columns).transpose(0, 2, 1), dtype=np.float32)


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
    low = at & 0xFFF
    g = [low[:, :, i] for i in range(8)]
    a = g[0] | g[1] << 12 | (g[6] & 0xFF) << 24
    b = g[2] | g[3] << 12 | (g[7] & 0xFF) << 24
    c = g[4] | g[5] << 12 | (g[6] >> 8) << 24 | (g[7] >> 8) << 28
    parts = [_as_bytes(np.concatenate([a, b, c], axis=-1))]
    if bits == 13:
        parts.append(_bit_plane(at, 12))
    return np.concatenate(parts, axis=-1)


def _unpack_main(stream: Bytes, bits: int) -> npt.NDArray[np.uint32]:
    if bits == 16:
        return _unpack16(stream)
    words = _as_words(stream[..., :96])
    a, b, c = words[..., :8], words[..., 8:16], words[..., 16:]
    mask = np.uint32(0xFFF)
    fields = [a & mask, a >> 12 & mask, b & mask, b >> 12 & mask, c & mask, c >> 12 & mask]
    fields += [a >> 24 | c >> 16 & 0xF00, b >> 24 | c >> 20 & 0xF00]
    found = np.stack(fields, axis=2)
    return found | _from_bit_plane(stream[..., 96:], 12) if bits == 13 else found


def _pack_residual(at: npt.NDArray[np.uint32], bits: int) -> Bytes:
    if bits == 16:
        return _pack16(at)
    if bits == 8:
        return at.reshape(*at.shape[:2], STRIP).astype(np.uint8)
    blocks, strips = at.shape[:2]
    # [h, j, i] to [h, i, j]: byte 32 h + 4 i + j belongs to column 8 (4 h + j) + i
    low = (at & 0xFF).astype(np.uint8).reshape(blocks, strips, 2, 4, 8).transpose(0, 1, 2, 4, 3)
    return np.concatenate([low.reshape(blocks, strips, STRIP), _bit_plane(at, 8)], axis=-1)


def _unpack_residual(stream: Bytes, bits: int) -> npt.NDArray[np.uint32]:
    if bits == 16:
        return _unpack16(stream)
    blocks, strips = stream.shape[:2]
    if bits == 8:
        return stream.reshape(blocks, strips, 8, 8).astype(np.uint32)
    low = stream[..., :STRIP].reshape(blocks, strips, 2, 8, 4).transpose(0, 1, 2, 4, 3)
    return low.reshape(blocks, strips, 8, 8).astype(np.uint32) | _from_bit_plane(stream[..., STRIP:], 8)


def _pack16(at: npt.NDArray[np.uint32]) -> Bytes:
    words = at[:, :, 0::2] | at[:, :, 1::2] << np.uint32(16)  # [blocks, strips, h, i]
    return _as_bytes(words.reshape(*at.shape[:2], 32))


def _unpack16(stream: Bytes) -> npt.NDArray[np.uint32]:
    words = _as_words(stream).reshape(*stream.shape[:2], 4, 8)
    return np.stack([words & 0xFFFF, words >> 16], axis=3).reshape(*stream.shape[:2], 8, 8)


def _bit_plane(at: npt.NDArray[np.uint32], bit: int) -> Bytes:
    """Bit g of byte i is the given bit of column 8 g + i."""
    return np.packbits((at >> bit & 1).astype(np.uint8), axis=2, bitorder="little")[:, :, 0]


def _from_bit_plane(plane: Bytes, bit: int) -> npt.NDArray[np.uint32]:
    spread = np.unpackbits(plane[:, :, np.newaxis], axis=2, bitorder="little")
    return spread.astype(np.uint32) << np.uint32(bit)


def _as_bytes(words: npt.NDArray[np.uint32]) -> Bytes:
    return np.ascontiguousarray(words, dtype="<u4").view(np.uint8)


def _as_words(stream: Bytes) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(stream).view("<u4").astype(np.uint32, copy=False)


def _decode(codebook: PackedCodebook, indices: Indices) -> Doubles:
    return (codebook.entries[indices].astype(np.float64) - OFFSET) * codebook.scale


def _rows(vectors: Doubles) -> Doubles:
    """[blocks, columns, 8] to [outputs, columns]"""
    return vectors.transpose(0, 2, 1).reshape(-1, vectors.shape[1])
