"""Convert VPTQ's public layout into the layout of the CPU kernel.

`native/src/vptq/matrix.hpp` draws that layout. Codebooks are rounded to int8 with one scale each,
which is the only lossy step. `dequantize_packed` returns the rounded weights exactly. So the error
of the rounding and the error of the kernel can be measured separately.
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
    """A codebook in int8 with one scale."""

    entries: Bytes  # [2 ** bits, 8], offset by 128
    scale: float
    bits: int  # of an index in the stream


@dataclass(frozen=True)
class PackedSegment:
    """A range of columns that share a pair of codebooks."""

    columns: int
    main: PackedCodebook
    residual: PackedCodebook | None
    stream: Bytes  # [blocks, strips, bytes of a strip]


@dataclass(frozen=True)
class PackedMatrix:
    """A layer in the layout of the CPU kernel."""

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
        """All its arrays in memory, which one product has to read."""
        parts: list[npt.NDArray[np.generic] | None] = [
            self.outliers,
            self.permutation,
            self.column_scale,
            self.column_bias,
            self.bias,
        ]
        for segment in self.segments:
            residual = segment.residual.entries if segment.residual else None
            parts += [segment.stream, segment.main.entries, residual]
        return [part for part in parts if part is not None]


def compute_strip_bytes(main_bits: int, residual_bits: int) -> int:
    """Return the bytes of one strip in the stream."""
    return _MAIN_BYTES[main_bits] + _RESIDUAL_BYTES[residual_bits]


def choose_index_bits(entries: int, choices: tuple[int, ...]) -> int:
    """Return the fewest bits of an index into a codebook of so many entries.

    Raise ValueError if none of the `choices` is enough.
    """
    for bits in choices:
        if entries <= 1 << bits:
            return bits
    raise ValueError(
        f"a codebook of {entries} entries needs an index of more than {choices[-1]} bits"
    )


def pack_layer(layer: VptqLayer) -> PackedMatrix:
    """Return the layer in the kernel's layout. Raise ValueError if its vectors are not 8 long."""
    if layer.centroids.shape[-1] != VECTOR:
        raise ValueError(
            f"the CPU kernel reads vectors of {VECTOR} outputs, not of {layer.centroids.shape[-1]}"
        )
    segments = [_pack_group(layer, group) for group in range(layer.centroids.shape[0])]
    permutation = None if layer.permutation is None else layer.permutation.astype(np.int32)
    return PackedMatrix(
        in_features=layer.in_features,
        out_features=layer.out_features,
        segments=tuple(segments),
        outliers=_expand_outliers(layer),
        permutation=permutation,
        column_scale=layer.weight_scale,
        column_bias=layer.weight_bias,
        bias=layer.bias,
    )


def pack_codebook(centroids: Floats, bits: int) -> PackedCodebook:
    """Round a codebook to int8 with one scale, and pad it to the entries that an index can have."""
    scale = float(np.abs(centroids).max()) / INT8_MAX or 1.0
    rounded = np.rint(centroids / scale).clip(-INT8_MAX, INT8_MAX).astype(np.int16) + OFFSET
    entries = np.full((1 << bits, VECTOR), OFFSET, dtype=np.uint8)
    entries[: len(rounded)] = rounded
    return PackedCodebook(entries, scale, bits)


def pack_stream(
    main: Indices, residual: Indices | None, main_bits: int, residual_bits: int
) -> Bytes:
    """Pack indices [blocks, columns] into the stream of strips.

    Columns of padding have index 0 and are multiplied with zeros.
    """
    parts = [_pack_main(_split_strips(main), main_bits)]
    if residual is not None:
        parts.append(_pack_residual(_split_strips(residual), residual_bits))
    return np.ascontiguousarray(np.concatenate(parts, axis=-1))


def unpack_stream(
    stream: Bytes, columns: int, main_bits: int, residual_bits: int
) -> tuple[Indices, Indices | None]:
    """Unpack the indices of `pack_stream`."""
    cut = _MAIN_BYTES[main_bits]
    main = _join_strips(_unpack_main(stream[..., :cut], main_bits), columns)
    if residual_bits == 0:
        return main, None
    return main, _join_strips(_unpack_residual(stream[..., cut:], residual_bits), columns)


