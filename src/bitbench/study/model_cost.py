"""The bytes that a step of a model reads and the operations it computes, from the model's shape
and the size of its weights.

Each step of a batch counts:

- weights: everything that the layers and the output head multiply with, read once per step. Rows
  of the input embedding are left out. In a mixture only the experts that the step's tokens use
  count, if a router sends tokens evenly.
- KV cache: keys and values of the context, read for every new token, and the keys and values of
  new tokens, written once.
- activations: inputs and outputs of each linear layer, 16 bits per number.
- operations: two per weight and token. In attention two per number of the keys and two per number
  of the values.

Norms, rotations, softmax, sampling and other work of an engine do not count. A prefill computes
the output head for the last token only, as the engines do.
"""

import math
import re

from bitbench.study.base import Record
from bitbench.study.variant import ModelFacts, is_dense_variant_form

_FORM_BITS = re.compile(r"/w(\d+)a[a-z]*\d+-")  # the 4 in awq/w4a16-int
_SCALE_BITS = 0.25  # per weight: a scale of 16 bits in a group of 64
# of an activation, and of a number in the KV cache, unless an engine says otherwise
VALUE_BYTES = 2


class StepCost(Record):
    """The cost of one step: one token per sequence of a batch, or the prompts of a batch."""

    weight_bytes: int
    kv_bytes: int
    activation_bytes: int
    matmul_flops: int
    attention_flops: int
    # the expected share of a layer's experts, or None without experts
    touched_experts: float | None = None

    @property
    def size_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes

    @property
    def flops(self) -> int:
        return self.matmul_flops + self.attention_flops


class _Shape(Record):
    """The facts about a model that its cost depends on, all known."""

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
        """Return (count, inputs, outputs) of the linear layers that a token goes through.

        These are query, key, value and output, then gate, up and down (dense, of the chosen experts
        and of shared experts), then routers.
        """
        queries = self.heads * self.head_size
        keys = self.kv_heads * self.head_size
        sparse = self.expert_layers
        mlps = [
            (self.layers - sparse, self.intermediate),
            (sparse * self.experts_per_token, self.expert_size),
            (sparse, self.shared_size),
        ]
        used = [(count, inner) for count, inner in mlps if count * inner]
        return (
            (self.layers, self.hidden, queries),
            (2 * self.layers, self.hidden, keys),
            (self.layers, queries, self.hidden),
            *((2 * count, self.hidden, inner) for count, inner in used),
            *((count, inner, self.hidden) for count, inner in used),
            (sparse, self.hidden, self.experts),
        )

    @property
    def block_weights(self) -> int:
        """Return the number of weights in the layers that work on one token."""
        return sum(count * inputs * outputs for count, inputs, outputs in self.linears)

    @property
    def routed_weights(self) -> int:
        """Return the number of weights in all experts that a router chooses from."""
        return self.experts * self._expert_weights

    @property
    def stored_weights(self) -> int:
        """Return the number of weights in all blocks."""
        return self.block_weights + (self.experts - self.experts_per_token) * self._expert_weights

    @property
    def _expert_weights(self) -> int:
        """Return the number of weights of one expert in each layer."""
        return 3 * self.expert_layers * self.hidden * self.expert_size

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def block_activations(self) -> int:
        """Return the numbers per token that go into and come out of the linear layers."""
        return sum(count * (inputs + outputs) for count, inputs, outputs in self.linears)

    @property
    def attention_flops_per_pair(self) -> int:
        """Return the operations in all layers for one token and one token of its context."""
        return 4 * self.layers * self.heads * self.head_size

    @property
    def kv_token_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_size * VALUE_BYTES


def explain_unknown_cost(facts: ModelFacts) -> str | None:
    """Return the reason why the cost of this model is unknown, or None."""
    experts = facts.experts
    if experts and None in (experts.per_token, experts.size, experts.layers):
        return (
            f"of its {experts.count} experts the configuration does not say how many a token "
            "goes to, or where"
        )
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
    if missing:
        return f"its configuration lacks {', '.join(missing)}"
    return None


def count_read_bytes(facts: ModelFacts, weight_bytes: int) -> int:
    """Return the bytes of the weights that each step reads.

    A separate input embedding, which has 16 bits per number, is left out.
    """
    if facts.tied_embeddings or facts.hidden_size is None or facts.vocabulary_size is None:
        return weight_bytes
    return max(weight_bytes - VALUE_BYTES * facts.hidden_size * facts.vocabulary_size, 0)


def estimate_touched_share(experts: int, per_token: int, tokens: float) -> float:
    """Return the expected share of a layer's experts that this many tokens use.

    Each token goes to `per_token` experts, all equally likely. A router with preferences uses
    fewer.
    """
    return 1 - math.pow(1 - min(per_token / experts, 1), tokens)


