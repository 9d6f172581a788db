"""The random weights of a shape's checkpoint.

They are normal with a deviation of 1 / sqrt(inputs of the layer). This keeps activations near one
through any number of layers, and norms do not change them. So no number overflows, not even in
float16. The same shape gives the same bytes on every machine.
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
_ONE = 0x3F80  # in bfloat16
_ZERO = 0x0000


def iter_random_weights(
    shape: Shape, name: str, tensor: StoredTensor
) -> Iterator[NDArray[np.uint16]]:
    """Yield the tensor's numbers in bfloat16, a piece at a time."""
    count = math.prod(tensor.shape)
    sizes = [min(_PIECE, count - start) for start in range(0, count, _PIECE)]
    if len(tensor.shape) == 1:
        # Norms are ones, except in Gemma, which adds one to their weights. Biases are zeros.
        is_one = name.endswith("norm.weight") and shape.config["model_type"] != "gemma3_text"
        number = _ONE if is_one else _ZERO
        for size in sizes:
            yield np.full(size, number, np.uint16)
        return
    values = _compute_normal_levels(1 / math.sqrt(tensor.shape[1]))
    seed = hashlib.sha256(f"{shape.name}/{name}".encode()).digest()
    source = np.random.PCG64(int.from_bytes(seed))
    for size in sizes:
        random_bits: NDArray[np.uint64] = source.random_raw(-(-size // 4))
        yield values[random_bits.view(np.uint16)[:size]]


def _compute_normal_levels(deviation: float) -> NDArray[np.uint16]:
    """Return `_LEVELS` equally likely values of a normal distribution, in bfloat16."""
    levels = deviation * ndtri((np.arange(_LEVELS) + 0.5) / _LEVELS)
    bits = levels.astype(np.float32).view(np.uint32)
    to_nearest_even = 0x7FFF + ((bits >> 16) & 1)
    return ((bits + to_nearest_even) >> 16).astype(np.uint16)
