"""An evidence card's head: which parts the file has, and their hashes. What a signature covers."""

from enum import StrEnum

from pydantic import Field

from bitbench.core.base import Record

CARD_FORMAT = 1
# History of CARD_FORMAT:
#   1  first published form


class PartName(StrEnum):
    """Everything that a card may hold, in the order in which it lies there. No other name is read or written."""

    CELLS = "cells.json"  # what a query over many cards reads
    FIGURES = "figures.json"  # the figures of its report, as stated
    LOCK = "lock.json"
    ROOF = "roof.json"
    INSTANCES = "instances.jsonl"
    TRIALS = "trials.jsonl"
    QUALITY = "quality.jsonl"
    PROFILES = "profiles.jsonl"
    REQUESTS = "requests.parquet"  # rows of all trials
    SCORES = "scores.parquet"  # rows of all measurements of quality

    @property
    def is_packed(self) -> bool:
        """By zlib; Parquet is compressed already."""
        return not self.value.endswith(".parquet")


class CardPart(Record):
    name: PartName
    size: int = Field(ge=0)  # bytes in the file
    whole_size: int = Field(ge=0)  # unpacked
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")  # of the bytes in the file


class CardManifest(Record):
    format: int = CARD_FORMAT
    bitbench: str  # the version that made the card
    study: str
    has_rows: bool  # of the requests, and of scored tokens where there are any
    parts: tuple[CardPart, ...] = Field(max_length=len(PartName))
