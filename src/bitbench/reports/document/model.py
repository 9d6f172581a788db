"""The parts of a document: sections of typed blocks, and numbers that are still numbers.

A section holds content. The renderers next to this file (Markdown, HTML, terminal, JSON) decide how
to write it. A document holds names and text from elsewhere unchanged: each renderer must escape
every string.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from bitbench.study.base import Json


class Unit(StrEnum):
    """A unit with rules for scaling and writing. A `Quantity` may have any other unit as text."""

    SECONDS = "s"  # scaled to µs, ms or s
    BYTES = "bytes"  # scaled to MiB or GiB
    RATIO = "×"
    SHARE = "share"  # written in per cent
    COUNT = "count"  # a whole number without a unit
    NONE = ""


@dataclass(frozen=True)
class Quantity:
    """A number in base units (seconds, bytes, shares), with its interval and how to write it."""

    value: float | None  # None: unknown
    unit: str = Unit.NONE
    low: float | None = None
    high: float | None = None  # None with a `low`: open upwards
    # A confidence interval is written as 12.3 [11.9, 12.8]. The lowest and the highest measured
    # value are written as 12.3 (11.9 – 12.8).
    range: Literal["interval", "extremes"] = "interval"
    digits: int | None = None  # significant digits; None: as many as the interval supports
    is_signed: bool = False  # a plus before a positive value
    note: str = ""  # a few words after it
    sd: float | None = None  # of the trials, whose mean is `value`: 12.3 ± 0.8 [11.9, 12.8]
    decimals: int | None = None  # exactly as many, for tables whose layout others have set


@dataclass(frozen=True)
class Name:
    """A name from a study or a record, set in code type if a renderer has it."""

    text: str


@dataclass(frozen=True)
class Strong:
    phrase: "Phrase"


@dataclass(frozen=True)
class Emphasis:
    phrase: "Phrase"


Part = str | Name | Strong | Emphasis | Quantity
Phrase = tuple[Part, ...]


@dataclass(frozen=True)
class Paragraph:
    phrase: Phrase
    is_small_print: bool = False  # softer on a page, left out of a terminal


@dataclass(frozen=True)
class Bullets:
    items: tuple[Phrase, ...]


@dataclass(frozen=True)
class CodeBlock:
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Heading:
    """A title within a section."""

    phrase: Phrase


@dataclass(frozen=True)
class Column:
    """A column. The renderer scales all its quantities alike and writes the unit once.

    `unit` is the base unit of the quantities. A terminal shows the column if it is `shown_from`
    characters wide or wider, and the intervals from `intervals_from` on.
    """

    title: Phrase
    unit: str = Unit.NONE
    is_words: bool = False  # left-aligned
    shown_from: int = 0
    intervals_from: int = 130


class Mark(StrEnum):
    """A reason for a row to stand out."""

    BEST = "best"
    ALARM = "alarm"


TableCell = Quantity | Phrase | None  # None: unknown


@dataclass(frozen=True)
class Row:
    cells: tuple[TableCell, ...]
    mark: Mark | None = None


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


FigureRow = dict[str, str | float | int | bool | None]


@dataclass(frozen=True)
class Figure:
    """A chart as a specification of Vega-Lite, with the rows that it is drawn from."""

    name: str  # of its file, and its anchor on a page
    title: str
    caption: str
    spec: dict[str, Json]
    rows: list[FigureRow]


@dataclass(frozen=True)
class Chart:
    figure: Figure


@dataclass(frozen=True)
class Details:
    """Blocks that a page folds away and a terminal leaves out."""

    title: str
    blocks: "tuple[Block, ...]"


Block = Paragraph | Bullets | CodeBlock | Heading | Table | Chart | Details


@dataclass(frozen=True)
class Section:
    """A question that a document answers.

    `in_terminal` prints it at the end of a command, too. `is_folded` hides all but its title on a
    page until it is opened.
    """

    title: Phrase
    blocks: tuple[Block, ...]
    in_terminal: bool = False
    is_folded: bool = False

    @property
    def anchor(self) -> str:
        """The anchor that Markdown renderers give to the title, so that links reach the section."""
        title = format_plain_text(self.title).lower()
        words = re.findall("[a-z0-9]+", title)
        return "-".join(words)[:60].strip("-") or "section"


@dataclass(frozen=True)
class Document:
    """A title, an answer and sections.

    The answer, a sentence and its charts, comes first on a page. It comes last in a terminal, since
    the last lines stay on the screen.
    """

    title: Phrase
    answer: tuple[Block, ...]
    sections: tuple[Section, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()  # machine and date: small print at the title


def format_plain_text(phrase: Phrase) -> str:
    """Return the words of a phrase, without its quantities."""
    parts = []
    for part in phrase:
        match part:
            case str():
                parts.append(part)
            case Name(text):
                parts.append(text)
            case Strong(inner) | Emphasis(inner):
                parts.append(format_plain_text(inner))
    return "".join(parts)
