"""Published shapes of models and the tensors that follow from them: enough to plan before one is downloaded, or to
write a checkpoint of random weights.

The numbers are those of the config.json that the publisher of each model ships. Speed, memory and the choice of
kernels follow from them, and not from what the weights hold.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from bitbench.models.folder import RANDOM_WEIGHTS, model_facts_from_config, model_special_token_ids
from bitbench.study.variant import ModelFacts
from bitbench.util.model_files import StoredTensor, safetensors_header_bytes

Config = Mapping[str, Any]
Named = tuple[str, tuple[int, ...]]
Shard = dict[str, StoredTensor]

SHARD_BYTES = 4 * 2**30  # of a file of weights, about

_WITH_BIAS = ("qwen2",)  # of query, key and value
_WITH_HEAD_NORMS = ("qwen3", "qwen3_moe", "gemma3_text")
_NORMS = ("input_layernorm", "post_attention_layernorm")
_GEMMA_NORMS = (*_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def _shape_tensors(config: Config) -> Iterator[Named]:
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


def _shard_file_bytes(tensors: Mapping[str, StoredTensor]) -> int:
    """What their files take, headers included."""
    return sum(len(safetensors_header_bytes(shard)) + tensor_bytes(shard) for shard in shards(tensors))


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


@dataclass(frozen=True)
class Shape:
    name: str
    published_as: tuple[str, ...]  # repositories of the hub whose model has this shape
    config: Config

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """In the order in which they are written."""
        return {name: StoredTensor("BF16", shape, 2 * math.prod(shape)) for name, shape in _shape_tensors(self.config)}

    @property
    def weight_bytes(self) -> int:
        """What its files of weights take, headers included."""
        return _shard_file_bytes(self.tensors)

    @cached_property
    def facts(self) -> ModelFacts:
        """Those of the checkpoint with random weights."""
        return model_facts_from_config(self.config, self.tensors, model_special_token_ids(self.config))

    @property
    def published_facts(self) -> ModelFacts:
        """Those of the published model, as far as its configuration says them."""
        return self.facts.model_copy(update={"random_weights": False})


def known_model_shape(repository: str) -> Shape | None:
    """The shape of a model on the hub, by ORG/NAME; None where it is not in the table."""
    return next((shape for shape in SHAPES.values() if repository in shape.published_as), None)


def _config(architecture: str, model_type: str, **fields: Any) -> Config:
    return MappingProxyType(
        {
            "architectures": [architecture],
            "model_type": model_type,
            "torch_dtype": "bfloat16",
            "transformers_version": "5.0.0",  # without one, transformers warns of a fault in older tokenizers
            "use_cache": True,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            RANDOM_WEIGHTS: True,
            **fields,
        }
    )


def _sizes(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }


def _smollm2(sizes: dict[str, int], rope_theta: int) -> Config:
    return _config(
        "LlamaForCausalLM",
        "llama",
        **sizes,
        vocab_size=49_152,
        max_position_embeddings=8_192,
        tie_word_embeddings=True,
        rope_theta=rope_theta,
        rms_norm_eps=1e-5,
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )


def _llama31(sizes: dict[str, int]) -> Config:
    return _config(
        "LlamaForCausalLM",
        "llama",
        **sizes,
        vocab_size=128_256,
        max_position_embeddings=131_072,
        tie_word_embeddings=False,
        rope_theta=500_000.0,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8_192,
        },
        rms_norm_eps=1e-5,
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
        bos_token_id=128_000,
        eos_token_id=[128_001, 128_008, 128_009],
    )


def _qwen2(sizes: dict[str, int], *, vocabulary: int, tied: bool) -> Config:
    return _config(
        "Qwen2ForCausalLM",
        "qwen2",
        **sizes,
        vocab_size=vocabulary,
        max_position_embeddings=32_768,
        tie_word_embeddings=tied,
        rope_theta=1_000_000.0,
        rms_norm_eps=1e-6,
        hidden_act="silu",
        use_sliding_window=False,
        bos_token_id=151_643,
        eos_token_id=151_645,
    )


def _qwen3(sizes: dict[str, int], *, tied: bool, architecture: str = "Qwen3ForCausalLM", **experts: Any) -> Config:
    return _config(
        architecture,
        "qwen3_moe" if experts else "qwen3",
        **sizes,
        **experts,
        head_dim=128,
        vocab_size=151_936,
        max_position_embeddings=40_960,
        tie_word_embeddings=tied,
        rope_theta=1_000_000,
        rms_norm_eps=1e-6,
        hidden_act="silu",
        attention_bias=False,
        use_sliding_window=False,
        bos_token_id=151_643,
        eos_token_id=151_645,
    )


def _gemma3(sizes: dict[str, int], *, vocabulary: int, context: int, window: int, **fields: Any) -> Config:
    """The part that reads and writes text; the larger ones are published with one that sees."""
    return _config(
        "Gemma3ForCausalLM",
        "gemma3_text",
        **sizes,
        **fields,
        head_dim=256,
        vocab_size=vocabulary,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        rope_theta=1_000_000,
        rope_local_base_freq=10_000,
        rms_norm_eps=1e-6,
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=256,
        sliding_window=window,
        sliding_window_pattern=6,
        attention_bias=False,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )


def _qwen2_names(size: str) -> tuple[str, ...]:
    """Those without -Instruct say another context."""
    return f"Qwen/Qwen2.5-{size}-Instruct", f"Qwen/Qwen2-{size}-Instruct"


def _smollm2_names(size: str) -> tuple[str, ...]:
    return (f"HuggingFaceTB/SmolLM2-{size}-Instruct", f"HuggingFaceTB/SmolLM2-{size}")


def _llama31_names(size: str) -> tuple[str, ...]:
    return (f"meta-llama/Llama-3.1-{size}-Instruct", f"meta-llama/Llama-3.1-{size}")


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("smollm2-135m", _smollm2_names("135M"), _smollm2(_sizes(576, 1_536, 30, 9, 3), 100_000)),
        Shape("smollm2-360m", _smollm2_names("360M"), _smollm2(_sizes(960, 2_560, 32, 15, 5), 100_000)),
        Shape("smollm2-1.7b", _smollm2_names("1.7B"), _smollm2(_sizes(2_048, 8_192, 24, 32, 32), 130_000)),
        Shape(
            "qwen2.5-0.5b",
            _qwen2_names("0.5B"),
            _qwen2(_sizes(896, 4_864, 24, 14, 2), vocabulary=151_936, tied=True),
        ),
        Shape(
            "qwen2.5-1.5b",
            _qwen2_names("1.5B"),
            _qwen2(_sizes(1_536, 8_960, 28, 12, 2), vocabulary=151_936, tied=True),
        ),
        Shape(
            "qwen2.5-7b",
            _qwen2_names("7B"),
            _qwen2(_sizes(3_584, 18_944, 28, 28, 4), vocabulary=152_064, tied=False),
        ),
        Shape(
            "qwen2.5-72b",
            _qwen2_names("72B"),
            _qwen2(_sizes(8_192, 29_568, 80, 64, 8), vocabulary=152_064, tied=False),
        ),
        Shape("qwen3-0.6b", ("Qwen/Qwen3-0.6B",), _qwen3(_sizes(1_024, 3_072, 28, 16, 8), tied=True)),
        Shape("qwen3-4b", ("Qwen/Qwen3-4B",), _qwen3(_sizes(2_560, 9_728, 36, 32, 8), tied=True)),
        Shape("qwen3-8b", ("Qwen/Qwen3-8B",), _qwen3(_sizes(4_096, 12_288, 36, 32, 8), tied=False)),
        Shape(
            "qwen3-30b-a3b",
            ("Qwen/Qwen3-30B-A3B",),
            _qwen3(
                _sizes(2_048, 6_144, 48, 32, 4),
                tied=False,
                architecture="Qwen3MoeForCausalLM",
                num_experts=128,
                num_experts_per_tok=8,
                moe_intermediate_size=768,
                decoder_sparse_step=1,
                mlp_only_layers=[],
                norm_topk_prob=True,
                output_router_logits=False,
                router_aux_loss_coef=0.001,
            ),
        ),
        Shape("llama-3.1-8b", _llama31_names("8B"), _llama31(_sizes(4_096, 14_336, 32, 32, 8))),
        Shape("llama-3.1-70b", _llama31_names("70B"), _llama31(_sizes(8_192, 28_672, 80, 64, 8))),
        Shape(
            "gemma-3-1b",
            ("google/gemma-3-1b-it", "google/gemma-3-1b-pt"),
            _gemma3(_sizes(1_152, 6_912, 26, 4, 1), vocabulary=262_144, context=32_768, window=512),
        ),
        Shape(
            "gemma-3-4b",
            (),
            _gemma3(
                _sizes(2_560, 10_240, 34, 8, 4),
                vocabulary=262_208,
                context=131_072,
                window=1_024,
                rope_scaling={"rope_type": "linear", "factor": 8.0},
            ),
        ),
    )
}
