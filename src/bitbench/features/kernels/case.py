"""What a kernel case is. Imported by the worker, too: numpy, and nothing else of ours.

A case module is imported by the worker in an environment with torch; it imports torch itself.

A case is found among what features offer as `kernel_cases`; its module lies in bitbench's own package.
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
    """Weights of a linear layer: W is [out_features, in_features]."""

    in_features: int
    out_features: int

    def __str__(self) -> str:
        return f"{self.in_features}x{self.out_features}"


class WeightPool(Protocol):
    """The device's memory with random content that cases cut their weights from, larger than all of its caches.

    Filling gigabytes anew for each shape would take longer than timing it.
    """

    def bytes_at(self, offset: int, count: int) -> "torch.Tensor":
        """uint8; wraps around at the end."""

    def bfloat16_at(self, offset: int, count: int) -> "torch.Tensor":
        """Normally distributed; wraps around at the end."""

    def float32_at(self, offset: int, count: int) -> "torch.Tensor":
        """The same memory, two numbers read as one: normally distributed, too."""

    @property
    def threads(self) -> int: ...


@dataclass(frozen=True)
class Prepared:
    """A case for one shape, with as many copies of its weights as were asked for."""

    run: Callable[["torch.Tensor", int], "torch.Tensor"]  # (x [batch, in], copy) -> y [batch, out]
    reference: Callable[
        [slice], npt.NDArray[np.float64]
    ]  # rows of copy 0 [rows, in]; they start at multiples of 64
    weight_bytes: int  # of one copy: weights, scales, codebooks


@dataclass(frozen=True)
class Case:
    """A product that can be timed. A case of its own says `weight_bytes` and `prepare`, and what differs from here."""

    name: str = ""
    devices: tuple[str, ...] = (
        "cpu",
    )  # as torch spells them; on another one it is left out unless it is named
    dtype: str = "bfloat16"  # of activations and results when it is timed
    check_dtype: str = "bfloat16"  # the same when it is checked: float32 where the case takes it
    # Relative to the norm of the reference's result. A bfloat16 result is rounded to 8 bits: 0.2 %, with room for sums.
    allowed_error: float = 0.01
    batches: tuple[int, int] = (1, 4096)  # smallest and largest that it takes
    labels: dict[str, int] = field(
        default_factory=dict
    )  # further columns, such as the size of a codebook
    on_request: bool = False  # left out unless it is named

    def why_not(self, shape: KernelShape) -> str | None:  # noqa: ARG002
        """Why it cannot run here or for this shape; None where it can."""
        return None

    def weight_bytes(self, shape: KernelShape) -> int:
        raise NotImplementedError

    def prepare(self, shape: KernelShape, copies: int, pool: WeightPool) -> Prepared:
        raise NotImplementedError
