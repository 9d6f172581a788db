"""Builds phrases, lines and tables of a document; words from elsewhere (a study, an engine, a server) become one
harmless line."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

from bitbench.analysis.results.summary import MetricDefinition
from bitbench.reports.document.model import (
    Bullets,
    Column,
    Mark,
    Name,
    Paragraph,
    Part,
    Phrase,
    Quantity,
    Row,
    Strong,
    Table,
    TableCell,
    Unit,
)
from bitbench.reports.document.numbers import number
from bitbench.util.text import visible
from bitbench.util.units import UNKNOWN

Words = Part | Phrase | None  # what a sentence may be built from; None: not known


def say(*parts: Words) -> Phrase:
    """One phrase: `say("Use ", Name("w8a8"), ".")`."""
    known = (UNKNOWN if part is None else part for part in parts)
    return tuple(
        piece for part in known for piece in (part if isinstance(part, tuple) else (part,))
    )


def ratio_meaning(definition: MetricDefinition, other: Words) -> Phrase:
    """`the output throughput of a`, `as fast as a in time per output token`: what stands behind a ratio."""
    if definition.higher_is_better:
        return say(f"the {definition.name} of ", other)
    if definition.unit == Unit.BYTES:
        return say(f"less {definition.name} than ", other)
    return say("as fast as ", other, f" in {definition.name}")


def strong(*parts: Words) -> Phrase:
    return (Strong(say(*parts)),)


def name_phrases(texts: Iterable[str]) -> list[Phrase]:
    return [(Name(text),) for text in texts]


def joined(parts: Iterable[Words], separator: str) -> Phrase:
    return say(
        *(
            word
            for place, part in enumerate(parts)
            for word in (*([separator] if place else []), part)
        )
    )


def listing(parts: Sequence[Words], last: str = "and", *, most: int | None = None) -> Phrase:
    """`a`, `a and b`, `a, b and c`; beyond `most`, `a, b and 3 more`."""
    if most is not None and len(parts) > most:
        parts = [*parts[:most], f"{len(parts) - most:,} more"]
    if len(parts) < 2:
        return say(*parts)
    return say(joined(parts[:-1], ", "), f" {last} ", parts[-1])


def counted(words: Iterable[str]) -> str:
    """`crashed, oom (2)`."""
    groups = [(word, len(list(same))) for word, same in groupby(sorted(words))]
    return ", ".join(word if count == 1 else f"{word} ({count})" for word, count in groups)


def plural(count: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def paragraph(*parts: Words) -> Paragraph:
    return Paragraph(say(*parts))


def small_print(*parts: Words) -> Paragraph:
    return Paragraph(say(*parts), is_small_print=True)


def bullets(sentences: Iterable[Words]) -> tuple[Bullets, ...]:
    """One list, or nothing at all: to be unpacked into the blocks of a section."""
    items = tuple(say(sentence) for sentence in sentences)
    return (Bullets(items),) if items else ()


MAX_NAME = 80
MAX_TEXT = 400
MAX_LOG_LINE = 300

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def words_in_one_line(text: str) -> str:
    """Without colours and movements of the cursor, and with what a reader could not see spelled out."""
    return visible(" ".join(_ANSI.sub("", text).split()))


def plain_words(text: str, limit: int = MAX_TEXT) -> str:
    """The same, not longer than `limit`."""
    line = words_in_one_line(text)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def inline_words(text: str) -> str:
    """A part of a phrase: the spaces at its ends stay, since they belong to the sentence."""
    line = plain_words(text, 4 * MAX_TEXT)
    if not line:
        return " " if text[:1].isspace() else ""
    return f"{' ' if text[0].isspace() else ''}{line}{' ' if text[-1].isspace() else ''}"


Item = TypeVar("Item")
Shown = Words | float  # a bare number is one of the column's unit


@dataclass(frozen=True)
class ColumnOf(Generic[Item]):
    column: Column
    of: Callable[[Item], Shown]
    decimals: int | None = None  # of bare numbers, in tables whose layout others have set

    def cell(self, item: Item) -> TableCell:
        shown = self.of(item)
        if isinstance(shown, int | float):
            fixed = Quantity(shown, self.column.unit, decimals=self.decimals)
            return number(shown, self.column.unit) if self.decimals is None else fixed
        return shown if shown is None or isinstance(shown, Quantity) else say(shown)


def words_column(
    title: Words, of: Callable[[Item], Words], *, shown_from: int = 0
) -> ColumnOf[Item]:
    return ColumnOf(Column(say(title), is_words=True, shown_from=shown_from), of)


def number_column(
    title: Words,
    unit: str,
    of: Callable[[Item], Shown],
    *,
    shown_from: int = 0,
    intervals_from: int = 130,
    decimals: int | None = None,
) -> ColumnOf[Item]:
    return ColumnOf(
        Column(say(title), unit, shown_from=shown_from, intervals_from=intervals_from), of, decimals
    )


def ratio_column(title: Words, of: Callable[[Item], Shown]) -> ColumnOf[Item]:
    """Its interval is shown in every terminal: a ratio without it says little."""
    return number_column(title, Unit.RATIO, of, intervals_from=0)


def table(
    items: Iterable[Item],
    *columns: ColumnOf[Item],
    mark: Callable[[Item], Mark | None] = lambda _: None,
    drop_empty: bool = False,
) -> Table:
    """`drop_empty`: without the columns whose values are all unknown."""
    rows = [(item, [column.cell(item) for column in columns]) for item in items]
    known = [
        place
        for place in range(len(columns))
        if not drop_empty or any(cells[place] is not None for _, cells in rows)
    ]
    return Table(
        tuple(columns[place].column for place in known),
        tuple(Row(tuple(cells[place] for place in known), mark(item)) for item, cells in rows),
    )
