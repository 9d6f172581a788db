"""Which token ids of a model stand for ordinary words, read from its tokenizer's file."""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from bitbench.util.errors import ModelError
from bitbench.util.model_json import read_object

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
        tokenizer = read_object(folder / "tokenizer.json")
    except ModelError:
        return ()
    added = {token.get("id") for token in _list(tokenizer.get("added_tokens")) if isinstance(token, dict)}
    return words_among(_entries(tokenizer.get("model")), added)


def words_among(entries: Iterable[tuple[str, int]], special: Collection[object]) -> tuple[int, ...]:
    """Of a vocabulary's texts and ids; those of special tokens are no words."""
    found = {id for text, id in entries if _WORD.fullmatch(text) and id not in special}
    return tuple(sorted(found)) if len(found) >= LEAST_WORDS else ()


def _entries(model: object) -> Iterator[tuple[str, int]]:
    """Text and id: an object in BPE, a list of pairs in the order of their ids in Unigram."""
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from ((text, id) for text, id in vocabulary.items() if type(id) is int and 0 <= id < _MOST_IDS)
    for id, pair in enumerate(_list(vocabulary)):
        if isinstance(pair, list) and pair and isinstance(pair[0], str):
            yield pair[0], id


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
