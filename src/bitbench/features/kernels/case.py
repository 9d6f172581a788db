"""What a kernel case is. A case module is imported by the worker in an environment with torch; it imports torch itself.

A case is found among what features offer as `kernel_cases`, so another package can add its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
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

    def huge_page_bytes_at(self, offset: int, count: int) -> "torch.Tensor":
        """The same in huge pages, for cases that would ask for these in a model too."""

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
        [slice], "npt.NDArray[np.float64]"
    ]  # rows of copy 0 as float64 [rows, in]; rows start at multiples of 64
    weight_bytes: int  # of one copy: weights, scales, codebooks
    isa: str | None = None  # the instruction set that it runs on, where the case has several


class Case(Protocol):
    name: str
    needs: tuple[str, ...]  # words for a person: what it does not run without
    devices: tuple[str, ...]  # as torch spells them; on another one it is left out unless it is named
    dtype: str  # of activations and results when it is timed
    check_dtype: str  # of activations and results when it is checked: float32 where the case takes it
    allowed_error: float  # relative to the norm of the reference's result
    batches: tuple[int, int]  # smallest and largest that it takes
    labels: dict[str, int]  # further columns of the table, such as the size of a codebook
    on_request: bool  # left out unless it is named

    def why_not(self, shape: KernelShape) -> str | None:
        """Why it cannot run here or for this shape; None where it can."""

    def weight_bytes(self, shape: KernelShape) -> int: ...

    def prepare(self, shape: KernelShape, copies: int, pool: WeightPool) -> Prepared: ...

    def held_to(self, isas: Sequence[str]) -> "Sequence[Case]":
        """One case per instruction set, with names of their own; itself where it does not choose among several."""


@dataclass(frozen=True)
class Traits:
    """The common answers; a case inherits them and changes what differs."""

    name: str = ""
    needs: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu",)
    dtype: str = "bfloat16"
    check_dtype: str = "bfloat16"
    allowed_error: float = 0.01  # a bfloat16 result is rounded to 8 bits: 0.2 %, with room for its accumulation
    batches: tuple[int, int] = (1, 4096)
    labels: dict[str, int] = field(default_factory=dict)
    on_request: bool = False

    def held_to(self, isas: Sequence[str]) -> Sequence[Self]:  # noqa: ARG002
        return (self,)
