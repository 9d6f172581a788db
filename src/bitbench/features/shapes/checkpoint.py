"""Shapes as a source of models: a checkpoint of random weights with a tokenizer of its size, in
`<home>/models/shape-NAME`, written piece by piece.

The vocabulary of a published shape is larger than that of any tokenizer at hand, and engines look up each token that
a model chooses. So one is made: byte-level BPE, as GPT-2 has it, whose words are short rows of letters. Its merges
lead to each of them, so that text, too, becomes tokens from the whole vocabulary.
"""

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from itertools import islice, product
from pathlib import Path
from typing import Any

from bitbench.models.folder import MANIFEST, model_special_token_ids
from bitbench.models.hub import OnProgress
from bitbench.models.library import ExpectedModel, KnownModel
from bitbench.models.shapes import SHAPES, Shape, shards, tensor_bytes
from bitbench.util.errors import ModelError
from bitbench.util.files import SafeFolder
from bitbench.util.model_files import safetensors_header_bytes
from bitbench.util.text import did_you_mean
from bitbench.util.units import show_bytes

_PREFIX = "shape:"


def shape_reference(shape: Shape) -> str:
    """As studies spell it, such as shape:qwen3-4b."""
    return f"{_PREFIX}{shape.name}"


def _shape_checkpoint_name(shape: Shape) -> str:
    """Also what reports call it: it goes into the names of files."""
    return f"shape-{shape.name}"


def find_shape(reference: str) -> Shape:
    """By a study's name for it; raises ModelError."""
    name = reference.removeprefix(_PREFIX)
    if name not in SHAPES:
        known = [shape_reference(shape) for shape in SHAPES.values()]
        raise ModelError(
            f"No shape is called {reference}; {did_you_mean(reference, known)}there are {', '.join(known)}."
        )
    return SHAPES[name]


_SPACE = "Ġ"  # how byte-level BPE spells it
_LETTERS = f"{_SPACE}etaoinshrdlucmfwypvbgkjqxzETAOINSHRDLUCMFWYPVBGKJQXZ0123456789."
_LONGEST_WORD = 3
# Messages one after the other; a chat needs some template, and an untrained model none in particular.
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\\n{% endfor %}"
Json = dict[str, Any]


def shape_checkpoint_tokenizer(config: Mapping[str, Any]) -> dict[str, Json]:
    """Contents by file name, for the model with this config.json: with the special tokens that it names."""
    vocabulary_size: int = config["vocab_size"]
    names = {token: f"<|{token}|>" for token in model_special_token_ids(config)}
    added = {token: _added(name) for token, name in names.items()}
    words = islice(_words(), vocabulary_size - len(names))
    ordinary = (token for token in range(vocabulary_size) if token not in names)
    vocabulary = {word: token for token, word in zip(ordinary, words, strict=True)}
    vocabulary |= {name: token for token, name in names.items()}
    merges = [[word[:-1], word[-1]] for word in vocabulary if 1 < len(word) <= _LONGEST_WORD]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, **added[token]} for token in sorted(added)],
        "normalizer": None,
        "pre_tokenizer": _byte_level(),
        "post_processor": None,
        "decoder": _byte_level(),
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
    first, last = (
        names[model_special_token_ids({key: config[key]})[0]]
        for key in ("bos_token_id", "eos_token_id")
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": first,
        "eos_token": last,
        "pad_token": last,
        "unk_token": last,  # without it, transformers adds one of its own to Qwen's, beyond the vocabulary
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        "added_tokens_decoder": {str(token): added[token] for token in sorted(added)},
        "chat_template": _CHAT_TEMPLATE,
    }
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": settings}


def _words() -> Iterator[str]:
    """Each byte, then rows of letters: of two, then of three; 266,496 in all."""
    yield from _bytes()
    for length in range(2, _LONGEST_WORD + 1):
        yield from ("".join(letters) for letters in product(_LETTERS, repeat=length))


def _bytes() -> Iterator[str]:
    """As byte-level BPE spells them: a printable character for itself, the others from 256 on."""
    unprintable = 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            yield chr(byte)
        else:
            yield chr(256 + unprintable)
            unprintable += 1


def _byte_level() -> Json:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _added(name: str) -> Json:
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
    folder = home.absolute() / "models" / _shape_checkpoint_name(shape)
    return folder if (folder / MANIFEST).exists() else None


