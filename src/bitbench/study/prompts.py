"""What a request holds: how long it is, where its words come from, and what it shares with others."""

from enum import StrEnum
from math import ceil
from typing import Annotated

from pydantic import Discriminator, Field, Tag, model_validator

from bitbench.study.base import Fraction, Seconds, Spec

MOST_TOKENS = 10_000_000  # of a prompt or an answer: the longest context that a published model offers
DEVIATIONS = 3  # where `min` and `max` are when a study does not say: 99.7 % of a normal distribution lie within


class Lengths(Spec):
    """Lengths that vary: evenly from `min` to `max`, or around `mean` with `sd`, never beyond `min` and `max`."""

    min: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    max: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    mean: float | None = Field(default=None, ge=1, le=MOST_TOKENS)
    sd: float | None = Field(default=None, ge=0, le=MOST_TOKENS)

    @model_validator(mode="after")
    def _one_of_two_forms(self) -> "Lengths":
        if (self.mean is None) != (self.sd is None):
            raise ValueError("`mean` and `sd` belong together; give both, or `min` and `max` alone")
        if self.mean is None and (self.min is None or self.max is None):
            raise ValueError("give a number, {min, max}, or {mean, sd} with or without `min` and `max`")
        if not self.shortest <= (self.shortest if self.mean is None else self.mean) <= self.longest:
            raise ValueError(f"`min` {self.shortest}, `mean` and `max` {self.longest} must be in ascending order")
        return self

    @property
    def shortest(self) -> int:
        if self.min is not None:
            return self.min
        assert self.mean is not None
        assert self.sd is not None
        return max(1, int(self.mean - DEVIATIONS * self.sd))

    @property
    def longest(self) -> int:
        if self.max is not None:
            return self.max
        assert self.mean is not None
        assert self.sd is not None
        return ceil(self.mean + DEVIATIONS * self.sd)

    @property
    def typical(self) -> float:
        return (self.shortest + self.longest) / 2 if self.mean is None else self.mean

    def __str__(self) -> str:
        spread = "" if self.mean is None else f"{self.mean:,g} ± {self.sd:,g}, "
        return f"{spread}{self.shortest:,} to {self.longest:,}"


def _form(value: object) -> str:
    return "spread" if isinstance(value, (dict, Lengths)) else "number"


Length = Annotated[
    Annotated[int, Field(ge=1, le=MOST_TOKENS), Tag("number")] | Annotated[Lengths, Tag("spread")],
    Discriminator(_form),
]


def shortest(length: Length) -> int:
    return length.shortest if isinstance(length, Lengths) else length


def longest(length: Length) -> int:
    return length.longest if isinstance(length, Lengths) else length


def typical(length: Length) -> float:
    return length.typical if isinstance(length, Lengths) else float(length)


def show_length(length: Length) -> str:
    return str(length) if isinstance(length, Lengths) else f"{length:,}"


class Api(StrEnum):
    COMPLETIONS = "completions"  # /v1/completions: token ids, or text as it is
    CHAT = "chat"  # /v1/chat/completions: messages, to which the server applies the model's chat template


class TextPrompts(Spec):
    """Prompts from a file: JSON lines with `prompt`, `text` or `messages`, or ShareGPT's JSON, or plain text."""

    file: str = Field(min_length=1, description="the texts; relative to the study file")
    min_characters: int = Field(default=1, ge=1, description="shorter texts are skipped")
    max_characters: int | None = Field(default=None, ge=1, description="longer texts are cut")

    @model_validator(mode="after")
    def _ordered(self) -> "TextPrompts":
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError(
                f"max_characters ({self.max_characters}) is smaller than min_characters ({self.min_characters})"
            )
        return self


class SharedPrefix(Spec):
    """Some prompts begin alike, as behind a system prompt."""

    tokens: int = Field(ge=1, description="length of the common prefix; part of input_tokens")
    share: Fraction = Field(default=1.0, gt=0, le=1, description="share of the requests that have one")
    prefixes: int = Field(default=1, ge=1, description="number of different prefixes, equally frequent")


class Conversation(Spec):
    """Requests that carry what was said before them."""

    turns: int = Field(ge=2, le=1_000, description="requests of one conversation")
    think: Seconds = Field(default=0.0, ge=0, description="from the end of an answer to the next question")
