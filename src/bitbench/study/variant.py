"""A model, what a recipe made of it, and the types that tensors of a GGUF file have."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bitbench.study.base import Record

NO_MODEL = "none"  # what an engine that needs no weights (null) runs
UNKNOWN_RECIPE = "unknown"  # of an import that does not tell model and recipe apart
DENSE = "dense"  # the form of a model that is not quantized, also as the last part of one


_SIZE = re.compile(
    r"(?<![\w.])\d+(\.\d+)?[bm](?![a-z0-9])", re.IGNORECASE
)  # the 7B of Qwen2.5-7B-Instruct


class ExpertFacts(Record):
    """A mixture: in some of its layers a router sends each token to a few of many experts. None where the folder does
    not say."""

    count: int  # in a layer
    per_token: int | None = None
    size: int | None = None  # inner numbers of one of them
    layers: int | None = None  # that have experts; the others are dense
    shared_size: int = 0  # inner numbers of those that every token goes to, together


class ModelFacts(Record):
    """What the folder of a model says about itself. None where it does not say."""

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
    experts: ExpertFacts | None = None  # of a mixture; None: every weight works on every token
    random_weights: bool = (
        False  # a shape without trained weights: for speed, memory and kernels, never for quality
    )
    quantization: str | None = (
        None  # the format its layers are stored in, such as compressed-tensors; None: dense
    )
    rounded_before: str | None = (
        None  # what its linear layers were before it was dense: "4 bits (Q4_1)"
    )

    def kv_bytes_per_token(self, value_bytes: int) -> int | None:
        """Keys and values of one token in all layers, each number in so many bytes."""
        if not (self.layers and self.kv_heads and self.head_size):
            return None
        return 2 * self.layers * self.kv_heads * self.head_size * value_bytes


class AtLoad(Record):
    """Compressed by an engine itself while it loads the model as it is: nothing of it lies on disk."""

    engine: str
    quantize: str  # the method, in that engine's words


class Variant(Record):
    """Model × recipe, resolved: where it lies, what it weighs, and the hash of what it was made from."""

    name: str  # unique in a study: "smollm2-135m/bf16", or "none"
    model: str
    recipe: str
    path: Path | None = None
    content_hash: str | None = None
    commit: str | None = None  # of the hub's repository that it, or its model, came from
    checkpoint: str | None = None  # where it came from, if somebody else made it
    weight_bytes: int | None = None
    form: str | None = (
        None  # what an engine gets to load, see `Recipe.form`; None where there is no model
    )
    at_load: AtLoad | None = None
    facts: ModelFacts = ModelFacts()
    refusal: str | None = None  # why it cannot be made, known before any work
    failure: str | None = None  # why it could not be made when it was tried just now

    @property
    def model_name(self) -> str:
        """Unique in a study, as its name is: "smollm2-135m"."""
        return self.name.removesuffix(f"/{self.recipe}")

    @property
    def compared_as(self) -> str:
        """Variants in which this is equal are compared with each other: those of one model. Of an import that does
        not tell model and recipe apart, those with the same size in their names, or with none."""
        if self.recipe != UNKNOWN_RECIPE:
            return self.model_name
        size = _SIZE.search(self.name)
        return size.group().lower() if size else ""

    @property
    def is_dense(self) -> bool:
        return self.form is not None and is_dense_variant_form(self.form)


def is_dense_variant_form(form: str) -> bool:
    """The model as it is, not quantized, in whatever kind of file."""
    return form.rpartition("/")[2] == DENSE


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


def tensor_type(name: str) -> TensorType:
    """By its name in any case; raises ValueError with the names that there are."""
    if (found := _BY_NAME.get(name.lower())) is None:
        raise ValueError(
            f"no type of GGUF tensors is called {name!r}; known are {', '.join(_BY_NAME)}"
        )
    return found
