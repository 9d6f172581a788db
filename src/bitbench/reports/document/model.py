"""What a document consists of: sections of typed blocks, and numbers that are still numbers.

A section says *what* is told; the renderers beside this file (Markdown, HTML, terminal, JSON) decide how it is written
down. Names and other people's words stand in a document as they are: making them harmless is each renderer's own duty,
and none of them lets a string through that is not escaped.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from bitbench.study.base import Json


class Unit(StrEnum):
    """How numbers of a kind are scaled and written; a `Quantity` may also carry any other unit as plain words."""

    SECONDS = "s"  # scaled to µs, ms or s
    BYTES = "bytes"  # scaled to MiB or GiB
    RATIO = "×"
    SHARE = "share"  # written in per cent
    COUNT = "count"  # whole, without a unit
    NONE = ""


@dataclass(frozen=True)
class Quantity:
    """A number with what is known about it. `value` in base units (seconds, bytes, shares); None: not known."""

    value: float | None
    unit: str = Unit.NONE
    low: float | None = None
    high: float | None = None  # None beside a `low`: open upwards
    # A confidence interval: 12.3 [11.9, 12.8]; or the lowest and the highest of what was seen: 12.3 (11.9 – 12.8).
    range: Literal["interval", "extremes"] = "interval"
    digits: int | None = None  # significant ones; None: as many as the interval supports
    is_signed: bool = False  # a plus before what is above zero
    note: str = ""  # a few words behind it
    sd: float | None = None  # of the trials that `value` is the mean of: 12.3 ± 0.8 [11.9, 12.8]
    decimals: int | None = None  # exactly so many: for tables whose layout others have set


@dataclass(frozen=True)
class Name:
    """A name from a study or a record, set in code type where there is one."""

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
    is_small_print: bool = False  # how to read it: softer in a page, not in a terminal


@dataclass(frozen=True)
class Bullets:
    items: tuple[Phrase, ...]


@dataclass(frozen=True)
class CodeBlock:
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Heading:
    """Within a section."""

    phrase: Phrase


@dataclass(frozen=True)
class Column:
    """`unit` is the base unit of its quantities; the renderer scales a whole column alike and names the unit once.

    A terminal has little room: it shows the column from `shown_from` characters on, and intervals in it from
    `intervals_from` on.
    """

    title: Phrase
    unit: str = Unit.NONE
    is_words: bool = False  # left-aligned
    shown_from: int = 0
    intervals_from: int = 130


class Mark(StrEnum):
    """What a row is to a reader who looks for one."""

    BEST = "best"
    ALARM = "alarm"


TableCell = Quantity | Phrase | None  # None: not known


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
    """A picture, as a specification of Vega-Lite, and the rows it is drawn from."""

    name: str  # of its file, and its place in a page
    title: str
    caption: str
    spec: dict[str, Json]
    rows: list[FigureRow]


@dataclass(frozen=True)
class Chart:
    figure: Figure


@dataclass(frozen=True)
class Details:
    """Shown when asked for; a terminal leaves it out."""

    title: str
    blocks: "tuple[Block, ...]"


Block = Paragraph | Bullets | CodeBlock | Heading | Table | Chart | Details


@dataclass(frozen=True)
class Section:
    """One question that a document answers. `in_terminal`: also printed at the end of a command. `is_folded`: a page
    shows its title, and the rest when asked for."""

    title: Phrase
    blocks: tuple[Block, ...]
    in_terminal: bool = False
    is_folded: bool = False

    @property
    def anchor(self) -> str:
        """As Markdown renderers make them, so that links inside a text reach their headings."""
        words = "".join(
            char if char.isalnum() and char.isascii() else " "
            for char in plain_text(self.title).lower()
        )
        return "-".join(words.split())[:60].strip("-") or "section"


@dataclass(frozen=True)
class Document:
    """`answer`, a sentence and the charts that show it, comes first on a page, and last in a terminal, where what is
    read last stays on the screen."""

    title: Phrase
    answer: tuple[Block, ...]
    sections: tuple[Section, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()  # where and when: small print beside the title


def plain_text(phrase: Phrase) -> str:
    """The words alone; quantities are left to the renderers."""
    parts = []
    for part in phrase:
        match part:
            case str():
                parts.append(part)
            case Name(text):
                parts.append(text)
            case Strong(inner) | Emphasis(inner):
                parts.append(plain_text(inner))
    return "".join(parts)
