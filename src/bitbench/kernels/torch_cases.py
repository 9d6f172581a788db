"""What torch itself offers: bfloat16, and weight-only int8 and int4."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from bitbench.kernels.case import Pool, Prepared, Shape, Traits

GROUP = 128  # columns that share a scale in int4


@dataclass(frozen=True)
class _Bfloat16(Traits):
    def why_not(self, shape: Shape) -> str | None:  # noqa: ARG002
        return None

    def weight_bytes(self, shape: Shape) -> int:
        return 2 * shape.in_features * shape.out_features

    def _weights(self, shape: Shape, copies: int, pool: Pool) -> list[torch.Tensor]:
        count = shape.in_features * shape.out_features
        form = (shape.out_features, shape.in_features)
        return [pool.bfloat16_at(copy * count, count).view(form) for copy in range(copies)]


def _rows(weight: torch.Tensor, rows: slice) -> npt.NDArray[np.float64]:
    return np.asarray(weight[rows].double().numpy())


@dataclass(frozen=True)
class TorchLinear(_Bfloat16):
    """`F.linear`: what a model in bfloat16 calls."""

    name: str = "torch-linear"

    def prepare(self, shape: Shape, copies: int, pool: Pool) -> Prepared:
        weights = self._weights(shape, copies, pool)
        return Prepared(
            run=lambda x, copy: torch.nn.functional.linear(x, weights[copy]),
            reference=lambda rows: _rows(weights[0], rows),
            weight_bytes=self.weight_bytes(shape),
        )


@dataclass(frozen=True)
class TorchMv(_Bfloat16):
    """`torch.mv`: the honest baseline at batch 1, where F.linear leaves bandwidth unused."""

    name: str = "torch-mv"
    batches: tuple[int, int] = (1, 1)

    def prepare(self, shape: Shape, copies: int, pool: Pool) -> Prepared:
        weights = self._weights(shape, copies, pool)
        return Prepared(
            run=lambda x, copy: torch.mv(weights[copy], x.view(-1)).view(1, -1),
            reference=lambda rows: _rows(weights[0], rows),
            weight_bytes=self.weight_bytes(shape),
        )


@dataclass(frozen=True)
class TorchInt8(Traits):
    """Weight-only int8 with one scale per output."""

    name: str = "torch-int8"

    def why_not(self, shape: Shape) -> str | None:  # noqa: ARG002
        return None

    def weight_bytes(self, shape: Shape) -> int:
        return shape.in_features * shape.out_features + 2 * shape.out_features

    def prepare(self, shape: Shape, copies: int, pool: Pool) -> Prepared:
        count, form = shape.in_features * shape.out_features, (shape.out_features, shape.in_features)
        weights = [pool.bytes_at(copy * count, count).view(torch.int8).view(form) for copy in range(copies)]
        scales = torch.full((shape.out_features,), 2**-7, dtype=torch.bfloat16)
        return Prepared(
            run=lambda x, copy: torch.ops.aten._weight_int8pack_mm(x, weights[copy], scales),
            reference=lambda rows: _rows(weights[0], rows) * 2**-7,
            weight_bytes=self.weight_bytes(shape),
        )


@dataclass(frozen=True)
class TorchInt4(Traits):
    """Weight-only int4 with a scale per 128 columns."""

    name: str = "torch-int4-g128"

    def why_not(self, shape: Shape) -> str | None:
        if shape.in_features % GROUP or shape.out_features % 32:
            return f"in_features is not a multiple of {GROUP} or out_features not one of 32"
        return None

    def weight_bytes(self, shape: Shape) -> int:
        weights = shape.in_features * shape.out_features
        return weights // 2 + 4 * weights // GROUP

    def prepare(self, shape: Shape, copies: int, pool: Pool) -> Prepared:
        k, n = shape.in_features, shape.out_features
        count = k * n // 2
        first = pool.bytes_at(0, count)
        scale_and_zero = torch.zeros((k // GROUP, n, 2), dtype=torch.bfloat16)
        scale_and_zero[..., 0] = 2**-3
        plain = torch.stack((first & 15, first >> 4), dim=-1).view(n, k)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(plain.int(), 1)
        weights = [packed, *(pool.bytes_at(copy * count, count).view(n, k // 2) for copy in range(1, copies))]
        sample = [(rows, plain[rows].clone()) for rows in (slice(0, 64), slice(n - n % 64 - 64, None))]
        del plain

        def reference(rows: slice) -> npt.NDArray[np.float64]:
            found = next(kept for where, kept in sample if where.start == rows.start)
            return np.asarray((found[: (rows.stop or n) - rows.start].double().numpy() - 8) * 2**-3)

        return Prepared(
            run=lambda x, copy: torch.ops.aten._weight_int4pack_mm_for_cpu(x, weights[copy], GROUP, scale_and_zero),
            reference=reference,
            weight_bytes=self.weight_bytes(shape),
        )
