"""The random weights of a shape's checkpoint.

They are normal with a deviation of one over the square root of what a layer reads, which keeps activations near one
through any number of layers; norms leave them as they are. So no number overflows, in float16 either. The same shape
becomes the same bytes everywhere.
"""

import hashlib
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from bitbench.models.shapes import Shape
from bitbench.util.model_files import StoredTensor

_PIECE = 2**22  # numbers: 8 MiB, and four times that while they are drawn
_LEVELS = 2**16  # different values of a weight
_ONES, _ZEROS = 0x3F80, 0x0000  # in bfloat16


def random_shape_weights(
    shape: Shape, name: str, tensor: StoredTensor
) -> Iterator[NDArray[np.uint16]]:
    """The tensor's numbers in bfloat16, a piece at a time."""
    count = math.prod(tensor.shape)
    sizes = [min(_PIECE, count - start) for start in range(0, count, _PIECE)]
    if len(tensor.shape) == 1:
        # Gemma adds one to the weights of its norms; biases are none.
        is_one = name.endswith("norm.weight") and shape.config["model_type"] != "gemma3_text"
        yield from (np.full(size, _ONES if is_one else _ZEROS, np.uint16) for size in sizes)
        return
    values = _normal_levels(1 / math.sqrt(tensor.shape[1]))
    seed = hashlib.sha256(f"{shape.name}/{name}".encode()).digest()
    source = np.random.PCG64(int.from_bytes(seed))
    for size in sizes:
        drawn: NDArray[np.uint64] = source.random_raw(-(-size // 4))
        yield values[drawn.view(np.uint16)[:size]]


def _normal_levels(deviation: float) -> NDArray[np.uint16]:
    """So many equally likely values of a normal distribution, in bfloat16."""
    levels = (
        (deviation * ndtri((np.arange(_LEVELS) + 0.5) / _LEVELS)).astype(np.float32).view(np.uint32)
    )
    to_nearest_even = 0x7FFF + ((levels >> 16) & 1)
    return ((levels + to_nearest_even) >> 16).astype(np.uint16)
