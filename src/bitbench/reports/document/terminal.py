"""A document in a terminal: as many columns as fit, and the answer last, to stay on screen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bitbench.reports.document import model as doc
from bitbench.reports.document.numbers import (
    Scale,
    choose_column_scales,
    format_quantity,
    write_quantity_in_column,
)
from bitbench.reports.document.words import (
    MAX_LOG_LINE,
    MAX_NAME,
    format_inline_words,
    format_plain_words,
)
from bitbench.util.units import UNKNOWN

WIDEST_RANK = 17  # characters of a cell of words that is never broken: `unsupported (12)`
NARROWEST_WORDS = 12  # characters to which a column of words may be folded
FEWEST_COLUMNS = 3  # a table keeps these, however narrow the terminal is
GAP = 2  # characters between columns
WIDEST_NUMBER_TITLE = 14  # characters in a line; a longer title is wrapped
_STYLES = {doc.Mark.BEST: "bold", doc.Mark.ALARM: "red", None: ""}


def render_in_terminal(document: doc.Document, console: Console) -> None:
    """Print the sections that are meant for a terminal, then the answer, its paragraphs last."""
    for section in document.sections:
        if section.in_terminal:
            _render_section(section, console)
    console.print()
    answer = sorted(document.answer, key=lambda block: isinstance(block, doc.Paragraph))
    _render_blocks(tuple(answer), console)


def render_whole_in_terminal(document: doc.Document, console: Console) -> None:
    """Print a whole document in the order of a page, for documents of a screen or two."""
    console.print(Text.assemble(_render_phrase(document.title), style="bold"))
    _render_blocks(document.answer, console)
    for section in document.sections:
        _render_section(section, console)


def _render_section(section: doc.Section, console: Console) -> None:
    console.print()
    console.print(Text.assemble(_render_phrase(section.title), style="bold"))
    _render_blocks(section.blocks, console)


def _render_phrase(phrase: doc.Phrase) -> Text:
    return Text.assemble(*map(_render_part, phrase))


def _render_part(part: doc.Part) -> Text:
    match part:
        case str():
            return Text(format_inline_words(part))
        case doc.Name(text):
            return Text(format_plain_words(text, MAX_NAME))
        case doc.Strong(inner):
            return Text.assemble(_render_phrase(inner), style="bold")
        case doc.Emphasis(inner):
            return Text.assemble(_render_phrase(inner), style="italic")
        case doc.Quantity():
            return Text(format_quantity(part))


def _render_blocks(blocks: tuple[doc.Block, ...], console: Console) -> None:
    """Print blocks, except charts, small print and details."""
    for block in blocks:
        match block:
            case doc.Paragraph(words, is_small_print=False):
                console.print(_render_phrase(words))
            case doc.Bullets(items):
                for item in items:
                    console.print(Text.assemble("• ", _render_phrase(item)))
            case doc.Heading(words):
                console.print(Text.assemble(_render_phrase(words), style="dim"))
            case doc.CodeBlock(lines):
                # The terminal itself wraps lines, so that a copy has no added line breaks.
                for line in lines:
                    console.print(
                        Text(f"  {format_plain_words(line, MAX_LOG_LINE)}"), soft_wrap=True
                    )
            case doc.Table():
                console.print(_render_table(block, console))
            case _:
                pass


@dataclass(frozen=True)
class _Shown:
    """A column as a terminal shows it."""

    title: Text
    cells: list[Text]
    is_words: bool

    @property
    def is_rigid(self) -> bool:
        """True if cells are never broken: numbers, and words as short as a rank."""
        return not self.is_words or max(map(len, self.cells), default=0) <= WIDEST_RANK

    @property
    def least_width(self) -> int:
        lines = [line for text in (self.title, *self.cells) for line in (text.split() or [text])]
        widest = max(map(len, lines))
        return widest if self.is_rigid else min(widest, NARROWEST_WORDS)


def _render_table(table: doc.Table, console: Console) -> RichTable:
    columns = []
    for index, scale in enumerate(choose_column_scales(table)):
        candidate = _make_column(table, index, scale, console)
        if candidate is not None:
            columns.append(candidate)
    columns = _list_fitting_columns(columns, console)
    result = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "left" if column.is_words else "right"
        result.add_column(column.title, justify=justify, overflow="fold", no_wrap=column.is_rigid)
    for number, row in enumerate(table.rows):
        cells = [column.cells[number] for column in columns]
        result.add_row(*cells, style=_STYLES[row.mark])
    return result


def _make_column(table: doc.Table, index: int, scale: Scale, console: Console) -> _Shown | None:
    """Return a column, or None if the terminal is too narrow for it."""
    column = table.columns[index]
    if console.width < column.shown_from:
        return None
    lines = _wrap_title(column, console)
    if scale.unit:
        lines.append(Text(scale.unit))
    cells = [_render_cell(row.cells[index], column, scale, console.width) for row in table.rows]
    return _Shown(Text("\n").join(lines), cells, column.is_words)


def _list_fitting_columns(columns: Sequence[_Shown], console: Console) -> list[_Shown]:
    """Return the columns that fit.

    The last numbers are dropped first, as whole columns: half of a number would be a wrong number.
    An outcome in words at the end stays.
    """
    kept = list(columns)
    while len(kept) > FEWEST_COLUMNS:
        width = sum(column.least_width + GAP for column in kept) - GAP
        if width <= console.width:
            break
        droppable = [
            index
            for index, column in enumerate(kept)
            if index >= FEWEST_COLUMNS and not column.is_words
        ]
        kept.pop(max(droppable, default=-1))
    return kept


def _wrap_title(column: doc.Column, console: Console) -> list[Text]:
    """Return the title in lines. A title of numbers is wrapped to about their width."""
    title = _render_phrase(column.title)
    return [title] if column.is_words else list(title.wrap(console, WIDEST_NUMBER_TITLE))


def _render_cell(cell: doc.TableCell, column: doc.Column, scale: Scale, width: int) -> Text:
    match cell:
        case None:
            return Text(UNKNOWN)
        case doc.Quantity():
            has_room = width >= column.intervals_from
            written = write_quantity_in_column(column, scale, cell, interval=has_room)
            return Text(written.text)
        case _:
            return _render_phrase(cell)
