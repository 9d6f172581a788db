"""Write checkpoints of random weights in published shapes, each with a tokenizer of its size.

A checkpoint is in `<home>/models/shape-NAME` and is written piece by piece.

The vocabulary of a published shape is larger than the vocabulary of any available tokenizer, and
engines look up each token that a model chooses. So each checkpoint gets its own tokenizer. It is
byte-level BPE as in GPT-2, and its words are short rows of letters. Its merges lead to each word,
so text also becomes tokens from the whole vocabulary.
"""

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from itertools import islice, product
from pathlib import Path
from typing import Any

from bitbench.models.folder import MANIFEST, collect_special_token_ids
from bitbench.models.hub import OnProgress
from bitbench.models.library import ExpectedModel, KnownModel
from bitbench.models.shapes import SHAPES, Shape, compute_tensor_bytes, split_into_shards
from bitbench.util.errors import ModelError
from bitbench.util.files import SafeFolder
from bitbench.util.model_files import make_safetensors_header
from bitbench.util.text import suggest_name
from bitbench.util.units import show_bytes

_PREFIX = "shape:"


def format_shape_reference(shape: Shape) -> str:
    """Return the name of a shape in study files, such as shape:qwen3-4b."""
    return f"{_PREFIX}{shape.name}"


def _format_folder_name(shape: Shape) -> str:
    """Return the name of a shape's folder, which is also its name in reports."""
    return f"shape-{shape.name}"


def find_shape(reference: str) -> Shape:
    """Return the shape with this name from a study file. Raise ModelError if none exists."""
    name = reference.removeprefix(_PREFIX)
    if name not in SHAPES:
        references = [format_shape_reference(shape) for shape in SHAPES.values()]
        raise ModelError(
            f"No shape is called {reference}; {suggest_name(reference, references)}there are "
            f"{', '.join(references)}."
        )
    return SHAPES[name]


_SPACE = "Ġ"  # the space of byte-level BPE
_LETTERS = f"{_SPACE}etaoinshrdlucmfwypvbgkjqxzETAOINSHRDLUCMFWYPVBGKJQXZ0123456789."
_LONGEST_WORD = 3
# Messages one after the other. Any template will do for an untrained model.
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\\n{% endfor %}"
Json = dict[str, Any]


def build_tokenizer(config: Mapping[str, Any]) -> dict[str, Json]:
    """Return the tokenizer files by name, for the model with this config.json.

    They contain the special tokens of the config.
    """
    vocabulary_size: int = config["vocab_size"]
    names = {token: f"<|{token}|>" for token in collect_special_token_ids(config)}
    added = {token: _make_added_token(names[token]) for token in sorted(names)}
    words = islice(_iter_words(), vocabulary_size - len(names))
    ordinary = [token for token in range(vocabulary_size) if token not in names]
    vocabulary = dict(zip(words, ordinary, strict=True))
    vocabulary |= {name: token for token, name in names.items()}
    merges = [[word[:-1], word[-1]] for word in vocabulary if 1 < len(word) <= _LONGEST_WORD]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, **content} for token, content in added.items()],
        "normalizer": None,
        "pre_tokenizer": _make_byte_level(),
        "post_processor": None,
        "decoder": _make_byte_level(),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }
    first = names[collect_special_token_ids({"bos_token_id": config["bos_token_id"]})[0]]
    last = names[collect_special_token_ids({"eos_token_id": config["eos_token_id"]})[0]]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": first,
        "eos_token": last,
        "pad_token": last,
        # Without it, transformers adds its own token to Qwen's, which is beyond the vocabulary.
        "unk_token": last,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        "added_tokens_decoder": {str(token): content for token, content in added.items()},
        "chat_template": _CHAT_TEMPLATE,
    }
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": settings}


def _iter_words() -> Iterator[str]:
    """Yield each byte, then all rows of two letters, then all rows of three: 266,496 in all."""
    yield from _iter_bytes()
    for length in range(2, _LONGEST_WORD + 1):
        yield from map("".join, product(_LETTERS, repeat=length))


def _iter_bytes() -> Iterator[str]:
    """Yield the bytes as in byte-level BPE: printable ones as they are, the others from 256 on."""
    unprintable = 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            yield chr(byte)
        else:
            yield chr(256 + unprintable)
            unprintable += 1


