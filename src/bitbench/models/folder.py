"""The folder of a model, read without torch and without loading weights: facts, experts, ordinary words of its
tokenizer, hashes of its files."""

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bitbench.models.quantized import Quantization, quantized_object_at, read_quantization
from bitbench.study.recipe import COMPRESSED_TENSORS
from bitbench.study.variant import ExpertFacts, ModelFacts
from bitbench.util.errors import ModelError
from bitbench.util.files import SafeFolder, read_bytes
from bitbench.util.model_files import StoredTensor, read_model_json, read_safetensors_header

_COUNT = ("num_experts", "num_local_experts", "n_routed_experts")
_PER_TOKEN = ("num_experts_per_tok", "experts_per_token")
_SHARED_SIZE = ("shared_expert_intermediate_size", "shared_intermediate_size")
_SHARED_COUNT = ("n_shared_experts", "num_shared_experts")
# Which layers have experts is said in ways that are not read here (Llama 4, Jamba): unknown.
_OTHER_LAYERS = (
    "interleave_moe_layer_step",
    "expert_layer_period",
    "moe_layers",
    "moe_layer_interval",
)
_MOST_LAYERS = 10_000


def model_expert_facts(config: Mapping[str, Any]) -> ExpertFacts | None:
    """None where every weight works on every token."""
    count = _first(config, _COUNT)
    if count is None:
        return None
    size = _count(
        config,
        "moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size",
    )
    shared = _first(config, _SHARED_SIZE) or (_first(config, _SHARED_COUNT) or 0) * (size or 0)
    return ExpertFacts(
        count=count,
        per_token=_first(config, _PER_TOKEN),
        size=size,
        layers=_layers(config),
        shared_size=shared,
    )


def _layers(config: Mapping[str, Any]) -> int | None:
    """How many have experts; the others are dense."""
    total = _count(config, "num_hidden_layers")
    every, frequency = config.get("decoder_sparse_step", 1), config.get("moe_layer_freq", 1)
    is_known = all(type(step) is int and step > 0 for step in (every, frequency))
    if (
        total is None
        or total > _MOST_LAYERS
        or not is_known
        or any(key in config for key in _OTHER_LAYERS)
    ):
        return None
    if isinstance(kinds := config.get("mlp_layer_types"), list):
        return len([kind for kind in kinds[:total] if kind == "sparse"])
    dense = config.get("mlp_only_layers") or []
    first = _count(config, "first_k_dense_replace") or 0
    sparse = [
        layer
        for layer in range(first, total)
        if (layer + 1) % every == 0 and layer % frequency == 0
    ]
    return len([layer for layer in sparse if layer not in dense])


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((value for name in names if (value := _count(config, name))), None)


MANIFEST = "bitbench-model.json"
RANDOM_WEIGHTS = (
    "random_weights"  # in the config.json of a shape without weights; variants of it keep the field
)
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


def read_model_facts(folder: Path) -> ModelFacts:
    """Facts from config.json, the tokenizer's files and the headers of the weights.

    What has another form than it usually has, such as a size per layer, is unknown. Raises ModelError.
    """
    config = read_model_json(folder / "config.json")
    special = _special_token_ids(folder, _text_part(config))
    tensors = {
        name: tensor
        for path in weight_files(folder)
        for name, tensor in read_safetensors_header(path).items()
    }
    return model_facts_from_config(config, tensors, special, read_quantization(folder))


def model_facts_from_config(
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
        tied_embeddings=tied
        if isinstance(tied, bool)
        else not any(name.endswith(_HEAD) for name in tensors),
        experts=model_expert_facts(config),
        quantization=stored.method if stored else None,
        random_weights=whole.get(RANDOM_WEIGHTS) is True,
    )


