"""The task that comes with bitbench and needs no download: sentences with a number, hidden in text of the corpus.

They are made from a fixed seed, so every variant and every study is asked the same; only their surroundings are of the
study's own text.
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

DEPTHS, AT_EACH_DEPTH = (
    (0, 25, 50, 75, 100),
    4,
)  # percent of the text before the needle; needles at each
NEEDLE_ANSWER_TOKENS = 16
LEAST_FILLER = (
    32  # tokens of text around a needle: in a shorter window there is nothing to look through
)
_CITIES = (
    "Oslo", "Lima", "Cairo", "Quito", "Paris", "Delhi", "Hanoi", "Accra", "Dublin", "Madrid", "Lisbon", "Vienna",
    "Prague", "Warsaw", "Athens", "Havana", "Nairobi", "Jakarta", "Bogota", "Ottawa",
)  # fmt: skip
_FILLED_IN = (
    "alpha",
    "omega",
)  # stand where a needle's text goes; what two prompts share is around it
_ASKS = "Find the secret number in the text and answer with the number."
_EXAMPLE = "It rained. The secret number of Rome is 50412. The train was late."


@dataclass(frozen=True)
class Needle:
    """A sentence to be found, and the messages that ask for it."""

    city: str
    right: str
    depth: int

    @property
    def sentence(self) -> str:
        return f" The secret number of {self.city} is {self.right}."

    @property
    def asked(self) -> Mapping[str, Json]:
        """What it asks for, and the messages of its question with two texts in the place of its own."""
        return {"asks": _ASKS, "turns": [self._messages(filled) for filled in _FILLED_IN]}

    def _messages(self, text: str) -> list[Message]:
        return [
            {"role": "user", "content": _question_text(_EXAMPLE, "Rome")},
            {"role": "assistant", "content": "50412"},
            {"role": "user", "content": _question_text(text, self.city)},
        ]


def needles() -> tuple[Needle, ...]:
    random = Random(f"{BUILT_IN}/needle")
    return tuple(
        Needle(city, str(random.randrange(10_000, 100_000)), DEPTHS[number // AT_EACH_DEPTH])
        for number, city in enumerate(_CITIES)
    )


def _question_text(text: str, city: str) -> str:
    return f"Text:\n\n{text}\n\nWhat is the secret number of {city}?"


def needle_questions(
    found: Sequence[Needle],
    sentences: Sequence[Sequence[int]],
    tokenized: Sequence[Sequence[Sequence[int]]],
    filler: Sequence[int],
    quality: Quality,
) -> Iterator[TaskQuestion]:
    """Yield prompts that fill a window of each length with their answers.

    `sentences` and `tokenized` are the tokens of each needle's sentence and messages, `filler` those of the corpus.
    """
    for length in quality.window_counts:
        for number, (needle, sentence, (prompt, other)) in enumerate(
            zip(found, sentences, tokenized, strict=True)
        ):
            before = prompt[: _shared(prompt, other)]
            after = prompt[len(prompt) - _shared(prompt[::-1], other[::-1]) :]
            room = length - len(before) - len(after) - len(sentence) - NEEDLE_ANSWER_TOKENS
            if not LEAST_FILLER <= room <= len(filler):
                continue
            start = number * 997 % (len(filler) - room + 1)
            text, place = filler[start : start + room], room * needle.depth // 100
            tokens = (*before, *text[:place], *sentence, *text[place:], *after)
            # The checksum tells other tokens apart: the same question of another text or tokenizer is another one.
            checksum = crc32(json.dumps([*tokens]).encode())
            yield TaskQuestion(
                task=f"{BUILT_IN}/needle-{length}",
                name=f"{needle.depth} % deep, {number % AT_EACH_DEPTH + 1} ({checksum:08x})",
                tokens=tokens,
                right=needle.right,
                length=length,
                depth=needle.depth,
            )


def _shared(tokens: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return next(
        (at for at, (left, right) in enumerate(zip(tokens, other, strict=False)) if left != right),
        0,
    )