def _make_byte_level() -> Json:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _make_added_token(name: str) -> Json:
    return {
        "content": name,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


_ROOM_BESIDE_WEIGHTS_BYTES = 64 * 2**20  # the tokenizer
_UNFINISHED = ".making-"


def _find_checkpoint(shape: Shape, home: Path) -> Path | None:
    """Return the folder of a finished checkpoint, or None."""
    folder = home.absolute() / "models" / _format_folder_name(shape)
    return folder if (folder / MANIFEST).exists() else None


def make_checkpoint(shape: Shape, home: Path, *, on_progress: OnProgress = lambda *_: None) -> Path:
    """Return the folder of a checkpoint. Write the checkpoint if it does not exist.

    An interrupted call leaves nothing that could be mistaken for a model. Raise ModelError if the
    disk is too full.
    """
    existing = _find_checkpoint(shape, home)
    if existing is not None:
        return existing
    files = SafeFolder(home.absolute() / "models")
    name = _format_folder_name(shape)
    files.make_folder()
    _refuse_without_room(shape, files.root)
    start = time.monotonic()
    unfinished = f"{_UNFINISHED}{name}"
    files.remove_folder(unfinished)
    try:
        folder = SafeFolder(files.make_folder(unfinished))
        _write_weights(shape, folder, on_progress)
        _write_configuration(shape, folder)
        _write_manifest(shape, folder, time.monotonic() - start)
        files.remove_folder(name)  # a folder without a manifest is not a checkpoint
        folder.root.rename(files.root / name)
    finally:
        files.remove_folder(unfinished)
    return files.root / name


def _write_weights(shape: Shape, folder: SafeFolder, on_progress: OnProgress) -> None:
    # This imports numpy, which takes time that no other command should need.
    from bitbench.features.shapes.weights import iter_random_weights

    parts = split_into_shards(shape.tensors)
    total_bytes = compute_tensor_bytes(shape.tensors)
    written_bytes = 0
    names = ["model.safetensors"]
    if len(parts) > 1:
        count = len(parts)
        names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
        weight_map: dict[str, str] = {}
        for name, part in zip(names, parts, strict=True):
            weight_map |= dict.fromkeys(part, name)
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        folder.write("model.safetensors.index.json", json.dumps(index, indent=1) + "\n")
    for name, part in zip(names, parts, strict=True):
        with folder.open_replacement(name) as file:
            file.write(make_safetensors_header(part))
            for tensor_name, tensor in part.items():
                for piece in iter_random_weights(shape, tensor_name, tensor):
                    file.write(piece.astype("<u2", copy=False).data)
                    written_bytes += piece.nbytes
                    on_progress(written_bytes, total_bytes)


def _write_configuration(shape: Shape, folder: SafeFolder) -> None:
    config = dict(shape.config)
    tokens = {}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if key in config:
            tokens[key] = config[key]
    contents = {
        "config.json": config,
        "generation_config.json": tokens,
        **build_tokenizer(config),
    }
    for name, content in contents.items():
        indent = None if name == "tokenizer.json" else 2
        folder.write(name, json.dumps(content, indent=indent) + "\n")


def _write_manifest(shape: Shape, folder: SafeFolder, seconds: float) -> None:
    files = sorted(path for path in folder.root.iterdir() if path.is_file())
    content = {
        "name": format_shape_reference(shape),
        "description": "random weights, for speed, memory and kernels; not for quality",
        "shape_of": list(shape.published_as),
        "seconds": round(seconds, 1),
        "files": {path.name: path.stat().st_size for path in files},
    }
    folder.write(MANIFEST, json.dumps(content, indent=2) + "\n")


def _refuse_without_room(shape: Shape, path: Path) -> None:
    """Raise ModelError if the checkpoint does not fit on the disk."""
    needed_bytes = compute_tensor_bytes(shape.tensors) + _ROOM_BESIDE_WEIGHTS_BYTES
    free_bytes = shutil.disk_usage(path).free
    if free_bytes < needed_bytes:
        raise ModelError(
            f"{format_shape_reference(shape)} needs {show_bytes(needed_bytes)}, and {path} has "
            f"{show_bytes(free_bytes)} free; free some space, or set BITBENCH_HOME to another disk."
        )


class ShapeSource:
    """A `ModelSource`: checkpoints of random weights in published shapes."""

    @property
    def models(self) -> str:
        references = ", ".join(map(format_shape_reference, SHAPES.values()))
        return f"Shapes (random weights, for speed and memory): {references}"

    def find(self, reference: str, home: Path) -> Path | None:
        return _find_checkpoint(find_shape(reference), home)

    def expect(self, reference: str) -> ExpectedModel:
        shape = find_shape(reference)
        return ExpectedModel(
            _format_folder_name(shape), shape.facts, shape.weight_bytes, shape.tensors
        )

    def make(self, reference: str, home: Path, on_progress: OnProgress) -> list[str]:
        path = make_checkpoint(find_shape(reference), home, on_progress=on_progress)
        return [
            f"{reference} is at {path}",
            "Its weights are random: it is for speed, memory and kernels, not for quality.",
        ]

    def made(self, home: Path) -> Iterator[KnownModel]:
        for shape in SHAPES.values():
            path = _find_checkpoint(shape, home)
            if path is not None:
                yield _make_known_model(shape, path)


def _make_known_model(shape: Shape, folder: Path) -> KnownModel:
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    origin = f" in the shape of {shape.published_as[0]}" if shape.published_as else ""
    return KnownModel(
        format_shape_reference(shape),
        f"random weights{origin}",
        "",
        folder,
        size_bytes,
        parameters=shape.facts.parameters,
    )
