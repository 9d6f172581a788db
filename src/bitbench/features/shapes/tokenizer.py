"""A tokenizer for a vocabulary of any size: every id is a word, every text can be tokenized, no id is out of reach.

The vocabulary of a published shape is larger than that of any tokenizer at hand, and engines look up each token that a
model chooses. So one is made: byte-level BPE, as GPT-2 has it, whose words are short rows of letters. Its merges lead
to each of them, so that text, too, becomes tokens from the whole vocabulary.
"""

from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

from bitbench.models.folder import token_ids_of

_SPACE = "Ġ"  # how byte-level BPE spells it
_LETTERS = f"{_SPACE}etaoinshrdlucmfwypvbgkjqxzETAOINSHRDLUCMFWYPVBGKJQXZ0123456789."
_LONGEST_WORD = 3
# Messages one after the other; a chat needs some template, and an untrained model none in particular.
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\\n{% endfor %}"
Json = dict[str, Any]


def tokenizer_files(config: Mapping[str, Any]) -> dict[str, Json]:
    """Contents by file name, for the model with this config.json: with the special tokens that it names."""
    vocabulary_size: int = config["vocab_size"]
    names = {token: f"<|{token}|>" for token in token_ids_of(config)}
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
    first, last = (names[token_ids_of({key: config[key]})[0]] for key in ("bos_token_id", "eos_token_id"))
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
