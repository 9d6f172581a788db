"""Run llama.cpp's convert_hf_to_gguf.py: CONVERTER CHECKPOINT TARGET TYPE.

The converter recognizes a tokenizer by its output for a sample text, and refuses unknown ones. One
kind can be recognized without its list: if tokenizer.json has only `ByteLevel` with its own
expression, it splits text as GPT-2 does, which llama.cpp calls `gpt-2`. Models that were once
written from a GGUF file have such a tokenizer.
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
    """Return True if the checkpoint's tokenizer splits text as GPT-2 does."""
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
    """Use `gpt-2` if the converter's own list does not contain the tokenizer."""
    # The base class of all text models is in a file next to the converter.
    text = importlib.import_module("conversion.base").TextModel
    recognize = text.get_vocab_base_pre

    def recognize_or_gpt2(model: Any, tokenizer: Any) -> Any:
        try:
            return recognize(model, tokenizer)
        except NotImplementedError:
            return "gpt-2"

    text.get_vocab_base_pre = recognize_or_gpt2


def _run_no_code_of_the_checkpoint() -> None:
    """Stop the converter from running the checkpoint's code, which the user did not permit."""
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:  # without it the converter cannot run such code either
        return
    for kind in (transformers.AutoConfig, transformers.AutoTokenizer):
        kind.from_pretrained = _without_trust(kind.from_pretrained)


def _without_trust(load: Any) -> Any:
    def load_without_code(*arguments: Any, **options: Any) -> Any:
        return load(*arguments, **{**options, "trust_remote_code": False})

    return load_without_code


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