def dequantize_packed(matrix: PackedMatrix, blocks: slice = slice(None)) -> Doubles:
    """Return W as in the kernel, [out, in], in original column order.

    With `blocks`, return only the rows of these blocks of 8 outputs.
    """
    parts = []
    if matrix.outliers is not None:
        parts.append(_convert_to_rows(matrix.outliers[blocks].astype(np.float64)))
    for segment in matrix.segments:
        residual_bits = segment.residual.bits if segment.residual else 0
        main, residual = unpack_stream(
            segment.stream[blocks], segment.columns, segment.main.bits, residual_bits
        )
        part = _decode_indices(segment.main, main)
        if segment.residual is not None and residual is not None:
            part = part + _decode_indices(segment.residual, residual)
        parts.append(_convert_to_rows(part))
    weight = np.concatenate(parts, axis=1)
    first, last, _ = blocks.indices(-(-matrix.out_features // VECTOR))
    weight = weight[: min(VECTOR * last, matrix.out_features) - VECTOR * first]
    return restore_layout_columns(
        weight, matrix.permutation, matrix.column_scale, matrix.column_bias
    )


def make_native_matrix(matrix: PackedMatrix) -> "VptqMatrix":
    """Return the kernel's own object, which shares the arrays."""
    from bitbench._native import VptqMatrix

    native = VptqMatrix(
        matrix.in_features,
        matrix.out_features,
        column_scale=matrix.column_scale,
        column_bias=matrix.column_bias,
        permutation=matrix.permutation,
        bias=matrix.bias,
        outliers=matrix.outliers,
    )
    for segment in matrix.segments:
        residual = segment.residual
        residual_bits = residual.bits if residual else 0
        residual_entries = residual.entries if residual else None
        residual_scale = residual.scale if residual else 0.0
        native.add_segment(
            columns=segment.columns,
            main_bits=segment.main.bits,
            residual_bits=residual_bits,
            stream=segment.stream,
            main=segment.main.entries,
            main_scale=segment.main.scale,
            residual=residual_entries,
            residual_scale=residual_scale,
        )
    return native


def find_native_isa() -> str | None:
    """Return the instruction set that the native kernel uses here, or None without a native part.

    Raise ValueError if BITBENCH_ISA names a set that this processor does not have.
    """
    try:
        from bitbench._native import vptq_isas
    except ImportError:
        return None
    return vptq_isas()[0]


def _pack_group(layer: VptqLayer, group: int) -> PackedSegment:
    centroids = layer.centroids[group]
    indices = layer.indices[group]
    main = pack_codebook(centroids, choose_index_bits(len(centroids), MAIN_BITS))
    residual = None
    residual_indices = None
    residual_bits = 0
    if layer.residual_centroids is not None and layer.residual_indices is not None:
        residual_centroids = layer.residual_centroids[group]
        residual_bits = choose_index_bits(len(residual_centroids), RESIDUAL_BITS)
        residual = pack_codebook(residual_centroids, residual_bits)
        residual_indices = layer.residual_indices[group]
    stream = pack_stream(indices, residual_indices, main.bits, residual_bits)
    return PackedSegment(indices.shape[1], main, residual, stream)


def _expand_outliers(layer: VptqLayer) -> Floats | None:
    """Return the outlier columns as [blocks, columns, 8], or None if none exist."""
    if layer.outliers is None:
        return None
    # [blocks, columns, v], in which v may differ from 8.
    vectors = layer.outliers.centroids[layer.outliers.indices]
    columns = vectors.shape[1]
    rows = vectors.transpose(0, 2, 1).reshape(-1, columns)[: layer.out_features]
    padded = np.pad(rows, ((0, -layer.out_features % VECTOR), (0, 0)))
    blocks = padded.reshape(-1, VECTOR, columns).transpose(0, 2, 1)
    return np.ascontiguousarray(blocks, dtype=np.float32)


def _split_strips(indices: Indices) -> npt.NDArray[np.uint32]:
    """Return [blocks, columns] as [blocks, strips, g, i], with column 8 g + i of a strip."""
    blocks, columns = indices.shape
    padded = np.pad(indices, ((0, 0), (0, -columns % STRIP)))
    return padded.reshape(blocks, -1, 8, 8).astype(np.uint32)


def _join_strips(indices: npt.NDArray[np.uint32], columns: int) -> Indices:
    return indices.reshape(indices.shape[0], -1)[:, :columns].astype(np.uint16)


def _pack_main(indices: npt.NDArray[np.uint32], bits: int) -> Bytes:
    if bits == 16:
        return _pack16(indices)
    g = [indices[:, :, i] for i in range(8)]
    if bits == 12:
        a = g[6] & 0xFF | g[0] << 8 | g[1] << 20
        b = g[7] & 0xFF | g[2] << 8 | g[3] << 20
        c = g[6] >> 8 | g[7] >> 8 << 4 | g[4] << 8 | g[5] << 20
        return _convert_to_bytes(a, b, c)
    a = g[0] | (g[6] & 0x3F) << 13 | g[1] << 19
    b = g[2] | (g[6] >> 6 & 0x3F) << 13 | g[3] << 19
    c = g[4] | (g[7] & 0x3F) << 13 | g[5] << 19
    rest = g[6] >> 12 | g[7] >> 6 << 1
    return np.concatenate([_convert_to_bytes(a, b, c), rest.astype(np.uint8)], axis=-1)


def _unpack_main(stream: Bytes, bits: int) -> npt.NDArray[np.uint32]:
    if bits == 16:
        return _unpack16(stream)
    a, b, c = _split_words(stream[..., :96])
    if bits == 12:
        fields = []
        for word in (a, b, c):
            fields += [word >> 8 & 0xFFF, word >> 20]
        fields += [a & 0xFF | (c & 0xF) << 8, b & 0xFF | (c >> 4 & 0xF) << 8]
    else:
        rest = stream[..., 96:].astype(np.uint32)
        fields = []
        for word in (a, b, c):
            fields += [word & 0x1FFF, word >> 19]
        fields += [
            a >> 13 & 0x3F | (b >> 13 & 0x3F) << 6 | (rest & 1) << 12,
            c >> 13 & 0x3F | rest >> 1 << 6,
        ]
    return np.stack(fields, axis=2)


def _pack_residual(indices: npt.NDArray[np.uint32], bits: int) -> Bytes:
    if bits == 16:
        return _pack16(indices)
    if bits == 8:
        return indices.reshape(*indices.shape[:2], STRIP).astype(np.uint8)
    g = [indices[:, :, i] for i in range(8)]
    a = g[0] | g[1] << 9 | g[2] << 18 | (g[6] & 0x1F) << 27
    b = g[3] | g[4] << 9 | g[5] << 18 | (g[7] & 0x1F) << 27
    rest = g[6] >> 5 | g[7] >> 5 << 4
    return np.concatenate([_convert_to_bytes(a, b), rest.astype(np.uint8)], axis=-1)


def _unpack_residual(stream: Bytes, bits: int) -> npt.NDArray[np.uint32]:
    if bits == 16:
        return _unpack16(stream)
    if bits == 8:
        return stream.reshape(*stream.shape[:2], 8, 8).astype(np.uint32)
    a, b = _split_words(stream[..., :64])
    rest = stream[..., 64:].astype(np.uint32)
    fields = []
    for word in (a, b):
        fields += [word & 0x1FF, word >> 9 & 0x1FF, word >> 18 & 0x1FF]
    fields += [a >> 27 | (rest & 0xF) << 5, b >> 27 | rest >> 4 << 5]
    return np.stack(fields, axis=2)


def _pack16(indices: npt.NDArray[np.uint32]) -> Bytes:
    words = [indices[:, :, i] | indices[:, :, i + 1] << 16 for i in range(0, 8, 2)]
    return _convert_to_bytes(*words)


def _unpack16(stream: Bytes) -> npt.NDArray[np.uint32]:
    fields = []
    for word in _split_words(stream):
        fields += [word & 0xFFFF, word >> 16]
    return np.stack(fields, axis=2)


def _convert_to_bytes(*parts: npt.NDArray[np.integer]) -> Bytes:
    """Return parts of 8 dwords as bytes, one after the other."""
    return np.ascontiguousarray(np.concatenate(parts, axis=-1), dtype="<u4").view(np.uint8)


def _split_words(stream: Bytes) -> list[npt.NDArray[np.uint32]]:
    """Return the parts of 8 dwords of `_convert_to_bytes`."""
    words = np.ascontiguousarray(stream).view("<u4").astype(np.uint32, copy=False)
    return np.split(words, words.shape[-1] // 8, axis=-1)


def _decode_indices(codebook: PackedCodebook, indices: Indices) -> Doubles:
    return (codebook.entries[indices].astype(np.float64) - OFFSET) * codebook.scale


def _convert_to_rows(vectors: Doubles) -> Doubles:
    """Return [blocks, columns, 8] as [outputs, columns]."""
    return vectors.transpose(0, 2, 1).reshape(-1, vectors.shape[1])
