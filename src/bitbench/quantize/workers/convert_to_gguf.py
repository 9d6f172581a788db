"""Runs llama.cpp's convert_hf_to_gguf.py in the transformers environment: CONVERTER CHECKPOINT TARGET.

Two of its habits are corrected:

- It recognizes a tokenizer by what it makes of a sample text, and refuses those that it has not met. One of them needs
  no list: a checkpoint whose tokenizer.json says `ByteLevel` with its own expression and nothing else splits text as
  GPT-2 does, which llama.cpp calls `gpt-2`. Models that were once written from a GGUF file look like this.
- It asks for the package sentencepiece before it looks whether the model has a file for it.
"""

import importlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any


def main(converter: Path, checkpoint: Path, target: Path) -> None:
    sys.path[:0] = [str(converter.parent), str(converter.parent / "gguf-py")]
    if splits_like_gpt2(checkpoint):
        accept_gpt2()
    if not (checkpoint / "tokenizer.model").exists():
        leave_sentencepiece_out()
    sys.argv = [str(converter), str(checkpoint), "--outfile", str(target), "--outtype", "bf16"]
    runpy.run_path(str(converter), run_name="__main__")


def splits_like_gpt2(checkpoint: Path) -> bool:
    try:
        tokenizer = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    splitter = tokenizer.get("pre_tokenizer") or {}
    return splitter.get("type") == "ByteLevel" and splitter.get("use_regex", True) and not tokenizer.get("normalizer")


def accept_gpt2() -> None:
    """Only where the converter's own list does not know the tokenizer."""
    text = text_model()
    recognize = text.get_vocab_base_pre

    def recognize_or_gpt2(model: Any, tokenizer: Any) -> Any:
        try:
            return recognize(model, tokenizer)
        except NotImplementedError:
            return "gpt-2"

    text.get_vocab_base_pre = recognize_or_gpt2


def leave_sentencepiece_out() -> None:
    """Says at once what the converter would find out after the import."""

    def no_such_file(model: Any) -> Any:
        raise FileNotFoundError(model.dir_model / "tokenizer.model")

    text_model()._create_vocab_sentencepiece = no_such_file


def text_model() -> Any:
    """The class behind all text models, in a module that lies beside the converter."""
    return importlib.import_module("conversion.base").TextModel


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
