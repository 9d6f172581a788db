"""What the folder of a model says about itself, read without torch and without loading weights."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bitbench.models.experts import experts_of
from bitbench.models.quantized import Quantization, read_quantization
from bitbench.study.recipe import COMPRESSED_TENSORS
from bitbench.study.variant import ModelFacts
from bitbench.util.errors import ModelError
from bitbench.util.model_json import read_object
from bitbench.util.tensor_files import StoredTensor, read_header

MANIFEST = "bitbench-model.json"
RANDOM_WEIGHTS = "random_weights"  # in the config.json of a shape without weights; variants of it keep the field
_HEAD = "lm_head.weight"
_LARGEST = 2**40  # of any size or count in a configuration
_TOKEN_ID = re.compile(r"[0-9]{1,9}")
# As compressed-tensors, GPTQ, AWQ, MXFP4 and bitsandbytes call what they pack several weights into, and their scales.
_PACKED = re.compile(r"\.(weight_packed|qweight)$|_blocks$")
_SCALE = re.compile(
    r"\.(weight_(scale(_inv|_2)?|zero_point|shape|g_idx|global_scale)|(input|output)_\w*(scale|zero_point)|scales|qzeros"
    r"|g_idx|absmax|quant_map|nested_\w+|SCB|weight_format|[qkv]_scale|weight\.(absmax|quant_map|nested_\w+|quant_state\..*))$"
    r"|_scales$|_scale(_inv)?$"
)
_BITS = {"I32": 32, "U32": 32, "U8": 8, "I8": 8}
_KINDS_WITH_KEYS = {"full_attention", "sliding_attention", "chunked_attention"}


def read_facts(folder: Path) -> ModelFacts:
    """Facts from config.json, the tokenizer's files and the headers of the weights.

    What has another form than it usually has, such as a size per layer, is unknown. Raises ModelError.
    """
    config = read_object(folder / "config.json")
    special = _special_token_ids(folder, _text_part(config))
    return describe_config(config, _tensors(folder), special, read_quantization(folder))


def describe_config(
    whole: Mapping[str, Any],
    tensors: Mapping[str, StoredTensor],
    special_token_ids: tuple[int, ...],
    stored: Quantization | None = None,
) -> ModelFacts:
    """Facts of a model with this config.json and these tensors."""
    config = _text_part(whole)
    heads, hidden = _count(config, "num_attention_heads"), _count(config, "hidden_size")
    tied = config.get("tie_word_embeddings")
    return ModelFacts(
        architecture=next(iter(_texts(whole, "architectures")), None),
        parameters=_parameters(tensors, stored),
        vocabulary_size=_count(config, "vocab_size"),
        special_token_ids=special_token_ids,
        context_tokens=_count(config, "max_position_embeddings"),
        hidden_size=hidden,
        layers=_count(config, "num_hidden_layers"),
        kv_heads=_kv_heads(config),
        head_size=_count(config, "head_dim") or (hidden // heads if hidden and heads else None),
        heads=heads,
        intermediate_size=_count(config, "intermediate_size"),
        tied_embeddings=tied if isinstance(tied, bool) else not any(name.endswith(_HEAD) for name in tensors),
        experts=experts_of(config),
        quantization=stored.method if stored else None,
        random_weights=whole.get(RANDOM_WEIGHTS) is True,
    )


def token_ids_of(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Special tokens that a config.json or generation_config.json names."""
    return _token_ids(_named_tokens(config))


def has_code(folder: Path) -> bool:
    """Whether Python files lie in there, or a configuration names a class that is loaded from elsewhere."""
    if any(folder.glob("*.py")):
        return True
    return any("auto_map" in read_object(path) for path in folder.glob("*config.json"))


def weight_files(folder: Path) -> list[Path]:
    """Some repositories hold the same weights a second time, as `consolidated.safetensors`: not counted, not loaded."""
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
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


def _parameters(tensors: Mapping[str, StoredTensor], stored: Quantization | None) -> int | None:
    """Weights of the model, wherever several of them lie in one number; scales and zero points are none. None where
    packed weights have no known size."""
    if stored is None:
        return sum(math.prod(tensor.shape) for tensor in tensors.values())
    count = 0
    for name, tensor in tensors.items():
        if _SCALE.search(name):
            continue
        per_number = _weights_per_number(name, tensor, stored)
        if per_number is None:
            return None
        count += round(math.prod(tensor.shape) * per_number)
    return count


def _weights_per_number(name: str, tensor: StoredTensor, stored: Quantization) -> float | None:
    is_packed = _PACKED.search(name) or (tensor.dtype == "U8" and name.endswith(".weight"))  # bitsandbytes packs these
    if not is_packed:
        return 1
    if stored.weights is None or tensor.dtype not in _BITS:
        return None
    room, bits = _BITS[tensor.dtype], stored.weights.bits
    # compressed-tensors leaves bits of a number unused where the size does not divide it, GPTQ goes on in the next.
    return room // bits if stored.method == COMPRESSED_TENSORS else room / bits


def _special_token_ids(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Token ids with a meaning of their own (begin, end, padding, roles): a random prompt must not hold them."""
    found = [*_named_tokens(config), *_named_tokens(_object_if_there(folder / "generation_config.json"))]
    added = _object_if_there(folder / "tokenizer.json").get("added_tokens")
    if isinstance(added, list):
        found += [token.get("id") for token in added if isinstance(token, dict) and token.get("special")]
    decoder = _object(_object_if_there(folder / "tokenizer_config.json"), "added_tokens_decoder")
    found += [
        int(key)
        for key, token in decoder.items()
        if isinstance(token, dict) and token.get("special") and _TOKEN_ID.fullmatch(key)
    ]
    return _token_ids(found)


def _named_tokens(config: Mapping[str, Any]) -> list[Any]:
    found: list[Any] = []
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
        value = config.get(key)
        found += value if isinstance(value, list) else [value]
    return found


def _token_ids(found: list[Any]) -> tuple[int, ...]:
    return tuple(sorted({token for token in found if type(token) is int and 0 <= token < _LARGEST}))


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A model that also sees nests its language part."""
    return _object(config, "text_config") or config


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
