"""A document in a terminal: fewer columns where it is narrow, and the answer last, where it stays on the screen."""

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bitbench.ground.units import UNKNOWN
from bitbench.report.document.model import (
    Block,
    Bullets,
    CodeBlock,
    Column,
    Document,
    Emphasis,
    Heading,
    Link,
    Mark,
    Name,
    Paragraph,
    Part,
    Phrase,
    Quantity,
    Section,
    Strong,
    Table,
    TableCell,
    plain_text,
)
from bitbench.report.document.numbers import Scale, scales_of, shown, written_in
from bitbench.report.document.text import MAX_LOG_LINE, MAX_NAME, inline, plain

WIDEST_RANK = 10  # characters: `12–14 (tie)` may break, `2–3 (tie)` not
WIDEST_NUMBER_TITLE = 14  # characters in a line; what is longer is wrapped
_STYLES = {Mark.BEST: "bold", Mark.ALARM: "red", None: ""}


def render(document: Document, console: Console) -> None:
    """The sections that are meant for a terminal, then the answer."""
    for section in document.sections:
        if section.in_terminal:
            _section(section, console)
    console.print()
    _blocks(tuple(sorted(document.answer, key=lambda block: isinstance(block, Paragraph))), console)


def render_whole(document: Document, console: Console) -> None:
    """From the title on, in the order of a page: for documents of a screen or two."""
    console.print(Text.assemble(phrase(document.title), style="bold"))
    _blocks(document.answer, console)
    for section in document.sections:
        _section(section, console)


def _section(section: Section, console: Console) -> None:
    console.print()
    console.print(Text.assemble(phrase(section.title), style="bold"))
    _blocks(section.blocks, console)


def phrase(of: Phrase) -> Text:
    return Text.assemble(*(_part(part) for part in of))


def _part(part: Part) -> Text:
    match part:
        case str():
            return Text(inline(part))
        case Name(text):
            return Text(plain(text, MAX_NAME))
        case Strong(inner):
            return Text.assemble(phrase(inner), style="bold")
        case Emphasis(inner):
            return Text.assemble(phrase(inner), style="italic")
        case Link(text):
            return Text(text)
        case Quantity():
            return Text(shown(part))


def _blocks(blocks: tuple[Block, ...], console: Console) -> None:
    """Charts, small print and what is folded away on a page are left out."""
    for block in blocks:
        match block:
            case Paragraph(words, is_small_print=False):
                console.print(phrase(words))
            case Bullets(items):
                for item in items:
                    console.print(Text.assemble("• ", phrase(item)))
            case Heading(words):
                console.print(Text.assemble(phrase(words), style="dim"))
            case CodeBlock(lines):
                for line in lines:
                    console.print(Text(f"  {plain(line, MAX_LOG_LINE)}", style="dim"))
            case Table():
                console.print(_table(block, console))
            case _:
                pass


def _table(table: Table, console: Console) -> RichTable:
    width = console.width
    shown_table = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    scales = scales_of(table)
    places = [place for place, column in enumerate(table.columns) if width >= column.shown_from]
    for place in places:
        column = table.columns[place]
        title = Text("\n").join([*_lines(column, console), *([Text(scales[place].unit)] if scales[place].unit else [])])
        justify = "left" if column.is_words else "right"
        shown_table.add_column(
            title, justify=justify, overflow="fold", no_wrap=not column.is_words or _is_short(table, place)
        )
    for row in table.rows:
        cells = [_cell(row.cells[place], table.columns[place], scales[place], width) for place in places]
        shown_table.add_row(*cells, style=_STYLES[row.mark])
    return shown_table


def _is_short(table: Table, place: int) -> bool:
    """Words that are no longer than a number, such as a rank, are not broken for the sake of others."""
    cells = (row.cells[place] for row in table.rows)
    return all(len(plain_text(cell)) <= WIDEST_RANK for cell in cells if isinstance(cell, tuple))


def _lines(column: Column, console: Console) -> list[Text]:
    """The title of numbers in lines about as short as the numbers are."""
    title = phrase(column.title)
    return [title] if column.is_words else list(title.wrap(console, WIDEST_NUMBER_TITLE))


def _cell(cell: TableCell, column: Column, scale: Scale, width: int) -> Text:
    match cell:
        case None:
            return Text(UNKNOWN)
        case Quantity():
            return Text(written_in(column, scale, cell, interval=width >= column.intervals_from).text)
        case _:
            return phrase(cell)
