"""The kernel cases of VPTQ: bitbench's native CPU kernel and its Triton kernel for GPUs.

The Triton kernel has NOT YET RUN ON A GPU. This module needs torch, but not triton. Under Triton's
interpreter (TRITON_INTERPRET=1) its cases also run on a processor. They are far too slow to be
timed there, but their results are as right or wrong as on a GPU.
"""

import importlib.util
import math
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from bitbench.features.kernels.case import Case, KernelShape, Prepared, WeightPool
from bitbench.features.vptq import packed
from bitbench.features.vptq.layout import WORD_BITS
from bitbench.features.vptq.linear import compute_native_product

if TYPE_CHECKING:
    from bitbench.features.vptq.triton_layer import Segment


@dataclass(frozen=True)
class VptqCase(Case):
    """The native CPU kernel with codebooks of `main` and `residual` entries.

    Indices and codebooks are random, which is hard on the caches.
    """

    main: int = 4096
    residual: int = 256
    activation_bits: int = 8
    check_dtype: str = "float32"

    def why_not(self, shape: KernelShape) -> str | None:  # noqa: ARG002
        try:
            import bitbench._native  # noqa: F401
        except ImportError as error:
            return f"the native part of bitbench cannot be loaded here ({error})"
        return None

    def weight_bytes(self, shape: KernelShape) -> int:
        stream_bytes = math.prod(self._compute_stream_shape(shape))
        return stream_bytes + packed.VECTOR * (self.main + self.residual)

    def prepare(self, shape: KernelShape, copies: int, pool: WeightPool) -> Prepared:
        step = self.weight_bytes(shape)
        matrices = [self._matrix(shape, copy * step, pool) for copy in range(copies)]
        kernels = [packed.make_native_matrix(matrix) for matrix in matrices]
        multiply = partial(
            compute_native_product, activation_bits=self.activation_bits, threads=pool.threads
        )
        return Prepared(
            run=lambda x, copy: multiply(kernels[copy], x, shape.out_features),
            reference=lambda rows: _compute_packed_rows(matrices[0], rows),
            weight_bytes=step,
        )

    def _compute_stream_shape(self, shape: KernelShape) -> tuple[int, int, int]:
        """Return the numbers of blocks, of strips in a block, and of bytes in a strip."""
        blocks = -(-shape.out_features // packed.VECTOR)
        strips = -(-shape.in_features // packed.STRIP)
        return blocks, strips, packed.compute_strip_bytes(self._main_bits, self._residual_bits)

    @property
    def _main_bits(self) -> int:
        return packed.choose_index_bits(self.main, packed.MAIN_BITS)

    @property
    def _residual_bits(self) -> int:
        return packed.choose_index_bits(self.residual, packed.RESIDUAL_BITS)

    def _matrix(self, shape: KernelShape, offset: int, pool: WeightPool) -> packed.PackedMatrix:
        """Return a matrix whose arrays are in the pool, one after the other."""
        stream_shape = self._compute_stream_shape(shape)
        stream_bytes = math.prod(stream_shape)
        stream = pool.bytes_at(offset, stream_bytes).numpy().reshape(stream_shape)
        offset += stream_bytes
        books = []
        for entries, bits, scale in (
            (self.main, self._main_bits, 2**-7),
            (self.residual, self._residual_bits, 2**-9),
        ):
            book_bytes = entries * packed.VECTOR
            book = pool.bytes_at(offset, book_bytes).numpy().reshape(entries, packed.VECTOR)
            books.append(packed.PackedCodebook(book, scale, bits))
            offset += book_bytes
        segment = packed.PackedSegment(shape.in_features, books[0], books[1], stream)
        return packed.PackedMatrix(shape.in_features, shape.out_features, (segment,))


def _compute_packed_rows(matrix: packed.PackedMatrix, rows: slice) -> npt.NDArray[np.float64]:
    """Return these rows of W, dequantized.

    `rows` must begin at a block of 8 outputs, and end at a block or at the end of W.
    """
    end = matrix.out_features if rows.stop is None else rows.stop
    blocks = slice(rows.start // packed.VECTOR, -(-end // packed.VECTOR))  # the end is rounded up
    return packed.dequantize_packed(matrix, blocks)


def _make_case(main: int, residual: int, bits: int, *, on_request: bool) -> VptqCase:
    """Return a case with codebooks of `main` and `residual` entries, and activations of `bits`."""
    ending = "-a16" if bits == 16 else ""
    allowed_error = 0.02 if bits == 8 else 2e-4
    return VptqCase(
        name=f"vptq-{main}-{residual}{ending}",
        main=main,
        residual=residual,
        activation_bits=bits,
        allowed_error=allowed_error,
        labels={"main_centroids": main, "residual_centroids": residual, "activation_bits": bits},
        on_request=on_request,
    )


V4096_256 = _make_case(4096, 256, 8, on_request=False)
V4096_512 = _make_case(4096, 512, 8, on_request=False)
V8192_256 = _make_case(8192, 256, 8, on_request=False)
V8192_512 = _make_case(8192, 512, 8, on_request=False)
V65536_256 = _make_case(65536, 256, 8, on_request=True)
V4096_256_A16 = _make_case(4096, 256, 16, on_request=True)
V4096_512_A16 = _make_case(4096, 512, 16, on_request=True)
V8192_256_A16 = _make_case(8192, 256, 16, on_request=True)
V8192_512_A16 = _make_case(8192, 512, 16, on_request=True)
V65536_256_A16 = _make_case(65536, 256, 16, on_request=True)


VECTOR = 8
ALIGNED = 64  # bytes: pieces of the pool begin at multiples of it
DEVICES = ("cuda", "cpu") if os.environ.get("TRITON_INTERPRET") == "1" else ("cuda",)


@dataclass(frozen=True)
class TritonVptq(Case):
    """The Triton kernel with codebooks of `main` and `residual` entries.

    Indices and codebooks are random, which is hard on the caches.
    """

    main: int = 4096
    residual: int = 256
    devices: tuple[str, ...] = DEVICES
    check_dtype: str = "float32"
    allowed_error: float = 2e-4  # single precision: the reference adds in another order
    batches: tuple[int, int] = (1, 8)  # `TRITON_ROWS` of `bitbench.features.vptq.linear`

    def why_not(self, shape: KernelShape) -> str | None:  # noqa: ARG002
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed here"
        return None

    def weight_bytes(self, shape: KernelShape) -> int:
        rows, row_words = self._compute_form(shape)
        return 4 * rows * row_words + 2 * VECTOR * (self.main + self.residual)

    def prepare(self, shape: KernelShape, copies: int, pool: WeightPool) -> Prepared:
        step = -(-self.weight_bytes(shape) // ALIGNED) * ALIGNED
        segments = [self._segment(shape, copy * step, pool) for copy in range(copies)]
        return Prepared(
            run=lambda x, copy: segments[copy](x)[:, : shape.out_features].to(x.dtype),
            reference=lambda rows: _compute_segment_rows(segments[0], shape, rows),
            weight_bytes=self.weight_bytes(shape),
        )

    @property
    def _bits(self) -> tuple[int, int]:
        return (self.main - 1).bit_length(), (self.residual - 1).bit_length()

    def _compute_form(self, shape: KernelShape) -> tuple[int, int]:
        """Return the number of rows of vectors, and of 32-bit words in each row."""
        rows = -(-shape.out_features // VECTOR)
        row_words = -(-shape.in_features * sum(self._bits) // WORD_BITS)
        return rows, row_words

    def _segment(self, shape: KernelShape, offset: int, pool: WeightPool) -> "Segment":
        """Return a segment whose indices and codebooks are cut from the pool."""
        from bitbench.features.vptq.triton_layer import CODEBOOK_TYPE, Segment

        rows, row_words = self._compute_form(shape)
        words = pool.bytes_at(offset, 4 * rows * row_words).view(torch.int32).view(rows, row_words)
        books = []
        for entries, scale, start in ((self.main, 1.0, 0), (self.residual, 0.25, self.main)):
            numbers = pool.bfloat16_at(offset // 2 + VECTOR * start, VECTOR * entries)
            books.append((scale * numbers.view(entries, VECTOR)).to(CODEBOOK_TYPE))
        return Segment(shape.in_features, words, self._bits, *books)


def _compute_segment_rows(
    segment: "Segment", shape: KernelShape, rows: slice
) -> npt.NDArray[np.float64]:
    """Return these rows of W, dequantized by the segment. They begin at a block of 8 outputs."""
    end = shape.out_features if rows.stop is None else rows.stop
    words = segment.words[rows.start // VECTOR : -(-end // VECTOR)]
    part = type(segment)(segment.columns, words, segment.bits, segment.main, segment.residual)
    return np.asarray(part.dense()[: end - rows.start].double().cpu().numpy())


def _make_triton_case(main: int, residual: int, *, on_request: bool) -> TritonVptq:
    return TritonVptq(
        name=f"vptq-triton-{main}-{residual}",
        main=main,
        residual=residual,
        labels={"main_centroids": main, "residual_centroids": residual, "activation_bits": 16},
        on_request=on_request,
    )


T4096_256 = _make_triton_case(4096, 256, on_request=False)
T4096_512 = _make_triton_case(4096, 512, on_request=False)
T8192_256 = _make_triton_case(8192, 256, on_request=False)
T8192_512 = _make_triton_case(8192, 512, on_request=False)
T65536_256 = _make_triton_case(65536, 256, on_request=True)
