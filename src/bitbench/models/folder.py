"""What the folder of a model says about itself, read without torch and without loading weights."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from bitbench.core.recorded.variant import ModelFacts
from bitbench.ground.errors import ModelError
from bitbench.ground.tensor_files import StoredTensor, read_header

MANIFEST = "bitbench-model.json"
_HEAD = "lm_head.weight"
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # as different families call them
_KINDS_WITH_KEYS = {"full_attention", "sliding_attention", "chunked_attention"}


def read_facts(folder: Path) -> ModelFacts:
    """Facts from config.json, the tokenizer's files and the headers of the weights."""
    whole = _json(folder / "config.json")
    config: dict[str, Any] = whole.get("text_config") or whole  # a model that also sees nests its language part
    heads = config.get("num_attention_heads")
    hidden = config.get("hidden_size")
    architectures = whole.get("architectures") or [None]
    tensors = _tensors(folder)
    return ModelFacts(
        architecture=architectures[0],
        parameters=sum(math.prod(tensor.shape) for tensor in tensors.values()),
        vocabulary_size=config.get("vocab_size"),
        special_token_ids=_special_token_ids(folder, config),
        context_tokens=config.get("max_position_embeddings"),
        hidden_size=hidden,
        layers=config.get("num_hidden_layers"),
        kv_heads=(config.get("num_key_value_heads") or heads) if _every_layer_keeps_keys(config) else None,
        head_size=config.get("head_dim") or (hidden // heads if hidden and heads else None),
        heads=heads,
        intermediate_size=config.get("intermediate_size"),
        tied_embeddings=config.get("tie_word_embeddings", not any(name.endswith(_HEAD) for name in tensors)),
        experts=next((config[key] for key in _EXPERTS if config.get(key)), None),
        quantization=(whole.get("quantization_config") or {}).get("quant_method"),
    )


def has_code(folder: Path) -> bool:
    """Whether Python files lie in there, or a configuration names a class that is loaded from elsewhere."""
    if any(folder.glob("*.py")):
        return True
    return any("auto_map" in _json(path) for path in folder.glob("*config.json"))


def weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"{folder} contains no .safetensors file; save the model as safetensors, the only format bitbench reads."
        )
    return files


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _every_layer_keeps_keys(config: dict[str, Any]) -> bool:
    """Not with latent attention (kv_lora_rank), nor where some layers have a state instead (layer_types)."""
    kinds = set(config.get("layer_types") or ())
    return "kv_lora_rank" not in config and kinds <= _KINDS_WITH_KEYS


def _tensors(folder: Path) -> dict[str, StoredTensor]:
    return {name: tensor for path in weight_files(folder) for name, tensor in _header(path).items()}


def _header(path: Path) -> dict[str, StoredTensor]:
    try:
        return read_header(path)
    except ValueError as error:
        raise ModelError(f"{path} is not a safetensors file (its header is broken); download it again.") from error


def _special_token_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Token ids with a meaning of their own (begin, end, padding, roles): a random prompt must not hold them."""
    sources = [config]
    if (folder / "generation_config.json").exists():
        sources.append(_json(folder / "generation_config.json"))
    found: set[int] = set()
    for source in sources:
        for key in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
            value = source.get(key)
            found.update(value if isinstance(value, list) else [value] if isinstance(value, int) else [])
    if (folder / "tokenizer.json").exists():
        added = _json(folder / "tokenizer.json").get("added_tokens") or []
        found.update(token["id"] for token in added if token.get("special"))
    if (folder / "tokenizer_config.json").exists():
        decoder = _json(folder / "tokenizer_config.json").get("added_tokens_decoder") or {}
        found.update(int(key) for key, token in decoder.items() if token.get("special"))
    return tuple(sorted(found))


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); a model folder needs it.") from error
    except ValueError as error:
        raise ModelError(f"{path} is not JSON ({error}); download the model again.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} should contain a JSON object; download the model again.")
    return content