def make_checkpoint(shape: Shape, home: Path, *, on_progress: OnProgress = lambda *_: None) -> Path:
    """Its folder, made now or before. If it is interrupted, no part of it is left that could be taken for a model."""
    if (there := _find_checkpoint(shape, home)) is not None:
        return there
    files, name = SafeFolder(home.absolute() / "models"), _shape_checkpoint_name(shape)
    files.make_folder()
    _refuse_without_room(shape, files.root)
    began = time.monotonic()
    unfinished = f"{_UNFINISHED}{name}"
    files.remove_folder(unfinished)
    try:
        folder = SafeFolder(files.make_folder(unfinished))
        _write_weights(shape, folder, on_progress)
        _write_configuration(shape, folder)
        _write_manifest(shape, folder, time.monotonic() - began)
        files.remove_folder(name)  # a folder without a manifest is not a model of ours
        folder.root.rename(files.root / name)
    finally:
        files.remove_folder(unfinished)
    return files.root / name


def _write_weights(shape: Shape, folder: SafeFolder, on_progress: OnProgress) -> None:
    from bitbench.features.shapes.weights import (
        random_shape_weights,
    )  # numpy, for which no other command should wait

    parts = shards(shape.tensors)
    total, done = tensor_bytes(shape.tensors), 0
    names = ["model.safetensors"]
    if len(parts) > 1:
        names = [
            f"model-{number:05}-of-{len(parts):05}.safetensors"
            for number in range(1, len(parts) + 1)
        ]
        places = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        folder.write("model.safetensors.index.json", json.dumps(index, indent=1) + "\n")
    for name, part in zip(names, parts, strict=True):
        with folder.replacing(name) as file:
            file.write(safetensors_header_bytes(part))
            for tensor_name, tensor in part.items():
                for piece in random_shape_weights(shape, tensor_name, tensor):
                    file.write(piece.astype("<u2", copy=False).data)
                    done += piece.nbytes
                    on_progress(done, total)


def _write_configuration(shape: Shape, folder: SafeFolder) -> None:
    config = dict(shape.config)
    tokens = {
        key: config[key]
        for key in ("bos_token_id", "eos_token_id", "pad_token_id")
        if key in config
    }
    contents = {
        "config.json": config,
        "generation_config.json": tokens,
        **shape_checkpoint_tokenizer(config),
    }
    for name, content in contents.items():
        folder.write(
            name, json.dumps(content, indent=None if name == "tokenizer.json" else 2) + "\n"
        )


def _write_manifest(shape: Shape, folder: SafeFolder, seconds: float) -> None:
    files = sorted(path for path in folder.root.iterdir() if path.is_file())
    content = {
        "name": shape_reference(shape),
        "description": "random weights, for speed, memory and kernels; not for quality",
        "shape_of": list(shape.published_as),
        "seconds": round(seconds, 1),
        "files": {path.name: path.stat().st_size for path in files},
    }
    folder.write(MANIFEST, json.dumps(content, indent=2) + "\n")


def _refuse_without_room(shape: Shape, place: Path) -> None:
    needed, free = (
        tensor_bytes(shape.tensors) + _ROOM_BESIDE_WEIGHTS_BYTES,
        shutil.disk_usage(place).free,
    )
    if free < needed:
        raise ModelError(
            f"{shape_reference(shape)} needs {show_bytes(needed)}, and {place} has {show_bytes(free)} free; free some "
            "space, or set BITBENCH_HOME to another disk."
        )


class ShapeSource:
    """A `ModelSource`: checkpoints of random weights in published shapes."""

    @property
    def models(self) -> str:
        return f"Shapes (random weights, for speed and memory): {', '.join(map(shape_reference, SHAPES.values()))}"

    def find(self, reference: str, home: Path) -> Path | None:
        return _find_checkpoint(find_shape(reference), home)

    def expect(self, reference: str) -> ExpectedModel:
        shape = find_shape(reference)
        return ExpectedModel(
            _shape_checkpoint_name(shape), shape.facts, shape.weight_bytes, shape.tensors
        )

    def make(self, reference: str, home: Path, on_progress: OnProgress) -> list[str]:
        path = make_checkpoint(find_shape(reference), home, on_progress=on_progress)
        return [
            f"{reference} is at {path}",
            "Its weights are random: it is for speed, memory and kernels, not for quality.",
        ]

    def made(self, home: Path) -> Iterator[KnownModel]:
        for shape in SHAPES.values():
            if (path := _find_checkpoint(shape, home)) is not None:
                yield _known(shape, path)


def _known(shape: Shape, folder: Path) -> KnownModel:
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    like = f" in the shape of {shape.published_as[0]}" if shape.published_as else ""
    return KnownModel(
        shape_reference(shape),
        f"random weights{like}",
        "",
        folder,
        size_bytes,
        parameters=shape.facts.parameters,
    )
