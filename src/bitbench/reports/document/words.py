"""Builders of phrases, lines and tables.

Text from elsewhere (a study, an engine, a server) becomes one harmless line.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
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
from bitbench.reports.document.numbers import make_number
from bitbench.util.text import escape_hidden
from bitbench.util.units import UNKNOWN

Words = Part | Phrase | None  # a part of a sentence; None: an unknown value


def say(*parts: Words) -> Phrase:
    """Return the parts as one phrase: `say("Use ", Name("w8a8"), ".")`.

    A part that is None becomes the sign for an unknown value.
    """
    phrase: list[Part] = []
    for part in parts:
        if part is None:
            phrase.append(UNKNOWN)
        elif isinstance(part, tuple):
            phrase.extend(part)
        else:
            phrase.append(part)
    return tuple(phrase)


def describe_ratio(definition: MetricDefinition, other: Words) -> Phrase:
    """Return the words that follow a ratio: `the throughput of a`, `as fast as a in TTFT`."""
    if definition.higher_is_better:
        return say(f"the {definition.name} of ", other)
    if definition.unit == Unit.BYTES:
        return say(f"less {definition.name} than ", other)
    return say("as fast as ", other, f" in {definition.name}")


def strong(*parts: Words) -> Phrase:
    return (Strong(say(*parts)),)


def list_names(texts: Iterable[str]) -> list[Phrase]:
    """Return each text as a name, set in code type."""
    return [(Name(text),) for text in texts]


def join_phrases(parts: Iterable[Words], separator: str) -> Phrase:
    """Return the parts as one phrase, with the separator between them."""
    words: list[Words] = []
    for part in parts:
        if words:
            words.append(separator)
        words.append(part)
    return say(*words)


def format_list(parts: Sequence[Words], last: str = "and", *, most: int | None = None) -> Phrase:
    """Return `a`, `a and b` or `a, b and c`. Beyond `most` parts: `a, b and 3 more`."""
    if most is not None and len(parts) > most:
        parts = [*parts[:most], f"{len(parts) - most:,} more"]
    if len(parts) < 2:
        return say(*parts)
    return say(join_phrases(parts[:-1], ", "), f" {last} ", parts[-1])


def format_names(texts: Iterable[str], *, most: int | None = None) -> Phrase:
    """Return the texts as names in one phrase, as `listing` joins them."""
    return format_list(list_names(texts), most=most)


def format_counts(words: Iterable[str]) -> str:
    """Return the words in order, with their counts: `crashed, oom (2)`."""
    parts = []
    for word, count in sorted(Counter(words).items()):
        times = f" ({count})" if count > 1 else ""
        parts.append(f"{word}{times}")
    return ", ".join(parts)


def format_count(count: int, noun: str) -> str:
    """Return `1 cell` or `2 cells`."""
    ending = "" if count == 1 else "s"
    return f"{count:,} {noun}{ending}"


def paragraph(*parts: Words) -> Paragraph:
    return Paragraph(say(*parts))


def small_print(*parts: Words) -> Paragraph:
    return Paragraph(say(*parts), is_small_print=True)


def bullets(sentences: Iterable[Words]) -> tuple[Bullets, ...]:
    """Return a tuple with one list, or an empty one without sentences.

    The tuple is meant to be unpacked into the blocks of a section.
    """
    items = tuple(map(say, sentences))
    return (Bullets(items),) if items else ()


MAX_NAME = 80
MAX_TEXT = 400
MAX_LOG_LINE = 300

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def format_one_line(text: str) -> str:
    """Return the text as one line without ANSI codes, with invisible characters spelled out."""
    return escape_hidden(" ".join(_ANSI.sub("", text).split()))


def format_plain_words(text: str, limit: int = MAX_TEXT) -> str:
    """Return the text as one harmless line of at most `limit` characters."""
    line = format_one_line(text)
    if len(line) <= limit:
        return line
    return line[: limit - 1] + "…"


def format_inline_words(text: str) -> str:
    """Return a part of a phrase as a harmless line that keeps a space at either end."""
    before = " " if text[:1].isspace() else ""
    after = " " if text[-1:].isspace() else ""
    line = format_plain_words(text, 4 * MAX_TEXT)
    return f"{before}{line}{after}" if line else before


Item = TypeVar("Item")
Shown = Words | float  # a bare number is in the unit of its column


@dataclass(frozen=True)
class ColumnOf(Generic[Item]):
    """A column of a table, with the function that reads its cell from an item."""

    column: Column
    of: Callable[[Item], Shown]
    decimals: int | None = None  # of bare numbers, in tables whose layout others have set

    def cell(self, item: Item) -> TableCell:
        content = self.of(item)
        if content is None or isinstance(content, Quantity):
            return content
        if not isinstance(content, int | float):
            return say(content)
        if self.decimals is None:
            return make_number(content, self.column.unit)
        return Quantity(content, self.column.unit, decimals=self.decimals)


def make_words_column(
    title: Words, get_words: Callable[[Item], Words], *, shown_from: int = 0
) -> ColumnOf[Item]:
    """Return a left-aligned column of words."""
    return ColumnOf(Column(say(title), is_words=True, shown_from=shown_from), get_words)


def make_number_column(
    title: Words,
    unit: str,
    get_number: Callable[[Item], Shown],
    *,
    shown_from: int = 0,
    intervals_from: int = 130,
    decimals: int | None = None,
) -> ColumnOf[Item]:
    """Return a column of numbers. `shown_from` and `intervals_from` are widths of a terminal."""
    column = Column(say(title), unit, shown_from=shown_from, intervals_from=intervals_from)
    return ColumnOf(column, get_number, decimals)


def make_ratio_column(title: Words, get_ratio: Callable[[Item], Shown]) -> ColumnOf[Item]:
    """Return a column of ratios. Every terminal shows the intervals: a ratio alone says little."""
    return make_number_column(title, Unit.RATIO, get_ratio, intervals_from=0)


def mark_if(condition: bool, mark: Mark) -> Mark | None:
    """Return the mark of a row that meets a condition, or None."""
    return mark if condition else None


def build_table(
    items: Iterable[Item],
    *columns: ColumnOf[Item],
    mark: Callable[[Item], Mark | None] = lambda _: None,
    drop_empty: bool = False,
) -> Table:
    """Return a table with one row per item. `drop_empty` drops columns without any value."""
    rows = []
    for item in items:
        cells = tuple(column.cell(item) for column in columns)
        rows.append(Row(cells, mark(item)))
    whole = Table(tuple(column.column for column in columns), tuple(rows))
    return _drop_empty_columns(whole) if drop_empty else whole


def _drop_empty_columns(whole: Table) -> Table:
    is_filled = []
    for index in range(len(whole.columns)):
        is_filled.append(any(row.cells[index] is not None for row in whole.rows))
    rows = []
    for row in whole.rows:
        rows.append(replace(row, cells=tuple(compress(row.cells, is_filled))))
    return Table(tuple(compress(whole.columns, is_filled)), tuple(rows))
