"""The task that comes with bitbench and needs no download: sentences with a number, hidden in
text of the corpus.

Needles come from a fixed seed, so every variant and every study gets the same. Only the text
around them depends on the study.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from zlib import crc32

from bitbench.quality.conversations import Message
from bitbench.records.quality import TaskQuestion
from bitbench.study.base import Json
from bitbench.study.quality import BUILT_IN, Quality

DEPTHS = (0, 25, 50, 75, 100)  # percent of the text before the needle
AT_EACH_DEPTH = 4  # needles
NEEDLE_ANSWER_TOKENS = 16
# Tokens of text around a needle. In a shorter window there is no text to search.
LEAST_FILLER = 32
_CITIES = (
    "Oslo", "Lima", "Cairo", "Quito", "Paris", "Delhi", "Hanoi", "Accra", "Dublin", "Madrid",
    "Lisbon", "Vienna", "Prague", "Warsaw", "Athens", "Havana", "Nairobi", "Jakarta", "Bogota",
    "Ottawa",
)  # fmt: skip
# Two placeholders for a needle's text. The parts that their prompts share are around that text.
_FILLED_IN = ("alpha", "omega")
_ASKS = "Find the secret number in the text and answer with the number."
_EXAMPLE = "It rained. The secret number of Rome is 50412. The train was late."


@dataclass(frozen=True)
class Needle:
    """A sentence to find, and the messages that ask for it."""

    city: str
    right: str
    depth: int

    @property
    def sentence(self) -> str:
        return f" The secret number of {self.city} is {self.right}."

    @property
    def asked(self) -> Mapping[str, Json]:
        """Return the task, and the messages of the question for two placeholder texts."""
        return {"asks": _ASKS, "turns": [self._messages(filled) for filled in _FILLED_IN]}

    def _messages(self, text: str) -> list[Message]:
        return [
            {"role": "user", "content": _format_question(_EXAMPLE, "Rome")},
            {"role": "assistant", "content": "50412"},
            {"role": "user", "content": _format_question(text, self.city)},
        ]


def make_needles() -> tuple[Needle, ...]:
    """Return the needles, the same in every study."""
    random = Random(f"{BUILT_IN}/needle")
    return tuple(
        Needle(city, str(random.randrange(10_000, 100_000)), DEPTHS[number // AT_EACH_DEPTH])
        for number, city in enumerate(_CITIES)
    )


def _format_question(text: str, city: str) -> str:
    return f"Text:\n\n{text}\n\nWhat is the secret number of {city}?"


def iter_needle_questions(
    hidden: Sequence[Needle],
    sentences: Sequence[Sequence[int]],
    tokenized: Sequence[Sequence[Sequence[int]]],
    filler: Sequence[int],
    quality: Quality,
) -> Iterator[TaskQuestion]:
    """Yield prompts that fill a window of each length together with their answers.

    `sentences` and `tokenized` are the tokens of each needle's sentence and messages, `filler` the
    tokens of the corpus.
    """
    for length in quality.window_counts:
        needles_with_tokens = zip(hidden, sentences, tokenized, strict=True)
        for number, (needle, sentence, (prompt, other)) in enumerate(needles_with_tokens):
            before = prompt[: _count_shared(prompt, other)]
            after = prompt[len(prompt) - _count_shared(prompt[::-1], other[::-1]) :]
            room = length - len(before) - len(after) - len(sentence) - NEEDLE_ANSWER_TOKENS
            if not LEAST_FILLER <= room <= len(filler):
                continue
            start = number * 997 % (len(filler) - room + 1)
            text = filler[start : start + room]
            depth = room * needle.depth // 100
            tokens = (*before, *text[:depth], *sentence, *text[depth:], *after)
            # With another text or tokenizer it is another question, so the name has a checksum.
            checksum = crc32(json.dumps([*tokens]).encode())
            yield TaskQuestion(
                task=f"{BUILT_IN}/needle-{length}",
                name=f"{needle.depth} % deep, {number % AT_EACH_DEPTH + 1} ({checksum:08x})",
                tokens=tokens,
                right=needle.right,
                length=length,
                depth=needle.depth,
            )


def _count_shared(tokens: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens both begin with, or 0 if they do not differ."""
    for number, (left, right) in enumerate(zip(tokens, other, strict=False)):
        if left != right:
            return number
    return 0
