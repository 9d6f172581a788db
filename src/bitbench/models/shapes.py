"""Published shapes of models and the tensors that follow from them.

They are enough to plan before a download, or to write a checkpoint of random weights. Speed, memory
and the choice of kernels depend on the shape, and not on the values of the weights.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import Field

from bitbench.models.folder import collect_special_token_ids, parse_model_facts
from bitbench.study.base import Spec
from bitbench.study.variant import ModelFacts
from bitbench.util import yaml_file
from bitbench.util.model_files import StoredTensor, make_safetensors_header

Config = Mapping[str, Any]
Named = tuple[str, tuple[int, ...]]
Shard = dict[str, StoredTensor]

SHARD_BYTES = 4 * 2**30  # about the size of a file of weights

_WITH_BIAS = ("qwen2",)  # in query, key and value
_WITH_HEAD_NORMS = ("qwen3", "qwen3_moe", "gemma3_text")
_NORMS = ("input_layernorm", "post_attention_layernorm")
_GEMMA_NORMS = (*_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def _iter_tensor_shapes(config: Config) -> Iterator[Named]:
    """Yield the embedding, layers, last norm and, unless it is the embedding, the output head."""
    hidden = config["hidden_size"]
    vocabulary = config["vocab_size"]
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in _iter_layer(config):
            yield f"model.layers.{layer}.{name}", shape
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, hidden)


def split_into_shards(tensors: Mapping[str, StoredTensor]) -> list[Shard]:
    """Return the tensors in order, divided among files of at most SHARD_BYTES.

    A tensor above that size has a file of its own.
    """
    files: list[Shard] = [{}]
    for name, tensor in tensors.items():
        if files[-1] and compute_tensor_bytes(files[-1]) + tensor.size_bytes > SHARD_BYTES:
            files.append({})
        files[-1][name] = tensor
    return files


def _compute_file_bytes(tensors: Mapping[str, StoredTensor]) -> int:
    """Return the size of the tensors' files, headers included."""
    return sum(
        len(make_safetensors_header(shard)) + compute_tensor_bytes(shard)
        for shard in split_into_shards(tensors)
    )


def compute_tensor_bytes(tensors: Mapping[str, StoredTensor]) -> int:
    return sum(tensor.size_bytes for tensor in tensors.values())


def _iter_layer(config: Config) -> Iterator[Named]:
    hidden = config["hidden_size"]
    family = config["model_type"]
    norms = _GEMMA_NORMS if family == "gemma3_text" else _NORMS
    for name in norms:
        yield f"{name}.weight", (hidden,)
    yield from _iter_attention(config)
    if "num_experts" not in config:
        yield from _iter_mlp("mlp", hidden, config["intermediate_size"])
        return
    yield "mlp.gate.weight", (config["num_experts"], hidden)
    for expert in range(config["num_experts"]):
        yield from _iter_mlp(f"mlp.experts.{expert}", hidden, config["moe_intermediate_size"])


def _iter_attention(config: Config) -> Iterator[Named]:
    hidden = config["hidden_size"]
    heads = config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"]
    head = config.get("head_dim") or hidden // heads
    for name, rows in (("q", heads * head), ("k", kv_heads * head), ("v", kv_heads * head)):
        yield f"self_attn.{name}_proj.weight", (rows, hidden)
        if config["model_type"] in _WITH_BIAS:
            yield f"self_attn.{name}_proj.bias", (rows,)
    yield "self_attn.o_proj.weight", (hidden, heads * head)
    if config["model_type"] in _WITH_HEAD_NORMS:
        yield "self_attn.q_norm.weight", (head,)
        yield "self_attn.k_norm.weight", (head,)


def _iter_mlp(prefix: str, hidden: int, inner: int) -> Iterator[Named]:
    yield f"{prefix}.gate_proj.weight", (inner, hidden)
    yield f"{prefix}.up_proj.weight", (inner, hidden)
    yield f"{prefix}.down_proj.weight", (hidden, inner)


@dataclass(frozen=True)
class Shape:
    name: str
    published_as: tuple[str, ...]  # the hub's repositories whose model has this shape
    config: Config

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """The tensors by name, in the order of the files."""
        return {
            name: StoredTensor("BF16", shape, 2 * math.prod(shape))
            for name, shape in _iter_tensor_shapes(self.config)
        }

    @property
    def weight_bytes(self) -> int:
        """The size of its files of weights, headers included."""
        return _compute_file_bytes(self.tensors)

    @cached_property
    def facts(self) -> ModelFacts:
        """The facts of a checkpoint with random weights."""
        special = collect_special_token_ids(self.config)
        return parse_model_facts(self.config, self.tensors, special)

    @property
    def published_facts(self) -> ModelFacts:
        """The facts of the published model that its configuration states."""
        return self.facts.model_copy(update={"random_weights": False})


def find_model_shape(repository: str) -> Shape | None:
    """Return the shape of a model on the hub by ORG/NAME, or None if it is not in the table."""
    return next((shape for shape in SHAPES.values() if repository in shape.published_as), None)


_FILE = Path(__file__).with_name("shapes.yaml")
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)


class _ShapeEntry(Spec):
    family: str
    published_as: tuple[str, ...]
    sizes: tuple[int, int, int, int, int]  # in the order of _SIZES
    config: dict[str, Any] = Field(default_factory=dict)


class _ShapeTable(Spec):
    """The content of `shapes.yaml`: fields of all shapes, of each family, and of each shape."""

    every: dict[str, Any]
    families: dict[str, dict[str, Any]]
    shapes: dict[str, _ShapeEntry]

    def shape(self, name: str) -> Shape:
        entry = self.shapes[name]
        sizes = dict(zip(_SIZES, entry.sizes, strict=True))
        config = {**self.every, **self.families[entry.family], **sizes, **entry.config}
        return Shape(name, entry.published_as, MappingProxyType(config))


def _read_shapes() -> dict[str, Shape]:
    text = _FILE.read_text(encoding="utf-8")
    table = yaml_file.parse_yaml(
        text, _ShapeTable, name=_FILE.name, outline="`shapes:`", error=ValueError
    )
    return {name: table.shape(name) for name in table.shapes}


SHAPES = _read_shapes()