def model_special_token_ids(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Special tokens that a config.json or generation_config.json names."""
    return _token_ids(_named_tokens(config))


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


def _parameters(tensors: Mapping[str, StoredTensor], stored: Quantization | None) -> int | None:
    """Weights of the model, wherever several of them lie in one number; scales and zero points are none. None where
    packed weights have no known size."""
    if stored is None:
        return sum(math.prod(tensor.shape) for tensor in tensors.values())
    count = 0
    for name, tensor in tensors.items():
        if _SCALE.search(name):
            continue
        per_number = _weights_per_count(name, tensor, stored)
        if per_number is None:
            return None
        count += round(math.prod(tensor.shape) * per_number)
    return count


def _weights_per_count(name: str, tensor: StoredTensor, stored: Quantization) -> float | None:
    is_packed = _PACKED.search(name) or (tensor.dtype == "U8" and name.endswith(".weight"))
    if not is_packed:
        return 1
    if stored.weights is None or tensor.dtype not in _BITS:
        return None
    room, bits = _BITS[tensor.dtype], stored.weights.bits
    # compressed-tensors leaves bits of a number unused where the size does not divide it, GPTQ goes on in the next.
    return room // bits if stored.method == COMPRESSED_TENSORS else room / bits


def _special_token_ids(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Token ids with a meaning of their own (begin, end, padding, roles): a random prompt must not hold them."""
    found = [
        *_named_tokens(config),
        *_named_tokens(_object_if_there(folder / "generation_config.json")),
    ]
    added = _list(_object_if_there(folder / "tokenizer.json").get("added_tokens"))
    found += [
        token.get("id") for token in added if isinstance(token, dict) and token.get("special")
    ]
    decoder = quantized_object_at(
        _object_if_there(folder / "tokenizer_config.json"), "added_tokens_decoder"
    )
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
    return quantized_object_at(config, "text_config") or config


def _object_if_there(path: Path) -> dict[str, Any]:
    return read_model_json(path) if path.exists() else {}


def _count(content: Mapping[str, Any], key: str) -> int | None:
    value = content.get(key)
    return value if type(value) is int and 0 < value < _LARGEST else None


def _texts(content: Mapping[str, Any], key: str) -> list[str]:
    """A text, or a list of them."""
    value = content.get(key)
    return [
        part for part in (value if isinstance(value, list) else [value]) if isinstance(part, str)
    ]


LEAST_WORDS = 256  # with fewer, prompts would repeat themselves: a vocabulary of bytes or characters has no words
_MOST_IDS = 2**31
# A space, as byte-level tokenizers (Ġ) and sentencepiece (▁) write it, then letters that are one byte each.
_WORD = re.compile(r"[Ġ▁ ][A-Za-z]{2,}")


def word_token_ids(folder: Path) -> tuple[int, ...]:
    """Ids whose text is a space and ASCII letters; empty where the tokenizer has no such file, or hardly any words.

    What is written into a prompt decides what a model answers: random ids hold halves of characters, and bytes that are
    no text make some servers give up on an answer.
    """
    try:
        tokenizer = read_model_json(folder / "tokenizer.json")
    except ModelError:
        return ()
    added = {
        token.get("id") for token in _list(tokenizer.get("added_tokens")) if isinstance(token, dict)
    }
    return words_among(_entries(tokenizer.get("model")), added)


def words_among(entries: Iterable[tuple[str, int]], special: Collection[object]) -> tuple[int, ...]:
    """Of a vocabulary's texts and ids; those of special tokens are no words."""
    found = {id for text, id in entries if _WORD.fullmatch(text) and id not in special}
    return tuple(sorted(found)) if len(found) >= LEAST_WORDS else ()


def _entries(model: object) -> Iterator[tuple[str, int]]:
    """Text and id: an object in BPE, a list of pairs in the order of their ids in Unigram."""
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from (
            (text, id) for text, id in vocabulary.items() if type(id) is int and 0 <= id < _MOST_IDS
        )
    for id, pair in enumerate(_list(vocabulary)):
        if isinstance(pair, list) and pair and isinstance(pair[0], str):
            yield pair[0], id


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


_CACHE = "models/hashes.json"


def hash_model_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered_hashes(files: Iterable[Path], home: Path) -> dict[Path, str]:
    """Two links to one file are hashed once."""
    cache = _read(home / _CACHE)
    known, found = dict(cache), {}
    for path in files:
        state = path.stat()
        key = f"{path.resolve()}|{state.st_size}|{state.st_mtime_ns}"
        if key not in known:
            known[key] = hash_model_file(path)
        found[path] = known[key]
    if known != cache:
        SafeFolder(home).write(_CACHE, json.dumps(known, indent=1))
    return found


def _read(cache_file: Path) -> dict[str, str]:
    try:
        content: dict[str, str] = json.loads(read_bytes(cache_file))
    except (OSError, ValueError):
        return {}
    return content
