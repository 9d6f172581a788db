"""The interface of a kernel case.

The worker imports this module too, so it imports numpy and nothing of bitbench.

Features offer cases as `kernel_cases`. The worker imports their modules in an environment with
torch, and they import torch themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class KernelShape:
    """The shape of a linear layer's weights: W is [out_features, in_features]."""

    in_features: int
    out_features: int

    def __str__(self) -> str:
        return f"{self.in_features}x{self.out_features}"


class WeightPool(Protocol):
    """A memory with random content on the device, larger than all its caches.

    Cases cut their weights from it. Filling gigabytes for each shape would take longer than the
    timing.
    """

    def bytes_at(self, offset: int, count: int) -> "torch.Tensor":
        """Return uint8 numbers. It wraps around at the end."""

    def bfloat16_at(self, offset: int, count: int) -> "torch.Tensor":
        """Return normally distributed numbers. It wraps around at the end."""

    def float32_at(self, offset: int, count: int) -> "torch.Tensor":
        """Return pairs of bfloat16 numbers as float32, also normally distributed."""

    @property
    def threads(self) -> int: ...


@dataclass(frozen=True)
class Prepared:
    """A case for one shape, with the requested number of copies of its weights."""

    run: Callable[["torch.Tensor", int], "torch.Tensor"]  # (x [batch, in], copy) -> y [batch, out]
    # Rows of copy 0 [rows, in], which start at multiples of 64.
    reference: Callable[[slice], npt.NDArray[np.float64]]
    weight_bytes: int  # of one copy: weights, scales, codebooks


@dataclass(frozen=True)
class Case:
    """A product that can be timed. Subclasses define `weight_bytes` and `prepare`."""

    name: str = ""
    devices: tuple[str, ...] = ("cpu",)  # torch's names: on others it only runs if it is named
    dtype: str = "bfloat16"  # of activations and results while it is timed
    check_dtype: str = "bfloat16"  # the same for the check: float32 if the case takes it
    # Relative to the norm of the reference's result. A bfloat16 result is rounded to 8 bits, which
    # is 0.2 %. The rest is for sums.
    allowed_error: float = 0.01
    batches: tuple[int, int] = (1, 4096)  # the smallest and the largest that it takes
    labels: dict[str, int] = field(default_factory=dict)  # more columns, such as codebook sizes
    on_request: bool = False  # runs only if it is named

    def why_not(self, shape: KernelShape) -> str | None:  # noqa: ARG002
        """Return why the case cannot run here or for this shape, or None if it can."""
        return None

    def weight_bytes(self, shape: KernelShape) -> int:
        """Return the bytes of one copy of the weights, with scales and codebooks."""
        raise NotImplementedError

    def prepare(self, shape: KernelShape, copies: int, pool: WeightPool) -> Prepared:
        """Return the product to time, over copies of the weights that are cut from the pool."""
        raise NotImplementedError
