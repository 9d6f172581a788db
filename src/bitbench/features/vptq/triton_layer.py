"""A VPTQ layer for GPUs, with the Triton kernel for few rows. NOT YET RUN ON A GPU.

It needs torch and triton. Its tensors are buffers, which move with their model.
"""

import numpy as np
import torch
from torch.nn import functional

from bitbench.features.vptq.layout import WORD_BITS, Floats, Indices, VptqLayer, pack_layout_indices
from bitbench.features.vptq.triton_kernel import multiply_triton

# The type of the public checkpoints. Codebooks in bfloat16 lose nothing that matters in it.
CODEBOOK_TYPE = torch.float16
_WORD = (1 << WORD_BITS) - 1


class Segment(torch.nn.Module):  # type: ignore[misc]
    """A range of columns that share a pair of codebooks."""

    def __init__(
        self,
        columns: int,
        words: torch.Tensor,
        bits: tuple[int, int],
        main: torch.Tensor,
        residual: torch.Tensor | None,
    ) -> None:
        """Register the tensors.

        `words` is int32 [rows, words of a row] from `layout.pack_layout_indices`. `bits` are for a
        main and a residual index.
        """
        super().__init__()
        self.columns = columns
        self.bits = bits
        self.register_buffer("words", words, persistent=False)
        self.register_buffer("main", main, persistent=False)
        self.register_buffer("residual", residual, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product with x [batch, in] as float32 [batch, rows * vector].

        x begins with the first column of this segment.
        """
        return multiply_triton(x, self.words, self.main, self.residual, self.columns, *self.bits)

    def dense(self) -> torch.Tensor:
        """Return the weights as float32 [rows * vector, columns]."""
        first_bit = torch.arange(self.columns, device=self.words.device) * sum(self.bits)
        first_word = first_bit // WORD_BITS
        shift = first_bit % WORD_BITS
        words = functional.pad(self.words, (0, 1)).long() & _WORD
        index = words[:, first_word] >> shift | words[:, first_word + 1] << (WORD_BITS - shift)
        main_bits, residual_bits = self.bits
        weight = functional.embedding(index & (1 << main_bits) - 1, self.main).float()
        if self.residual is not None:
            residual_index = index >> main_bits & (1 << residual_bits) - 1
            weight += functional.embedding(residual_index, self.residual)
        return weight.transpose(1, 2).reshape(-1, self.columns)


class TritonLayer(torch.nn.Module):  # type: ignore[misc]
    """A layer that applies column scale, bias and permutation to x, which is small."""

    def __init__(self, layer: VptqLayer) -> None:
        super().__init__()
        self._rows = layer.out_features
        permutation = None if layer.permutation is None else torch.from_numpy(layer.permutation)
        self.register_buffer("permutation", permutation, persistent=False)
        for name in ("weight_scale", "weight_bias", "bias"):
            values: Floats | None = getattr(layer, name)
            tensor = None if values is None else torch.from_numpy(values)
            self.register_buffer(name, tensor, persistent=False)
        self.segments = torch.nn.ModuleList()
        if layer.outliers is not None:
            outliers = layer.outliers
            self.segments.append(_make_segment(outliers.indices, outliers.centroids, None, None))
        for group, indices in enumerate(layer.indices):
            residual = None
            residual_indices = None
            if layer.residual_centroids is not None and layer.residual_indices is not None:
                residual = layer.residual_centroids[group]
                residual_indices = layer.residual_indices[group]
            centroids = layer.centroids[group]
            self.segments.append(_make_segment(indices, centroids, residual_indices, residual))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product with x [batch, in] as [batch, out], in the type of x.

        Sums are in float32.
        """
        stored = x if self.weight_scale is None else x * self.weight_scale
        if self.permutation is not None:
            stored = stored[:, self.permutation]
        stored = stored.contiguous()
        products = []
        column = 0
        for segment in self.segments:
            products.append(segment(stored[:, column:])[:, : self._rows])
            column += segment.columns
        y = products[0] if len(products) == 1 else torch.stack(products).sum(0)
        if self.weight_bias is not None:
            y = y + (x.float() @ self.weight_bias)[:, None]
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype)

    def dense(self) -> torch.Tensor:
        """Compute the weights [out, in] in single precision."""
        weight = torch.cat([segment.dense()[: self._rows] for segment in self.segments], dim=1)
        if self.permutation is not None:
            weight = weight[:, torch.argsort(self.permutation)]
        if self.weight_scale is not None:
            weight = weight * self.weight_scale
        return weight if self.weight_bias is None else weight + self.weight_bias


def _make_segment(
    indices: Indices, centroids: Floats, residual_indices: Indices | None, residual: Floats | None
) -> Segment:
    residual_bits = 0
    residual_codebook = None
    if residual is not None:
        residual_bits = _count_index_bits(len(residual))
        residual_codebook = _make_codebook(residual)
    bits = (_count_index_bits(len(centroids)), residual_bits)
    words = torch.from_numpy(pack_layout_indices(indices, residual_indices, *bits))
    return Segment(indices.shape[1], words, bits, _make_codebook(centroids), residual_codebook)


def _make_codebook(centroids: Floats) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(centroids)).to(CODEBOOK_TYPE)


def _count_index_bits(entries: int) -> int:
    return max(1, (entries - 1).bit_length())
