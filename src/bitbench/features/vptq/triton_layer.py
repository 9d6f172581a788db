"""A VPTQ layer on a GPU: few rows through the Triton kernel, a dense matrix for many. NOT YET RUN ON A GPU.

Imported only where torch and triton are. Its tensors are buffers, which move with the model that they are in.
"""

import numpy as np
import torch
from torch.nn import functional

from bitbench.features.vptq.layout import WORD_BITS, Floats, Indices, VptqLayer, pack_layout_indices
from bitbench.features.vptq.triton_kernel import multiply_triton

# The public checkpoints' own type; codebooks that are stored in bfloat16 lose nothing that counts in it.
CODEBOOK_TYPE = torch.float16
_WORD = (1 << WORD_BITS) - 1


class Segment(torch.nn.Module):  # type: ignore[misc]
    """Columns that share a pair of codebooks."""

    def __init__(
        self,
        columns: int,
        words: torch.Tensor,
        bits: tuple[int, int],
        main: torch.Tensor,
        residual: torch.Tensor | None,
    ) -> None:
        """`words` is int32 [rows, words of a row], as `layout.pack_layout_indices` gives it; `bits` of a main and a
        residual index."""
        super().__init__()
        self.columns, self.bits = columns, bits
        self.register_buffer("words", words, persistent=False)
        self.register_buffer("main", main, persistent=False)
        self.register_buffer("residual", residual, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, in], from the first column of this segment on, to float32 [batch, rows * vector]."""
        return multiply_triton(x, self.words, self.main, self.residual, self.columns, *self.bits)

    def dense(self) -> torch.Tensor:
        """float32 [rows * vector, columns]."""
        first_bit = torch.arange(self.columns, device=self.words.device) * sum(self.bits)
        place, shift = first_bit // WORD_BITS, first_bit % WORD_BITS
        words = functional.pad(self.words, (0, 1)).long() & _WORD
        index = words[:, place] >> shift | words[:, place + 1] << (WORD_BITS - shift)
        weight = functional.embedding(index & (1 << self.bits[0]) - 1, self.main).float()
        if self.residual is not None:
            second = index >> self.bits[0] & (1 << self.bits[1]) - 1
            weight += functional.embedding(second, self.residual)
        return weight.transpose(1, 2).reshape(-1, self.columns)


class TritonLayer(torch.nn.Module):  # type: ignore[misc]
    """Column scale, bias and permutation are applied to x, which is small."""

    def __init__(self, layer: VptqLayer) -> None:
        super().__init__()
        self._rows = layer.out_features
        permutation = None if layer.permutation is None else torch.from_numpy(layer.permutation)
        self.register_buffer("permutation", permutation, persistent=False)
        for name in ("weight_scale", "weight_bias", "bias"):
            values: Floats | None = getattr(layer, name)
            self.register_buffer(
                name, None if values is None else torch.from_numpy(values), persistent=False
            )
        self.segments = torch.nn.ModuleList()
        if layer.outliers is not None:
            self.segments.append(
                _segment(layer.outliers.indices, layer.outliers.centroids, None, None)
            )
        for group, indices in enumerate(layer.indices):
            residual, residual_indices = None, None
            if layer.residual_centroids is not None and layer.residual_indices is not None:
                residual, residual_indices = (
                    layer.residual_centroids[group],
                    layer.residual_indices[group],
                )
            self.segments.append(
                _segment(indices, layer.centroids[group], residual_indices, residual)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, in] to [batch, out], in x's own type; sums are float32."""
        stored = x if self.weight_scale is None else x * self.weight_scale
        stored = (stored if self.permutation is None else stored[:, self.permutation]).contiguous()
        products, column = [], 0
        for segment in self.segments:
            products.append(segment(stored[:, column:])[:, : self._rows])
            column += segment.columns
        y = products[0] if len(products) == 1 else torch.stack(products).sum(0)
        if self.weight_bias is not None:
            y = y + (x.float() @ self.weight_bias)[:, None]
        return (y if self.bias is None else y + self.bias).to(x.dtype)

    def dense(self) -> torch.Tensor:
        """The weights [out, in] in single precision, recomputed."""
        weight = torch.cat([segment.dense()[: self._rows] for segment in self.segments], dim=1)
        if self.permutation is not None:
            weight = weight[:, torch.argsort(self.permutation)]
        if self.weight_scale is not None:
            weight = weight * self.weight_scale
        return weight if self.weight_bias is None else weight + self.weight_bias


def _segment(
    indices: Indices, centroids: Floats, residual_indices: Indices | None, residual: Floats | None
) -> Segment:
    bits = _index_bits(len(centroids)), 0 if residual is None else _index_bits(len(residual))
    words = torch.from_numpy(pack_layout_indices(indices, residual_indices, *bits))
    return Segment(
        indices.shape[1],
        words,
        bits,
        _codebook(centroids),
        None if residual is None else _codebook(residual),
    )


def _codebook(centroids: Floats) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(centroids)).to(CODEBOOK_TYPE)


def _index_bits(entries: int) -> int:
    return max(1, (entries - 1).bit_length())
