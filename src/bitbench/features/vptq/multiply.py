"""A product of torch's tensors with the native kernel. Imported where torch is."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from bitbench._native import VptqMatrix


def multiply(
    kernel: "VptqMatrix", x: torch.Tensor, out_features: int, *, activation_bits: int, threads: int, isa: str = ""
) -> torch.Tensor:
    """x [..., in] times the matrix, [..., out], in the type of x. What is not bfloat16 is computed in float32.

    Without `isa` on the best instruction set of `usable_isas`.
    """
    given = (x if x.dtype in (torch.bfloat16, torch.float32) else x.float()).contiguous()
    y = torch.empty((*x.shape[:-1], out_features), dtype=given.dtype)
    kernel.multiply_at(
        given.data_ptr(),
        y.data_ptr(),
        rows=y.numel() // out_features,
        bfloat16=given.dtype is torch.bfloat16,
        activation_bits=activation_bits,
        threads=threads,
        isa=isa,
    )
    return y.to(x.dtype)
