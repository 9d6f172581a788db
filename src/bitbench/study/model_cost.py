"""What a step of a model has to read and to compute, from its shape and the bytes of its weights.

Counted are, for each step of a batch:

- weights: all that the layers and the output head multiply with, read once per step; rows of the input embedding that
  are looked up are left out; of a mixture's experts those that the step's tokens touch, if a router sends them evenly;
- KV cache: keys and values of the context, read for every new token, and those of new tokens, written once;
- activations: what goes into and comes out of each linear layer, 16 bits a number;
- operations: two per weight and token; in attention two per number of the keys and two per number of the values.

Not counted are norms, rotations, softmax, sampling and whatever an engine does besides. A prefill computes the output
head for the last token only, as the engines do.
"""

import math
import re

from bitbench.study.base import Record
from bitbench.study.variant import ModelFacts, is_dense_variant_form

_FORM_BITS = re.compile(r"/w(\d+)a[a-z]*\d+-")  # of awq/w4a16-int
_SCALE_BITS = 0.25  # of 16 in a group of 64
VALUE_BYTES = (
    2  # of an activation, and of a number in the KV cache, unless an engine says otherwise
)


class StepCost(Record):
    """One step: a token for each sequence of a batch, or the prompts of a batch."""

    weight_bytes: int
    kv_bytes: int
    activation_bytes: int
    matmul_flops: int
    attention_flops: int
    touched_experts: float | None = (
        None  # the expected share of a layer's experts; None where there are none
    )

    @property
    def size_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes

    @property
    def flops(self) -> int:
        return self.matmul_flops + self.attention_flops


class _Shape(Record):
    """Facts that are all known."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    expert_layers: int = 0
    shared_size: int = 0

    @property
    def linears(self) -> tuple[tuple[int, int, int], ...]:
        """(how many, in, out) of the linear layers that a token goes through: query, key, value, output; gate, up and
        down, dense, of the experts that it is sent to and of shared ones; routers."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        sparse, dense = self.expert_layers, self.layers - self.expert_layers
        attention = ((self.layers, self.hidden, queries), (2 * self.layers, self.hidden, keys))
        mlps = (
            (dense, self.intermediate),
            (sparse * self.experts_per_token, self.expert_size),
            (sparse, self.shared_size),
        )
        return (
            *attention,
            (self.layers, queries, self.hidden),
            *((2 * count, self.hidden, inner) for count, inner in mlps if count * inner),
            *((count, inner, self.hidden) for count, inner in mlps if count * inner),
            (sparse, self.hidden, self.experts),
        )

    @property
    def block_weights(self) -> int:
        """That work on one token."""
        return sum(count * inputs * outputs for count, inputs, outputs in self.linears)

    @property
    def routed_weights(self) -> int:
        """Of all experts that a router chooses from."""
        return self.experts * self._expert_weights

    @property
    def stored_weights(self) -> int:
        """Of all blocks."""
        return self.block_weights + (self.experts - self.experts_per_token) * self._expert_weights

    @property
    def _expert_weights(self) -> int:
        """Of one expert in each layer."""
        return 3 * self.expert_layers * self.hidden * self.expert_size

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def block_activations(self) -> int:
        """Numbers per token that go into and come out of the linear layers."""
        return sum(count * (inputs + outputs) for count, inputs, outputs in self.linears)

    @property
    def attention_flops_per_pair(self) -> int:
        """For one token and one token of its context, in all layers."""
        return 4 * self.layers * self.heads * self.head_size

    @property
    def kv_token_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_size * VALUE_BYTES


def why_cost_unknown(facts: ModelFacts) -> str | None:
    """Why the cost of this model is unknown, or None."""
    if facts.experts and None in (
        facts.experts.per_token,
        facts.experts.size,
        facts.experts.layers,
    ):
        return f"of its {facts.experts.count} experts the configuration does not say how many a token goes to, or where"
    needed = (
        "hidden_size",
        "intermediate_size",
        "layers",
        "heads",
        "kv_heads",
        "head_size",
        "vocabulary_size",
    )
    missing = [name for name in needed if getattr(facts, name) is None]
    return f"its configuration lacks {', '.join(missing)}" if missing else None


def read_weight_bytes(facts: ModelFacts, weight_bytes: int) -> int:
    """Of all weights, those that each step reads: without an input embedding of its own, which is in 16 bits."""
    if facts.tied_embeddings or facts.hidden_size is None or facts.vocabulary_size is None:
        return weight_bytes
    return max(weight_bytes - VALUE_BYTES * facts.hidden_size * facts.vocabulary_size, 0)


