"""The cases of torch's own kernels: bfloat16, float32, and weight-only int8 and int4."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from bitbench.features.kernels.case import Case, KernelShape, Prepared, WeightPool

GROUP = 128  # columns that share a scale in int4
BLOCK = 64  # rows that torch packs together in int4


@dataclass(frozen=True)
class _Bfloat16(Case):
    """A case with weights in bfloat16."""

    devices: tuple[str, ...] = ("cpu", "cuda")

    def weight_bytes(self, shape: KernelShape) -> int:
        return 2 * shape.in_features * shape.out_features

    def _list_weights(
        self, shape: KernelShape, copies: int, pool: WeightPool
    ) -> list[torch.Tensor]:
        """Return weights that are cut from the pool, one tensor per copy."""
        count = shape.in_features * shape.out_features
        form = (shape.out_features, shape.in_features)
        return [pool.bfloat16_at(copy * count, count).view(form) for copy in range(copies)]


def _read_rows(weight: torch.Tensor, rows: slice) -> npt.NDArray[np.float64]:
    """Return rows of the weights in double precision, to check a result."""
    return np.asarray(weight[rows].double().cpu().numpy())


@dataclass(frozen=True)
class TorchLinear(_Bfloat16):
    """`F.linear`, which a model in bfloat16 calls."""

    name: str = "torch-linear"

    def prepare(self, shape: KernelShape, copies: int, pool: WeightPool) -> Prepared:
        """Return the product to time, x · Wᵀ with a copy of the weights, and rows of copy 0."""
        weights = self._list_weights(shape, copies, pool)
        return Prepared(
            run=lambda x, copy: torch.nn.functional.linear(x, weights[copy]),
            reference=lambda rows: _read_rows(weights[0], rows),
            weight_bytes=self.weight_bytes(shape),
        )


@dataclass(frozen=True)
class TorchLinearFloat32(Case):
    """`F.linear` in float32, faster than bfloat16 on processors without bfloat16 instructions."""

    name: str = "torch-linear-f32"
    dtype: str = "float32"
    check_dtype: str = "float32"
    on_request: bool = True  # twice the memory of bfloat16

    def weight_bytes(self, shape: KernelShape) -> int:
        return 4 * shape.in_features * shape.out_features

    def prepare(self, shape: KernelShape, copies: int, pool: WeightPool) -> Prepared:
        count = shape.in_features * shape.out_features
        form = (shape.out_features, shape.in_features)
        weights = [pool.float32_at(copy * count, count).view(form) for copy in range(copies)]
        return Prepared(
            run=lambda x, copy: torch.nn.functional.linear(x, weights[copy]),
            reference=lambda rows: _read_rows(weights[0], rows),
            weight_bytes=self.weight_bytes(shape),
        )


@dataclass(frozen=True)
class TorchMv(_Bfloat16):
    """`torch.mv`, the fair baseline at batch 1, because F.linear leaves bandwidth unused there."""

    name: str = "torch-mv"
    batches: tuple[int, int] = (1, 1)

    def prepare(self, shape: KernelShape, copies: int, pool: WeightPool) -> Prepared:
        weights = self._list_weights(shape, copies, pool)
        return Prepared(
            run=lambda x, copy: torch.mv(weights[copy], x.view(-1)).view(1, -1),
            reference=lambda rows: _read_rows(weights[0], rows),
            weight_bytes=self.weight_bytes(shape),
        )


@dataclass(frozen=True)
class TorchInt8(Case):
    """A weight-only product in int8, with one scale per output."""

    name: str = "torch-int8"

    def why_not(self, shape: KernelShape) -> str | None:
        # For other shapes torch 2.13 reads past the end of the rows: wrong results at 1032x64, and
        # a crash at 1000x203.
        if shape.in_features % 32 or shape.out_features % 16:
            return "in_features is not a multiple of 32 or out_features not one of 16"
        return None

    def weight_bytes(self, shape: KernelShape) -> int:
        return shape.in_features * shape.out_features + 2 * shape.out_features

    def prepare(self, shape: KernelShape, copies: int, pool: WeightPool) -> Prepared:
        count = shape.in_features * shape.out_features
        form = (shape.out_features, shape.in_features)
        weights = []
        for copy in range(copies):
            weights.append(pool.bytes_at(copy * count, count).view(torch.int8).view(form))
        scales = torch.full((shape.out_features,), 2**-7, dtype=torch.bfloat16)
        return Prepared(
            run=lambda x, copy: torch.ops.aten._weight_int8pack_mm(x, weights[copy], scales),
            reference=lambda rows: _read_rows(weights[0], rows) * 2**-7,
            weight_bytes=self.weight_bytes(shape),
        )


@dataclass(frozen=True)
class TorchInt4(Case):
    """A weight-only product in int4, with a scale per 128 columns."""

    name: str = "torch-int4-g128"

    def why_not(self, shape: KernelShape) -> str | None:
        if shape.in_features % GROUP or shape.out_features % BLOCK:
            return f"in_features is not a multiple of {GROUP} or out_features not one of {BLOCK}"
        return None

    def weight_bytes(self, shape: KernelShape) -> int:
        weights = shape.in_features * shape.out_features
        return weights // 2 + 4 * weights // GROUP

    def prepare(self, shape: KernelShape, copies: int, pool: WeightPool) -> Prepared:
        k = shape.in_features
        n = shape.out_features
        count = k * n // 2
        form = (n, k // 2)
        scale_and_zero = torch.zeros((k // GROUP, n, 2), dtype=torch.bfloat16)
        scale_and_zero[..., 0] = 2**-3
        weights = [pool.bytes_at(copy * count, count).view(form) for copy in range(copies)]
        weights[0] = weights[0].clone()
        # The first and the last block, by their first row. The reference needs their numbers.
        blocks: dict[int, torch.Tensor] = {}
        for start in sorted({0, n - BLOCK}):
            blocks[start] = torch.randint(0, 16, (BLOCK, k), dtype=torch.int32)
            packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(blocks[start], 1)
            weights[0][start : start + BLOCK] = packed.view(BLOCK, k // 2)
        return Prepared(
            run=lambda x, copy: torch.ops.aten._weight_int4pack_mm_for_cpu(
                x, weights[copy], GROUP, scale_and_zero
            ),
            reference=lambda rows: np.asarray((blocks[rows.start].double().numpy() - 8) * 2**-3),
            weight_bytes=self.weight_bytes(shape),
        )
