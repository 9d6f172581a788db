"""Runs llama.cpp's convert_hf_to_gguf.py: CONVERTER CHECKPOINT TARGET TYPE.

The converter recognizes a tokenizer by what it makes of a sample text, and refuses those that it has not met. One of
them needs no list: a checkpoint whose tokenizer.json says `ByteLevel` with its own expression and nothing else splits
text as GPT-2 does, which llama.cpp calls `gpt-2`. Models that were once written from a GGUF file look like this.
"""

import importlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any


def main(converter: Path, checkpoint: Path, target: str, type: str) -> None:
    sys.path[:0] = [str(converter.parent), str(converter.parent / "gguf-py")]
    if is_converted_as_gpt2(checkpoint):
        _accept_gpt2()
    _run_no_code_of_the_checkpoint()
    sys.argv = [str(converter), str(checkpoint), "--outfile", target, "--outtype", type]
    runpy.run_path(str(converter), run_name="__main__")


def is_converted_as_gpt2(checkpoint: Path) -> bool:
    try:
        tokenizer = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    splitter = tokenizer.get("pre_tokenizer") or {}
    return (
        splitter.get("type") == "ByteLevel"
        and splitter.get("use_regex", True)
        and not tokenizer.get("normalizer")
    )


def _accept_gpt2() -> None:
    """Only where the converter's own list does not know the tokenizer."""
    text = importlib.import_module(
        "conversion.base"
    ).TextModel  # behind all text models; lies beside the converter
    recognize = text.get_vocab_base_pre

    def recognize_or_gpt2(model: Any, tokenizer: Any) -> Any:
        try:
            return recognize(model, tokenizer)
        except NotImplementedError:
            return "gpt-2"

    text.get_vocab_base_pre = recognize_or_gpt2


def _run_no_code_of_the_checkpoint() -> None:
    """The converter trusts whatever lies in the folder, for which it was not given permission."""
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:  # then the converter cannot load anything by it either
        return
    for kind in (transformers.AutoConfig, transformers.AutoTokenizer):
        kind.from_pretrained = _without_trust(kind.from_pretrained)


def _without_trust(load: Any) -> Any:
    def load_without_code(*given: Any, **named: Any) -> Any:
        return load(*given, **{**named, "trust_remote_code": False})

    return load_without_code


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
