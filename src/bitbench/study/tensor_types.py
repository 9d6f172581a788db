"""The types of tensors in a GGUF file: how ggml numbers and names them, and what a block of each weighs."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class TensorType:
    name: str  # as ggml spells it
    block_weights: int  # that share scales; the columns of a tensor must fill blocks
    block_bytes: int

    @property
    def bits(self) -> float:
        """Per weight."""
        return 8 * self.block_bytes / self.block_weights

    def bytes_of(self, weights: int) -> int:
        return weights // self.block_weights * self.block_bytes


TENSOR_TYPES: Mapping[int, TensorType] = MappingProxyType(
    {
        0: TensorType("f32", 1, 4),
        1: TensorType("f16", 1, 2),
        2: TensorType("q4_0", 32, 18),
        3: TensorType("q4_1", 32, 20),
        6: TensorType("q5_0", 32, 22),
        7: TensorType("q5_1", 32, 24),
        8: TensorType("q8_0", 32, 34),
        10: TensorType("q2_K", 256, 84),
        11: TensorType("q3_K", 256, 110),
        12: TensorType("q4_K", 256, 144),
        13: TensorType("q5_K", 256, 176),
        14: TensorType("q6_K", 256, 210),
        20: TensorType("iq4_nl", 32, 18),
        23: TensorType("iq4_xs", 256, 136),
        30: TensorType("bf16", 1, 2),
    }
)
_BY_NAME = {type.name.lower(): type for type in TENSOR_TYPES.values()}


def tensor_type(name: str) -> TensorType:
    """By its name in any case; raises ValueError with the names that there are."""
    if (found := _BY_NAME.get(name.lower())) is None:
        raise ValueError(f"no type of GGUF tensors is called {name!r}; known are {', '.join(_BY_NAME)}")
    return found