def touched_share(experts: int, per_token: int, tokens: float) -> float:
    """Of a layer's experts, those that at least one of so many tokens is expected to go to, each to `per_token` of
    them, with any as likely as any other. A router that prefers some touches fewer."""
    return 1 - math.pow(1 - min(per_token / experts, 1), tokens)


def active_weight_bytes(facts: ModelFacts, weight_bytes: int, tokens: int = 1) -> int | None:
    """Of a mixture: what a step of so many tokens reads. None where all is read, or it is unknown."""
    if not facts.experts or why_cost_unknown(facts):
        return None
    return _touched(facts, _shape(facts), weight_bytes, tokens)[0]


def _touched(
    facts: ModelFacts, shape: _Shape, weight_bytes: int, tokens: float
) -> tuple[int, float | None]:
    """Bytes that a step of so many tokens reads, and the share of experts. Layers are taken to have the same bits,
    the output head 16."""
    read = read_weight_bytes(facts, weight_bytes)
    if not shape.experts:
        return read, None
    share = touched_share(shape.experts, shape.experts_per_token, tokens)
    blocks = max(read - VALUE_BYTES * shape.head_weights, 0)
    return round(read - (1 - share) * blocks * shape.routed_weights / shape.stored_weights), share


def expected_weight_bytes(facts: ModelFacts, form: str) -> int | None:
    """What a checkpoint of this form will take, good to a few percent: linear layers in the bits that the form says,
    embeddings in 16. None where the sizes or the bits are unknown."""
    bits = _bits(form)
    if bits is None or not (facts.parameters and facts.hidden_size and facts.vocabulary_size):
        return None
    embeddings = facts.hidden_size * facts.vocabulary_size * (1 if facts.tied_embeddings else 2)
    return round((facts.parameters - embeddings) * bits / 8) + VALUE_BYTES * embeddings


def _bits(form: str) -> float | None:
    """Of a stored weight, with its share of the scales."""
    if is_dense_variant_form(form):
        return 8.0 * VALUE_BYTES
    found = _FORM_BITS.search(form)
    return None if found is None else int(found[1]) + (_SCALE_BITS if int(found[1]) < 8 else 0)


def decode_cost(
    facts: ModelFacts,
    weight_bytes: int,
    batch: int,
    context: float,
    kv_token_bytes: int | None = None,
) -> StepCost:
    """One token more for each of `batch` sequences of `context` tokens. Only where `why_not` has nothing to say.
    `kv_token_bytes` are the keys and values of a token, of 16 bits each unless given."""
    shape = _shape(facts)
    activations = shape.block_activations + shape.hidden + shape.vocabulary
    read, touched = _touched(facts, shape, weight_bytes, batch)
    return StepCost(
        weight_bytes=read,
        touched_experts=touched,
        kv_bytes=round(batch * (context + 1) * (kv_token_bytes or shape.kv_token_bytes)),
        activation_bytes=batch * VALUE_BYTES * activations,
        matmul_flops=2 * batch * (shape.block_weights + shape.head_weights),
        attention_flops=round(batch * context * shape.attention_flops_per_pair),
    )


def prefill_cost(
    facts: ModelFacts,
    weight_bytes: int,
    batch: int,
    tokens: float,
    kv_token_bytes: int | None = None,
) -> StepCost:
    """`batch` prompts of `tokens` each. Only where `why_not` has nothing to say."""
    shape = _shape(facts)
    read, touched = _touched(facts, shape, weight_bytes, batch * tokens)
    return StepCost(
        weight_bytes=read,
        touched_experts=touched,
        kv_bytes=round(batch * tokens * (kv_token_bytes or shape.kv_token_bytes)),
        activation_bytes=round(
            batch
            * VALUE_BYTES
            * (tokens * shape.block_activations + shape.hidden + shape.vocabulary)
        ),
        matmul_flops=round(2 * batch * (tokens * shape.block_weights + shape.head_weights)),
        # A token sees those before it and itself: half of all pairs.
        attention_flops=round(batch * tokens * (tokens + 1) / 2 * shape.attention_flops_per_pair),
    )


def _shape(facts: ModelFacts) -> _Shape:
    return _Shape.model_validate(
        {
            "hidden": facts.hidden_size,
            "intermediate": facts.intermediate_size,
            "layers": facts.layers,
            "heads": facts.heads,
            "kv_heads": facts.kv_heads,
            "head_size": facts.head_size,
            "vocabulary": facts.vocabulary_size,
            **_experts(facts),
        }
    )


def _experts(facts: ModelFacts) -> dict[str, int | None]:
    if (experts := facts.experts) is None:
        return {}
    return {
        "experts": experts.count,
        "experts_per_token": experts.per_token,
        "expert_size": experts.size,
        "expert_layers": experts.layers,
        "shared_size": experts.shared_size,
    }
