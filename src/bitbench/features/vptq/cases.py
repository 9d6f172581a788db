"""VPTQ on the CPU: our native kernel, with activations rounded to 8 or 16 bits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from bitbench.features.kernels.case import KernelShape, Prepared, Traits, WeightPool
from bitbench.features.kernels.instruction_sets import usable_isas
from bitbench.features.vptq import packed
from bitbench.features.vptq.multiply import multiply


@dataclass(frozen=True)
class VptqCase(Traits):
    """Codebooks of `main` and `residual` entries; indices and codebooks are random, which is hard on the caches."""

    main: int = 4096
    residual: int = 256
    activation_bits: int = 8
    isa: str | None = None  # None: the best one of this processor
    needs: tuple[str, ...] = ("the native part of bitbench",)
    check_dtype: str = "float32"

    def why_not(self, shape: KernelShape) -> str | None:  # noqa: ARG002
        try:
            import bitbench._native  # noqa: F401
        except ImportError as error:
            return f"the native part of bitbench cannot be loaded here ({error})"
        usable = usable_isas()
        if self.isa is not None and self.isa not in usable:
            return f"this processor does not run {self.isa}, only {', '.join(usable)}"
        return None

    def held_to(self, isas: Sequence[str]) -> "tuple[VptqCase, ...]":
        return tuple(replace(self, name=f"{self.name}-{isa}", isa=isa) for isa in isas)

    def weight_bytes(self, shape: KernelShape) -> int:
        return self._stream_bytes(shape) + packed.VECTOR * (self.main + self.residual)

    def prepare(self, shape: KernelShape, copies: int, pool: WeightPool) -> Prepared:
        matrices = [self._matrix(shape, copy * self.weight_bytes(shape), pool) for copy in range(copies)]
        kernels = [packed.native_matrix(matrix) for matrix in matrices]
        isa = self.isa or usable_isas()[0]

        def run(x: torch.Tensor, copy: int) -> torch.Tensor:
            bits, threads = self.activation_bits, pool.threads
            return multiply(kernels[copy], x, shape.out_features, activation_bits=bits, threads=threads, isa=isa)

        return Prepared(run, lambda rows: self._reference(matrices[0], rows), self.weight_bytes(shape), isa)

    def _stream_bytes(self, shape: KernelShape) -> int:
        blocks, strips = -(-shape.out_features // packed.VECTOR), -(-shape.in_features // packed.STRIP)
        return blocks * strips * packed.strip_bytes(self._main_bits, self._residual_bits)

    @property
    def _main_bits(self) -> int:
        return packed.index_bits(self.main, packed.MAIN_BITS)

    @property
    def _residual_bits(self) -> int:
        return packed.index_bits(self.residual, packed.RESIDUAL_BITS)

    def _matrix(self, shape: KernelShape, offset: int, pool: WeightPool) -> packed.PackedMatrix:
        stream_bytes = self._stream_bytes(shape)
        blocks, strips = -(-shape.out_features // packed.VECTOR), -(-shape.in_features // packed.STRIP)
        stream = pool.huge_page_bytes_at(offset, stream_bytes).numpy().reshape(blocks, strips, -1)
        offset += stream_bytes
        books = []
        for entries, bits, scale in ((self.main, self._main_bits, 2**-7), (self.residual, self._residual_bits, 2**-9)):
            book = pool.huge_page_bytes_at(offset, entries * packed.VECTOR).numpy().reshape(entries, packed.VECTOR)
            books.append(packed.PackedCodebook(book, scale, bits))
            offset += entries * packed.VECTOR
        segment = packed.PackedSegment(shape.in_features, books[0], books[1], stream)
        return packed.PackedMatrix(shape.in_features, shape.out_features, (segment,))

    def _reference(self, matrix: packed.PackedMatrix, rows: slice) -> "np.typing.NDArray[np.float64]":
        last = matrix.out_features if rows.stop is None else rows.stop
        return packed.dequantize(matrix, slice(rows.start // packed.VECTOR, -(-last // packed.VECTOR)))


def _case(main: int, residual: int, bits: int, *, on_request: bool) -> VptqCase:
    return VptqCase(
        name=f"vptq-{main}-{residual}" + ("-a16" if bits == 16 else ""),
        main=main,
        residual=residual,
        activation_bits=bits,
        allowed_error=0.02 if bits == 8 else 2e-4,
        labels={"main_centroids": main, "residual_centroids": residual, "activation_bits": bits},
        on_request=on_request,
    )


V4096_256 = _case(4096, 256, 8, on_request=False)
V4096_512 = _case(4096, 512, 8, on_request=False)
V8192_256 = _case(8192, 256, 8, on_request=False)
V8192_512 = _case(8192, 512, 8, on_request=False)
V65536_256 = _case(65536, 256, 8, on_request=True)
V4096_256_A16 = _case(4096, 256, 16, on_request=True)
V4096_512_A16 = _case(4096, 512, 16, on_request=True)
V8192_256_A16 = _case(8192, 256, 16, on_request=True)
V8192_512_A16 = _case(8192, 512, 16, on_request=True)
V65536_256_A16 = _case(65536, 256, 16, on_request=True)
