"""The folder of a model, read without torch and without loading weights.

It gives the model's facts, experts, special tokens and ordinary words, and the files' hashes.
"""

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bitbench.models.quantized import Quantization, get_config_object, read_quantization
from bitbench.study.recipe import COMPRESSED_TENSORS
from bitbench.study.variant import ExpertFacts, ModelFacts
from bitbench.util.errors import ModelError
from bitbench.util.files import SafeFolder, read_bytes
from bitbench.util.model_files import StoredTensor, read_model_json, read_safetensors_header

_COUNT = ("num_experts", "num_local_experts", "n_routed_experts")
_PER_TOKEN = ("num_experts_per_tok", "experts_per_token")
_SHARED_SIZE = ("shared_expert_intermediate_size", "shared_intermediate_size")
_SHARED_COUNT = ("n_shared_experts", "num_shared_experts")
# The layers with experts are unknown if the configuration has one of these (Llama 4, Jamba).
_OTHER_LAYERS = (
    "interleave_moe_layer_step",
    "expert_layer_period",
    "moe_layers",
    "moe_layer_interval",
)
_MOST_LAYERS = 10_000


def parse_expert_facts(config: Mapping[str, Any]) -> ExpertFacts | None:
    """Return the facts of a mixture's experts, or None if every weight is used for every token."""
    count = _find_first_count(config, _COUNT)
    if count is None:
        return None
    size_key = "moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size"
    size = _get_count(config, size_key)
    shared_count = _find_first_count(config, _SHARED_COUNT) or 0
    return ExpertFacts(
        count=count,
        per_token=_find_first_count(config, _PER_TOKEN),
        size=size,
        layers=_count_expert_layers(config),
        shared_size=_find_first_count(config, _SHARED_SIZE) or shared_count * (size or 0),
    )


def _count_expert_layers(config: Mapping[str, Any]) -> int | None:
    """Return the number of layers with experts, or None if it is unknown. The others are dense."""
    total = _get_count(config, "num_hidden_layers")
    if total is None or total > _MOST_LAYERS or any(key in config for key in _OTHER_LAYERS):
        return None
    step = config.get("decoder_sparse_step", 1)
    frequency = config.get("moe_layer_freq", 1)
    if not _is_positive(step) or not _is_positive(frequency):
        return None
    if isinstance(kinds := config.get("mlp_layer_types"), list):
        return kinds[:total].count("sparse")
    dense = config.get("mlp_only_layers") or []
    first = _get_count(config, "first_k_dense_replace") or 0
    sparse = 0
    for layer in range(first, total):
        has_experts = (layer + 1) % step == 0 and layer % frequency == 0
        if has_experts and layer not in dense:
            sparse += 1
    return sparse


def _is_positive(value: object) -> bool:
    return type(value) is int and value > 0


