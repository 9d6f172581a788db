"""Models, the variants that recipes make of them, and the types of tensors in a GGUF file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bitbench.study.base import Record

NO_MODEL = "none"  # the model of an engine that needs no weights (null)
UNKNOWN_RECIPE = "unknown"  # of an import that does not separate model and recipe
DENSE = "dense"  # the form of a model that is not quantized, also as the last part of one


# the 7B of Qwen2.5-7B-Instruct
_SIZE = re.compile(r"(?<![\w.])\d+(\.\d+)?[bm](?![a-z0-9])", re.IGNORECASE)


class ExpertFacts(Record):
    """The experts of a mixture: in some layers a router sends each token to a few of many.

    A fact is None if the model's folder lacks it.
    """

    count: int  # in a layer
    per_token: int | None = None
    size: int | None = None  # inner size of one expert
    layers: int | None = None  # layers with experts, the others are dense
    shared_size: int = 0  # inner size of all shared experts, which every token goes to


class ModelFacts(Record):
    """The facts that a model's folder gives about the model. None if it does not give one."""

    parameters: int | None = None
    vocabulary_size: int | None = None
    special_token_ids: tuple[int, ...] = ()
    context_tokens: int | None = None
    hidden_size: int | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    heads: int | None = None
    intermediate_size: int | None = None
    tied_embeddings: bool | None = None  # one matrix looks tokens up and, at the end, multiplies
    experts: ExpertFacts | None = None  # None if every weight works on every token
    # a shape without trained weights: for speed, memory and kernels, never for quality
    random_weights: bool = False
    # the format of its stored layers, such as compressed-tensors, or None if dense
    quantization: str | None = None
    # the earlier format of its linear layers, which are dense now: "4 bits (Q4_1)"
    rounded_before: str | None = None

    def kv_bytes_per_token(self, value_bytes: int) -> int | None:
        """Return the size of one token's keys and values in all layers. None if it is unknown."""
        if not (self.layers and self.kv_heads and self.head_size):
            return None
        return 2 * self.layers * self.kv_heads * self.head_size * value_bytes


class AtLoad(Record):
    """A compression that an engine does while it loads the model, with nothing of it on disk."""

    engine: str
    quantize: str  # the method, in that engine's words


class Variant(Record):
    """A resolved model × recipe: its path, its size, and the hash of its source."""

    name: str  # unique in a study: "smollm2-135m/bf16", or "none"
    model: str
    recipe: str
    path: Path | None = None
    content_hash: str | None = None
    commit: str | None = None  # of the hub's repository that it, or its model, came from
    checkpoint: str | None = None  # its source, if somebody else made it
    weight_bytes: int | None = None
    # the format that an engine loads (see `Recipe.form`), or None without a model
    form: str | None = None
    at_load: AtLoad | None = None
    facts: ModelFacts = ModelFacts()
    refusal: str | None = None  # why it cannot be made, known before any work
    failure: str | None = None  # why it could not be made when it was tried just now

    @property
    def model_name(self) -> str:
        """Return the name of the model, unique in a study: "smollm2-135m"."""
        return self.name.removesuffix(f"/{self.recipe}")

    @property
    def compared_as(self) -> str:
        """Return the key of the variants that are compared with each other: the model's name.

        An import may not separate model and recipe. Then the key is the size in the name, or "".
        """
        if self.recipe != UNKNOWN_RECIPE:
            return self.model_name
        size = _SIZE.search(self.name)
        if size is None:
            return ""
        return size.group().lower()

    @property
    def is_dense(self) -> bool:
        return self.form is not None and is_dense_variant_form(self.form)


def is_dense_variant_form(form: str) -> bool:
    """Return True for a model that is not quantized, in any kind of file."""
    return form.rpartition("/")[2] == DENSE


@dataclass(frozen=True)
class TensorType:
    """A type of tensors in a GGUF file."""

    name: str  # as ggml spells it
    block_weights: int  # weights that share scales. The columns of a tensor must fill blocks.
    block_bytes: int

    @property
    def bits(self) -> float:
        """Return the bits per weight."""
        return 8 * self.block_bytes / self.block_weights

    def count_bytes(self, weights: int) -> int:
        return weights // self.block_weights * self.block_bytes


_MADE = {  # by `tensors` of a recipe
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
_ONLY_READ = {
    16: TensorType("iq2_xxs", 256, 66),
    17: TensorType("iq2_xs", 256, 74),
    18: TensorType("iq3_xxs", 256, 98),
    19: TensorType("iq1_s", 256, 50),
    21: TensorType("iq3_s", 256, 110),
    22: TensorType("iq2_s", 256, 82),
    24: TensorType("i8", 1, 1),
    25: TensorType("i16", 1, 2),
    26: TensorType("i32", 1, 4),
    27: TensorType("i64", 1, 8),
    28: TensorType("f64", 1, 8),
    29: TensorType("iq1_m", 256, 56),
    34: TensorType("tq1_0", 256, 54),
    35: TensorType("tq2_0", 256, 66),
    39: TensorType("mxfp4", 32, 17),
}
TENSOR_TYPES: Mapping[int, TensorType] = MappingProxyType(_MADE | _ONLY_READ)
_BY_NAME = {type.name.lower(): type for type in _MADE.values()}


def find_tensor_type(name: str) -> TensorType:
    """Return the type with this name in any case. Raise ValueError with all names if unknown."""
    result = _BY_NAME.get(name.lower())
    if result is None:
        raise ValueError(
            f"no type of GGUF tensors is called {name!r}; known are {', '.join(_BY_NAME)}"
        )
    return result
