"""What the folder of a model says about itself, read without torch and without loading weights."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bitbench.core.recorded.variant import ModelFacts
from bitbench.ground.errors import ModelError
from bitbench.ground.model_json import read_object
from bitbench.ground.tensor_files import StoredTensor, read_header
from bitbench.models.quantized import read_quantization

MANIFEST = "bitbench-model.json"
_HEAD = "lm_head.weight"
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # as different families call them
_LARGEST = 2**40  # of any size or count in a configuration
_TOKEN_ID = re.compile(r"[0-9]{1,9}")
_KINDS_WITH_KEYS = {"full_attention", "sliding_attention", "chunked_attention"}


def read_facts(folder: Path) -> ModelFacts:
    """Facts from config.json, the tokenizer's files and the headers of the weights.

    What has another form than it usually has, such as a size per layer, is unknown. Raises ModelError.
    """
    whole = read_object(folder / "config.json")
    config = _object(whole, "text_config") or whole  # a model that also sees nests its language part
    heads, hidden = _count(config, "num_attention_heads"), _count(config, "hidden_size")
    tensors = _tensors(folder)
    tied = config.get("tie_word_embeddings")
    return ModelFacts(
        architecture=next(iter(_texts(whole, "architectures")), None),
        parameters=sum(math.prod(tensor.shape) for tensor in tensors.values()),
        vocabulary_size=_count(config, "vocab_size"),
        special_token_ids=_special_token_ids(folder, config),
        context_tokens=_count(config, "max_position_embeddings"),
        hidden_size=hidden,
        layers=_count(config, "num_hidden_layers"),
        kv_heads=_kv_heads(config),
        head_size=_count(config, "head_dim") or (hidden // heads if hidden and heads else None),
        heads=heads,
        intermediate_size=_count(config, "intermediate_size"),
        tied_embeddings=tied if isinstance(tied, bool) else not any(name.endswith(_HEAD) for name in tensors),
        experts=next((count for key in _EXPERTS if (count := _count(config, key))), None),
        quantization=stored.method if (stored := read_quantization(folder)) else None,
    )


def has_code(folder: Path) -> bool:
    """Whether Python files lie in there, or a configuration names a class that is loaded from elsewhere."""
    if any(folder.glob("*.py")):
        return True
    return any("auto_map" in read_object(path) for path in folder.glob("*config.json"))


def weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"{folder} contains no .safetensors file; save the model as safetensors, the only format bitbench reads."
        )
    return files


def _kv_heads(config: Mapping[str, Any]) -> int | None:
    """None with latent attention (kv_lora_rank), and where some layers have a state instead (layer_types)."""
    if "kv_lora_rank" in config or not set(_texts(config, "layer_types")) <= _KINDS_WITH_KEYS:
        return None
    named = config.get("num_key_value_heads")
    return _count(config, "num_attention_heads" if named is None else "num_key_value_heads")


def _tensors(folder: Path) -> dict[str, StoredTensor]:
    return {name: tensor for path in weight_files(folder) for name, tensor in read_header(path).items()}


def _special_token_ids(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Token ids with a meaning of their own (begin, end, padding, roles): a random prompt must not hold them."""
    found: list[Any] = []
    for source in (config, _object_if_there(folder / "generation_config.json")):
        for key in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
            value = source.get(key)
            found += value if isinstance(value, list) else [value]
    added = _object_if_there(folder / "tokenizer.json").get("added_tokens")
    if isinstance(added, list):
        found += [token.get("id") for token in added if isinstance(token, dict) and token.get("special")]
    decoder = _object(_object_if_there(folder / "tokenizer_config.json"), "added_tokens_decoder")
    found += [
        int(key)
        for key, token in decoder.items()
        if isinstance(token, dict) and token.get("special") and _TOKEN_ID.fullmatch(key)
    ]
    return tuple(sorted({token for token in found if type(token) is int and 0 <= token < _LARGEST}))


def _object_if_there(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}


def _object(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def _count(content: Mapping[str, Any], key: str) -> int | None:
    value = content.get(key)
    return value if type(value) is int and 0 < value < _LARGEST else None


def _texts(content: Mapping[str, Any], key: str) -> list[str]:
    """A text, or a list of them."""
    value = content.get(key)
    return [part for part in (value if isinstance(value, list) else [value]) if isinstance(part, str)]
