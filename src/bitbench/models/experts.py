"""What a config.json says about the experts of a mixture, in the words of several families."""

from collections.abc import Mapping
from typing import Any

from bitbench.study.variant import ExpertFacts

_COUNT = ("num_experts", "num_local_experts", "n_routed_experts")
_PER_TOKEN = ("num_experts_per_tok", "experts_per_token")
_SHARED_SIZE = ("shared_expert_intermediate_size", "shared_intermediate_size")
_SHARED_COUNT = ("n_shared_experts", "num_shared_experts")
# Which layers have experts is said in ways that are not read here (Llama 4, Jamba): unknown.
_OTHER_LAYERS = ("interleave_moe_layer_step", "expert_layer_period", "moe_layers", "moe_layer_interval")
_LARGEST = 2**40
_MOST_LAYERS = 10_000


def experts_of(config: Mapping[str, Any]) -> ExpertFacts | None:
    """None where every weight works on every token."""
    count = _first(config, _COUNT)
    if count is None:
        return None
    size = _number(config, "moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size")
    shared = _first(config, _SHARED_SIZE) or (_first(config, _SHARED_COUNT) or 0) * (size or 0)
    return ExpertFacts(
        count=count, per_token=_first(config, _PER_TOKEN), size=size, layers=_layers(config), shared_size=shared
    )


def _layers(config: Mapping[str, Any]) -> int | None:
    """How many have experts; the others are dense."""
    total = _number(config, "num_hidden_layers")
    every, frequency = config.get("decoder_sparse_step", 1), config.get("moe_layer_freq", 1)
    is_known = all(type(step) is int and step > 0 for step in (every, frequency))
    if total is None or total > _MOST_LAYERS or not is_known or any(key in config for key in _OTHER_LAYERS):
        return None
    if isinstance(kinds := config.get("mlp_layer_types"), list):
        return len([kind for kind in kinds[:total] if kind == "sparse"])
    dense = config.get("mlp_only_layers") or []
    first = _number(config, "first_k_dense_replace") or 0
    sparse = [layer for layer in range(first, total) if (layer + 1) % every == 0 and layer % frequency == 0]
    return len([layer for layer in sparse if layer not in dense])


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((value for name in names if (value := _number(config, name))), None)


def _number(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if type(value) is int and 0 < value < _LARGEST else None