def _find_first_count(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    counts = (_get_count(config, name) for name in names)
    return next(filter(None, counts), None)


MANIFEST = "bitbench-model.json"
# In the config.json of a shape without weights. Its variants keep the field.
RANDOM_WEIGHTS = "random_weights"
_HEAD = "lm_head.weight"
_LARGEST = 2**40  # of any size or count in a configuration
_TOKEN_ID = re.compile(r"[0-9]{1,9}")
# The names of packed weights, and of scales, in compressed-tensors, GPTQ, AWQ, MXFP4 and
# bitsandbytes.
_PACKED = re.compile(r"\.(weight_packed|qweight)$|_blocks$")
_SCALE = re.compile(
    r"\.(weight_(scale(_inv|_2)?|zero_point|shape|g_idx|global_scale)"
    r"|(input|output)_\w*(scale|zero_point)|scales|qzeros"
    r"|g_idx|absmax|quant_map|nested_\w+|SCB|weight_format|[qkv]_scale"
    r"|weight\.(absmax|quant_map|nested_\w+|quant_state\..*))$"
    r"|_scales$|_scale(_inv)?$"
)
_BITS = {"I32": 32, "U32": 32, "U8": 8, "I8": 8}
_KINDS_WITH_KEYS = {"full_attention", "sliding_attention", "chunked_attention"}


def read_model_facts(folder: Path) -> ModelFacts:
    """Return facts from config.json, the tokenizer's files and the headers of the weights.

    A field in an unusual form, such as a size per layer, counts as unknown. Raise ModelError.
    """
    config = read_model_json(folder / "config.json")
    special = _read_special_token_ids(folder, _get_text_config(config))
    tensors: dict[str, StoredTensor] = {}
    for path in list_weight_files(folder):
        tensors |= read_safetensors_header(path)
    return parse_model_facts(config, tensors, special, read_quantization(folder))


def parse_model_facts(
    whole_config: Mapping[str, Any],
    tensors: Mapping[str, StoredTensor],
    special_token_ids: tuple[int, ...],
    stored: Quantization | None = None,
) -> ModelFacts:
    """Return the facts of a model with this config.json and these tensors."""
    config = _get_text_config(whole_config)
    heads = _get_count(config, "num_attention_heads")
    hidden = _get_count(config, "hidden_size")
    head_size = _get_count(config, "head_dim")
    if not head_size and hidden and heads:
        head_size = hidden // heads
    method = stored.method if stored else None
    is_tied = config.get("tie_word_embeddings")
    if not isinstance(is_tied, bool):
        is_tied = not any(name.endswith(_HEAD) for name in tensors)
    return ModelFacts(
        parameters=_count_parameters(tensors, stored),
        vocabulary_size=_get_count(config, "vocab_size"),
        special_token_ids=special_token_ids,
        context_tokens=_get_count(config, "max_position_embeddings"),
        hidden_size=hidden,
        layers=_get_count(config, "num_hidden_layers"),
        kv_heads=_count_kv_heads(config),
        head_size=head_size,
        heads=heads,
        intermediate_size=_get_count(config, "intermediate_size"),
        tied_embeddings=is_tied,
        experts=parse_expert_facts(config),
        quantization=method,
        random_weights=whole_config.get(RANDOM_WEIGHTS) is True,
    )


def collect_special_token_ids(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the special tokens that a config.json or generation_config.json names."""
    return _filter_token_ids(_list_named_tokens(config))


def list_weight_files(folder: Path) -> list[Path]:
    """Return the .safetensors files with the weights, or raise ModelError without one.

    Some repositories contain the same weights a second time, as `consolidated.safetensors`. These
    are left out.
    """
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"{folder} contains no .safetensors file; "
            "save the model as safetensors, the only format bitbench reads."
        )
    return files


def _count_kv_heads(config: Mapping[str, Any]) -> int | None:
    """Return the key-value heads of each layer, or None if they do not tell the KV cache's size.

    None with latent attention (kv_lora_rank), and if some layers have a state instead
    (layer_types).
    """
    if "kv_lora_rank" in config or not set(_get_texts(config, "layer_types")) <= _KINDS_WITH_KEYS:
        return None
    if config.get("num_key_value_heads") is None:
        return _get_count(config, "num_attention_heads")
    return _get_count(config, "num_key_value_heads")


def _count_parameters(
    tensors: Mapping[str, StoredTensor], stored: Quantization | None
) -> int | None:
    """Return the number of weights, or None if packed weights have no known size.

    A packed number counts as several weights. Scales and zero points do not count.
    """
    if stored is None:
        return sum(math.prod(tensor.shape) for tensor in tensors.values())
    count = 0
    for name, tensor in tensors.items():
        if _SCALE.search(name):
            continue
        per_number = _compute_weights_per_number(name, tensor, stored)
        if per_number is None:
            return None
        count += round(math.prod(tensor.shape) * per_number)
    return count


def _compute_weights_per_number(
    name: str, tensor: StoredTensor, stored: Quantization
) -> float | None:
    """Return the weights in one stored number, or None if that is unknown."""
    is_packed = _PACKED.search(name) or (tensor.dtype == "U8" and name.endswith(".weight"))
    if not is_packed:
        return 1
    if stored.weights is None or tensor.dtype not in _BITS:
        return None
    number_bits = _BITS[tensor.dtype]
    # If weights do not fill a number, compressed-tensors leaves bits unused. GPTQ continues in the
    # next number.
    if stored.method == COMPRESSED_TENSORS:
        return number_bits // stored.weights.bits
    return number_bits / stored.weights.bits


def _read_special_token_ids(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids of tokens with a special meaning, which a random prompt must not contain.

    They begin or end a text, fill it up or mark roles.
    """
    ids = _list_named_tokens(config)
    ids += _list_named_tokens(_read_optional_json(folder / "generation_config.json"))
    for token in _get_list(_read_optional_json(folder / "tokenizer.json").get("added_tokens")):
        if isinstance(token, dict) and token.get("special"):
            ids.append(token.get("id"))
    tokenizer_config = _read_optional_json(folder / "tokenizer_config.json")
    for key, token in get_config_object(tokenizer_config, "added_tokens_decoder").items():
        if isinstance(token, dict) and token.get("special") and _TOKEN_ID.fullmatch(key):
            ids.append(int(key))
    return _filter_token_ids(ids)


def _list_named_tokens(config: Mapping[str, Any]) -> list[Any]:
    ids: list[Any] = []
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
        value = config.get(key)
        if isinstance(value, list):
            ids += value
        else:
            ids.append(value)
    return ids


def _filter_token_ids(values: list[Any]) -> tuple[int, ...]:
    """Return the values that can be token ids, sorted and once each."""
    ids = {value for value in values if type(value) is int and 0 <= value < _LARGEST}
    return tuple(sorted(ids))


def _get_text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part for the language model, which a model that also sees has nested."""
    return get_config_object(config, "text_config") or config


def _read_optional_json(path: Path) -> dict[str, Any]:
    return read_model_json(path) if path.exists() else {}


def _get_count(content: Mapping[str, Any], key: str) -> int | None:
    """Return a positive integer of plausible size, or None for any other value."""
    value = content.get(key)
    return value if type(value) is int and 0 < value < _LARGEST else None


def _get_texts(content: Mapping[str, Any], key: str) -> list[str]:
    """Return a list of texts, also for a single one."""
    value = content.get(key)
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str)]


# With fewer words, prompts would repeat themselves. A vocabulary of bytes or characters has none.
LEAST_WORDS = 256
_MOST_IDS = 2**31
# A space, which byte-level tokenizers write as Ġ and sentencepiece as ▁, then one-byte letters.
_WORD = re.compile(r"[Ġ▁ ][A-Za-z]{2,}")


def read_word_token_ids(folder: Path) -> tuple[int, ...]:
    """Return the ids of tokens that are a space and ASCII letters.

    Return () if the tokenizer has no such file, or too few words. The content of a prompt decides
    the model's output: random ids contain halves of characters, and bytes that are not text make
    some servers abort a request.
    """
    try:
        tokenizer = read_model_json(folder / "tokenizer.json")
    except ModelError:
        return ()
    added = set()
    for token in _get_list(tokenizer.get("added_tokens")):
        if isinstance(token, dict):
            added.add(token.get("id"))
    return filter_word_ids(_iter_vocabulary(tokenizer.get("model")), added)


def filter_word_ids(
    entries: Iterable[tuple[str, int]], special: Collection[object]
) -> tuple[int, ...]:
    """Return the ids of words that are not special tokens, or () if there are too few."""
    ids = {id for text, id in entries if _WORD.fullmatch(text) and id not in special}
    return tuple(sorted(ids)) if len(ids) >= LEAST_WORDS else ()


def _iter_vocabulary(model: object) -> Iterator[tuple[str, int]]:
    """Yield text and id of each entry in the vocabulary.

    BPE has an object. Unigram has a list of pairs in the order of their ids.
    """
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        for text, id in vocabulary.items():
            if type(id) is int and 0 <= id < _MOST_IDS:
                yield text, id
    for id, pair in enumerate(_get_list(vocabulary)):
        if isinstance(pair, list) and pair and isinstance(pair[0], str):
            yield pair[0], id


def _get_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


_CACHE = "models/hashes.json"


def hash_model_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compute_file_hashes(files: Iterable[Path], home: Path) -> dict[Path, str]:
    """Return each file's sha256, from the cache in `home` if it did not change.

    Two links to one file are hashed once.
    """
    cache = _read_hash_cache(home / _CACHE)
    hashes = dict(cache)
    by_path = {}
    for path in files:
        state = path.stat()
        key = f"{path.resolve()}|{state.st_size}|{state.st_mtime_ns}"
        if key not in hashes:
            hashes[key] = hash_model_file(path)
        by_path[path] = hashes[key]
    if hashes != cache:
        SafeFolder(home).write(_CACHE, json.dumps(hashes, indent=1))
    return by_path


def _read_hash_cache(cache_file: Path) -> dict[str, str]:
    try:
        content: dict[str, str] = json.loads(read_bytes(cache_file))
    except (OSError, ValueError):
        return {}
    return content
