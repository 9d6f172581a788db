"""The tensors of a checkpoint, from its configuration: names and shapes as transformers writes them; their files."""

from collections.abc import Iterator, Mapping
from typing import Any

from bitbench.util.tensor_files import StoredTensor, header_bytes

Config = Mapping[str, Any]
Named = tuple[str, tuple[int, ...]]
Shard = dict[str, StoredTensor]

SHARD_BYTES = 4 * 2**30  # of a file of weights, about

_WITH_BIAS = ("qwen2",)  # of query, key and value
_WITH_HEAD_NORMS = ("qwen3", "qwen3_moe", "gemma3_text")
_NORMS = ("input_layernorm", "post_attention_layernorm")
_GEMMA_NORMS = (*_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def tensors_of(config: Config) -> Iterator[Named]:
    """Embedding, layers, last norm and, unless it is the embedding, the output head."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in _layer(config):
            yield f"model.layers.{layer}.{name}", shape
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, hidden)


def shards(tensors: Mapping[str, StoredTensor]) -> list[Shard]:
    """In their order, as many to a file as fit; one that fits nowhere has a file of its own."""
    found: list[Shard] = [{}]
    for name, tensor in tensors.items():
        if found[-1] and tensor_bytes(found[-1]) + tensor.size_bytes > SHARD_BYTES:
            found.append({})
        found[-1][name] = tensor
    return found


def stored_bytes(tensors: Mapping[str, StoredTensor]) -> int:
    """What their files take, headers included."""
    return sum(len(header_bytes(shard)) + tensor_bytes(shard) for shard in shards(tensors))


def tensor_bytes(tensors: Mapping[str, StoredTensor]) -> int:
    return sum(tensor.size_bytes for tensor in tensors.values())


def _layer(config: Config) -> Iterator[Named]:
    hidden, family = config["hidden_size"], config["model_type"]
    for name in _GEMMA_NORMS if family == "gemma3_text" else _NORMS:
        yield f"{name}.weight", (hidden,)
    yield from _attention(config)
    if "num_experts" not in config:
        yield from _mlp("mlp", hidden, config["intermediate_size"])
        return
    yield "mlp.gate.weight", (config["num_experts"], hidden)
    for expert in range(config["num_experts"]):
        yield from _mlp(f"mlp.experts.{expert}", hidden, config["moe_intermediate_size"])


def _attention(config: Config) -> Iterator[Named]:
    hidden, heads, kv_heads = (config[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    head = config.get("head_dim") or hidden // heads
    for name, rows in (("q", heads * head), ("k", kv_heads * head), ("v", kv_heads * head)):
        yield f"self_attn.{name}_proj.weight", (rows, hidden)
        if config["model_type"] in _WITH_BIAS:
            yield f"self_attn.{name}_proj.bias", (rows,)
    yield "self_attn.o_proj.weight", (hidden, heads * head)
    if config["model_type"] in _WITH_HEAD_NORMS:
        yield "self_attn.q_norm.weight", (head,)
        yield "self_attn.k_norm.weight", (head,)


def _mlp(place: str, hidden: int, inner: int) -> Iterator[Named]:
    yield f"{place}.gate_proj.weight", (inner, hidden)
    yield f"{place}.up_proj.weight", (inner, hidden)
    yield f"{place}.down_proj.weight", (hidden, inner)