def estimate_active_bytes(facts: ModelFacts, weight_bytes: int, tokens: int = 1) -> int | None:
    """Return the bytes that a step of this many tokens reads in a mixture of experts.

    None if it reads all weights, or if the cost is unknown.
    """
    if not facts.experts or explain_unknown_cost(facts):
        return None
    return _estimate_touched(facts, _make_shape(facts), weight_bytes, tokens)[0]


def _estimate_touched(
    facts: ModelFacts, shape: _Shape, weight_bytes: int, tokens: float
) -> tuple[int, float | None]:
    """Return the bytes that a step of this many tokens reads, and the share of experts.

    It assumes equal bits in all layers, and 16 bits in the output head.
    """
    read = count_read_bytes(facts, weight_bytes)
    if not shape.experts:
        return read, None
    share = estimate_touched_share(shape.experts, shape.experts_per_token, tokens)
    blocks = max(read - VALUE_BYTES * shape.head_weights, 0)
    return round(read - (1 - share) * blocks * shape.routed_weights / shape.stored_weights), share


def estimate_weight_bytes(facts: ModelFacts, form: str) -> int | None:
    """Return the size of a checkpoint of this form within a few percent.

    Linear layers have the bits of the form, embeddings 16. None if the sizes or the bits are
    unknown.
    """
    bits = _parse_bits(form)
    if bits is None or not (facts.parameters and facts.hidden_size and facts.vocabulary_size):
        return None
    embeddings = facts.hidden_size * facts.vocabulary_size
    if not facts.tied_embeddings:
        embeddings *= 2
    return round((facts.parameters - embeddings) * bits / 8) + VALUE_BYTES * embeddings


def _parse_bits(form: str) -> float | None:
    """Return the bits of a stored weight with its share of the scales, or None if unknown."""
    if is_dense_variant_form(form):
        return 8.0 * VALUE_BYTES
    match = _FORM_BITS.search(form)
    if match is None:
        return None
    bits = int(match[1])
    if bits < 8:
        return bits + _SCALE_BITS
    return bits


def compute_decode_cost(
    facts: ModelFacts,
    weight_bytes: int,
    batch: int,
    context: float,
    kv_token_bytes: int | None = None,
) -> StepCost:
    """Compute the cost of one more token for each of `batch` sequences of `context` tokens.

    Call it only if `explain_unknown_cost` returns None. `kv_token_bytes` is the size of a token's
    keys and values. The default is 16 bits per number.
    """
    shape = _make_shape(facts)
    activations = shape.block_activations + shape.hidden + shape.vocabulary
    read, touched = _estimate_touched(facts, shape, weight_bytes, batch)
    return StepCost(
        weight_bytes=read,
        touched_experts=touched,
        kv_bytes=round(batch * (context + 1) * (kv_token_bytes or shape.kv_token_bytes)),
        activation_bytes=batch * VALUE_BYTES * activations,
        matmul_flops=2 * batch * (shape.block_weights + shape.head_weights),
        attention_flops=round(batch * context * shape.attention_flops_per_pair),
    )


def compute_prefill_cost(
    facts: ModelFacts,
    weight_bytes: int,
    batch: int,
    tokens: float,
    kv_token_bytes: int | None = None,
) -> StepCost:
    """Compute the cost of `batch` prompts of `tokens` each.

    Call it only if `explain_unknown_cost` returns None.
    """
    shape = _make_shape(facts)
    read, touched = _estimate_touched(facts, shape, weight_bytes, batch * tokens)
    activations = tokens * shape.block_activations + shape.hidden + shape.vocabulary
    return StepCost(
        weight_bytes=read,
        touched_experts=touched,
        kv_bytes=round(batch * tokens * (kv_token_bytes or shape.kv_token_bytes)),
        activation_bytes=round(batch * VALUE_BYTES * activations),
        matmul_flops=round(2 * batch * (tokens * shape.block_weights + shape.head_weights)),
        # A token attends to itself and the tokens before it: half of all pairs.
        attention_flops=round(batch * tokens * (tokens + 1) / 2 * shape.attention_flops_per_pair),
    )


def _make_shape(facts: ModelFacts) -> _Shape:
    return _Shape.model_validate(
        {
            "hidden": facts.hidden_size,
            "intermediate": facts.intermediate_size,
            "layers": facts.layers,
            "heads": facts.heads,
            "kv_heads": facts.kv_heads,
            "head_size": facts.head_size,
            "vocabulary": facts.vocabulary_size,
            **_collect_expert_sizes(facts),
        }
    )


def _collect_expert_sizes(facts: ModelFacts) -> dict[str, int | None]:
    experts = facts.experts
    if experts is None:
        return {}
    return {
        "experts": experts.count,
        "experts_per_token": experts.per_token,
        "expert_size": experts.size,
        "expert_layers": experts.layers,
        "shared_size": experts.shared_size,
    }
