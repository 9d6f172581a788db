"""A document in a terminal: fewer columns where it is narrow, and the answer last, where it stays on the screen."""

from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bitbench.reports.document import model as doc
from bitbench.reports.document.numbers import (
    Scale,
    column_quantity_scales,
    shown,
    written_quantity_in_column,
)
from bitbench.reports.document.words import MAX_LOG_LINE, MAX_NAME, inline_words, plain_words
from bitbench.util.units import UNKNOWN

WIDEST_RANK = 17  # characters of a cell of words that is never broken: `unsupported (12)`
NARROWEST_WORDS = 12  # to which a column of words may be folded
FEWEST_COLUMNS = 3  # that a table keeps however narrow the terminal is
GAP = 2  # between columns
WIDEST_NUMBER_TITLE = 14  # characters in a line; what is longer is wrapped
_STYLES = {doc.Mark.BEST: "bold", doc.Mark.ALARM: "red", None: ""}


def render_in_terminal(document: doc.Document, console: Console) -> None:
    """The sections that are meant for a terminal, then the answer."""
    for section in document.sections:
        if section.in_terminal:
            _section(section, console)
    console.print()
    _blocks(
        tuple(sorted(document.answer, key=lambda block: isinstance(block, doc.Paragraph))), console
    )


def render_whole_in_terminal(document: doc.Document, console: Console) -> None:
    """From the title on, in the order of a page: for documents of a screen or two."""
    console.print(Text.assemble(_terminal_phrase(document.title), style="bold"))
    _blocks(document.answer, console)
    for section in document.sections:
        _section(section, console)


def _section(section: doc.Section, console: Console) -> None:
    console.print()
    console.print(Text.assemble(_terminal_phrase(section.title), style="bold"))
    _blocks(section.blocks, console)


def _terminal_phrase(of: doc.Phrase) -> Text:
    return Text.assemble(*(_part(part) for part in of))


def _part(part: doc.Part) -> Text:
    match part:
        case str():
            return Text(inline_words(part))
        case doc.Name(text):
            return Text(plain_words(text, MAX_NAME))
        case doc.Strong(inner):
            return Text.assemble(_terminal_phrase(inner), style="bold")
        case doc.Emphasis(inner):
            return Text.assemble(_terminal_phrase(inner), style="italic")
        case doc.Quantity():
            return Text(shown(part))


def _blocks(blocks: tuple[doc.Block, ...], console: Console) -> None:
    """Charts, small print and what is folded away on a page are left out."""
    for block in blocks:
        match block:
            case doc.Paragraph(words, is_small_print=False):
                console.print(_terminal_phrase(words))
            case doc.Bullets(items):
                for item in items:
                    console.print(Text.assemble("• ", _terminal_phrase(item)))
            case doc.Heading(words):
                console.print(Text.assemble(_terminal_phrase(words), style="dim"))
            case doc.CodeBlock(lines):
                for line in (
                    lines
                ):  # the terminal itself wraps them, so that what is copied has no breaks of ours
                    console.print(Text(f"  {plain_words(line, MAX_LOG_LINE)}"), soft_wrap=True)
            case doc.Table():
                console.print(_table(block, console))
            case _:
                pass


@dataclass(frozen=True)
class _Shown:
    """A column as a terminal has it."""

    title: Text
    cells: list[Text]
    is_words: bool

    @property
    def is_rigid(self) -> bool:
        """Numbers are never broken, nor words that are as short, such as a rank."""
        return not self.is_words or max(map(len, self.cells), default=0) <= WIDEST_RANK

    @property
    def least_width(self) -> int:
        widest = max(
            len(line) for text in (self.title, *self.cells) for line in (text.split() or [text])
        )
        return widest if self.is_rigid else min(widest, NARROWEST_WORDS)


def _table(table: doc.Table, console: Console) -> RichTable:
    shown_table = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    columns = _fitting(
        [
            _column(table, place, scale, console)
            for place, scale in enumerate(column_quantity_scales(table))
        ],
        console,
    )
    for column in columns:
        justify: Literal["left", "right"] = "left" if column.is_words else "right"
        shown_table.add_column(
            column.title, justify=justify, overflow="fold", no_wrap=column.is_rigid
        )
    for number, row in enumerate(table.rows):
        shown_table.add_row(*(column.cells[number] for column in columns), style=_STYLES[row.mark])
    return shown_table


def _column(table: doc.Table, place: int, scale: Scale, console: Console) -> _Shown | None:
    """None where the terminal is too narrow for it."""
    column = table.columns[place]
    if console.width < column.shown_from:
        return None
    title = Text("\n").join([*_lines(column, console), *([Text(scale.unit)] if scale.unit else [])])
    return _Shown(
        title,
        [_cell(row.cells[place], column, scale, console.width) for row in table.rows],
        column.is_words,
    )


def _fitting(columns: list[_Shown | None], console: Console) -> list[_Shown]:
    """The last numbers go first, whole: half of one would be a wrong one. The outcome in words at the end stays."""
    kept = [column for column in columns if column is not None]
    while (
        len(kept) > FEWEST_COLUMNS
        and sum(column.least_width + GAP for column in kept) - GAP > console.width
    ):
        numbers = [
            place
            for place, column in enumerate(kept)
            if place >= FEWEST_COLUMNS and not column.is_words
        ]
        kept.pop(numbers[-1] if numbers else -1)
    return kept


def _lines(column: doc.Column, console: Console) -> list[Text]:
    """The title of numbers in lines about as short as the numbers are."""
    title = _terminal_phrase(column.title)
    return [title] if column.is_words else list(title.wrap(console, WIDEST_NUMBER_TITLE))


def _cell(cell: doc.TableCell, column: doc.Column, scale: Scale, width: int) -> Text:
    match cell:
        case None:
            return Text(UNKNOWN)
        case doc.Quantity():
            return Text(
                written_quantity_in_column(
                    column, scale, cell, interval=width >= column.intervals_from
                ).text
            )
        case _:
            return _terminal_phrase(cell)
