"""VPTQ's product for a GPU, in Triton, from the public layout as it is stored. NOT YET RUN ON A GPU.

Checked with Triton's interpreter against `bitbench.vptq.layout` and compiled ahead of time for sm_80. Imported only
where torch and triton are (a worker, or a test's process in an environment with both).
"""
# Triton reads annotations as its own (tl.constexpr), so that a kernel cannot have Python's.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from bitbench.vptq.layout import Indices, VptqLayer, pack

ROW_TILE = 4  # rows of vectors that one program decodes at once: 4 × 8 outputs
COLUMN_TILE = 64
# So many programs keep an A100 (108 multiprocessors) busy; columns are split among programs until there are as many.
ENOUGH_PROGRAMS = 432


@triton.jit
def multiply_segment(  # noqa: PLR0917
    x,  # [batch, …], from the first column of this segment on, in stored order, scaled
    words,  # int32 [rows, row_words]
    main,  # [entries, vector]
    residual,  # [entries, vector]; any pointer where residual_bits is 0
    partial,  # float32 [splits, batch, rows * vector]
    batch_size,
    rows,
    columns,
    row_words,
    columns_per_split,
    x_stride,
    main_bits: tl.constexpr,
    residual_bits: tl.constexpr,
    vector: tl.constexpr,
    batch_tile: tl.constexpr,  # batch_size, rounded up to a power of two
    row_tile: tl.constexpr,
    column_tile: tl.constexpr,
):
    """One tile of rows over one share of the columns. Indices are decoded once and serve the whole batch."""
    row = tl.program_id(0) * row_tile + tl.arange(0, row_tile)
    split = tl.program_id(1)
    lane = tl.arange(0, vector)
    bits: tl.constexpr = main_bits + residual_bits
    batch = tl.arange(0, batch_tile)
    total = tl.zeros((batch_tile, row_tile, vector), dtype=tl.float32)
    first = split * columns_per_split
    last = tl.minimum(first + columns_per_split, columns)
    for start in range(first, last, column_tile):
        column = start + tl.arange(0, column_tile)
        inside = (row[:, None] < rows) & (column[None, :] < last)
        at = column * bits
        word = row[:, None].to(tl.int64) * row_words + (at // 32)[None, :]
        low = tl.load(words + word, mask=inside, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
        spills = inside & ((at % 32 + bits) > 32)[None, :]
        high = tl.load(words + word + 1, mask=spills, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
        index = ((high << 32 | low) >> (at % 32).to(tl.uint64)[None, :]).to(tl.int32)
        entry = (index & ((1 << main_bits) - 1))[:, :, None] * vector + lane[None, None, :]
        weight = tl.load(main + entry, mask=inside[:, :, None], other=0.0).to(tl.float32)
        if residual_bits > 0:
            second = index >> main_bits & ((1 << residual_bits) - 1)
            entry = second[:, :, None] * vector + lane[None, None, :]
            weight += tl.load(residual + entry, mask=inside[:, :, None], other=0.0).to(tl.float32)
        factor = tl.load(
            x + batch[:, None].to(tl.int64) * x_stride + column[None, :],
            mask=(batch < batch_size)[:, None] & (column < last)[None, :],
            other=0.0,
        ).to(tl.float32)
        total += tl.sum(weight[None, :, :, :] * factor[:, None, :, None], axis=2)
    output = row[None, :, None] * vector + lane[None, None, :]
    place = (split * batch_size + batch)[:, None, None].to(tl.int64) * (rows * vector) + output
    tl.store(partial + place, total, mask=(batch < batch_size)[:, None, None] & (row < rows)[None, :, None])


@dataclass(frozen=True)
class Segment:
    """Columns that share a pair of codebooks, as tensors on the device."""

    first_column: int  # in stored order
    columns: int
    words: torch.Tensor  # int32 [rows, row_words]
    main: torch.Tensor
    residual: torch.Tensor | None
    main_bits: int
    residual_bits: int

    def product(self, x: torch.Tensor, out_features: int) -> torch.Tensor:
        """x [batch, in], in stored order, to float32 [batch, out]."""
        (batch, _), (rows, row_words), vector = x.shape, self.words.shape, self.main.shape[1]
        row_programs = triton.cdiv(rows, ROW_TILE)
        splits = max(1, min(triton.cdiv(ENOUGH_PROGRAMS, row_programs), triton.cdiv(self.columns, COLUMN_TILE)))
        columns_per_split = COLUMN_TILE * triton.cdiv(self.columns, COLUMN_TILE * splits)
        partial = torch.empty((splits, batch, rows * vector), dtype=torch.float32, device=x.device)
        multiply_segment[(row_programs, splits)](
            x[:, self.first_column :],
            self.words,
            self.main,
            self.main if self.residual is None else self.residual,
            partial,
            batch,
            rows,
            self.columns,
            row_words,
            columns_per_split,
            x.stride(0),
            main_bits=self.main_bits,
            residual_bits=self.residual_bits,
            vector=vector,
            batch_tile=triton.next_power_of_2(batch),
            row_tile=ROW_TILE,
            column_tile=COLUMN_TILE,
        )
        return partial.sum(0)[:, :out_features]


class TritonLayer:
    """A VPTQ layer on a device. Column scale, bias and permutation are applied to x, which is small."""

    def __init__(self, layer: VptqLayer, device: str, dtype: torch.dtype = torch.bfloat16) -> None:
        self._device, self._dtype = device, dtype
        self._out_features = layer.out_features
        self._permutation = None if layer.permutation is None else torch.from_numpy(layer.permutation).to(device)
        self._column_scale = self._vector(layer.weight_scale)
        self._column_bias = self._vector(layer.weight_bias)
        self._bias = self._vector(layer.bias)
        self._segments: list[Segment] = []
        if layer.outliers is not None:
            self._add(layer.outliers.indices, layer.outliers.centroids, None, None)
        for group, indices in enumerate(layer.indices):
            residual, residual_indices = None, None
            if layer.residual_centroids is not None and layer.residual_indices is not None:
                residual, residual_indices = layer.residual_centroids[group], layer.residual_indices[group]
            self._add(indices, layer.centroids[group], residual_indices, residual)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, in] to [batch, out], in x's own type; sums are float32."""
        stored = x if self._column_scale is None else x * self._column_scale.to(x.dtype)
        stored = (stored if self._permutation is None else stored[:, self._permutation]).contiguous()
        products = [segment.product(stored, self._out_features) for segment in self._segments]
        y = torch.stack(products).sum(0)
        if self._column_bias is not None:
            y = y + (x.float() @ self._column_bias)[:, None]
        return (y if self._bias is None else y + self._bias).to(x.dtype)

    def _vector(self, values: "np.typing.NDArray[np.float32] | None") -> torch.Tensor | None:
        return None if values is None else torch.from_numpy(values).float().to(self._device)

    def _add(
        self,
        indices: Indices,
        centroids: "np.typing.NDArray[np.float32]",
        residual_indices: Indices | None,
        residual: "np.typing.NDArray[np.float32] | None",
    ) -> None:
        main_bits = index_bits(len(centroids))
        residual_bits = 0 if residual is None else index_bits(len(residual))
        last = self._segments[-1] if self._segments else None
        self._segments.append(
            Segment(
                first_column=last.first_column + last.columns if last else 0,
                columns=indices.shape[1],
                words=torch.from_numpy(pack(indices, residual_indices, main_bits, residual_bits)).to(self._device),
                main=self._codebook(centroids),
                residual=None if residual is None else self._codebook(residual),
                main_bits=main_bits,
                residual_bits=residual_bits,
            )
        )

    def _codebook(self, centroids: "np.typing.NDArray[np.float32]") -> torch.Tensor:
        return torch.from_numpy(centroids).to(self._device, self._dtype).contiguous()


def index_bits(entries: int) -> int:
    return max(1, (entries - 1).bit_length())
