"""A document in a terminal: fewer columns where it is narrow, and the answer last, where it stays on the screen."""

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bitbench.ground.units import UNKNOWN
from bitbench.report.document import model as doc
from bitbench.report.document.numbers import Scale, scales_of, shown, written_in
from bitbench.report.document.text import MAX_LOG_LINE, MAX_NAME, inline, plain

WIDEST_NUMBER_TITLE = 14  # characters in a line; what is longer is wrapped
_STYLES = {doc.Mark.BEST: "bold", doc.Mark.ALARM: "red", None: ""}


def render(document: doc.Document, console: Console) -> None:
    """The sections that are meant for a terminal, then the answer."""
    for section in document.sections:
        if section.in_terminal:
            _section(section, console)
    console.print()
    _blocks(document.answer, console)


def render_whole(document: doc.Document, console: Console) -> None:
    """From the title on, in the order of a page: for documents of a screen or two."""
    console.print(Text.assemble(phrase(document.title), style="bold"))
    _blocks(document.answer, console)
    for section in document.sections:
        _section(section, console)


def _section(section: doc.Section, console: Console) -> None:
    console.print()
    console.print(Text.assemble(phrase(section.title), style="bold"))
    _blocks(section.blocks, console)


def phrase(of: doc.Phrase) -> Text:
    return Text.assemble(*(_part(part) for part in of))


def _part(part: doc.Part) -> Text:
    match part:
        case str():
            return Text(inline(part))
        case doc.Name(text):
            return Text(plain(text, MAX_NAME))
        case doc.Strong(inner):
            return Text.assemble(phrase(inner), style="bold")
        case doc.Emphasis(inner):
            return Text.assemble(phrase(inner), style="italic")
        case doc.Link(text):
            return Text(text)
        case doc.Quantity():
            return Text(shown(part))


def _blocks(blocks: tuple[doc.Block, ...], console: Console) -> None:
    """Charts, small print and what is folded away on a page are left out."""
    for block in blocks:
        match block:
            case doc.Paragraph(words, is_small_print=False):
                console.print(phrase(words))
            case doc.Bullets(items):
                for item in items:
                    console.print(Text.assemble("• ", phrase(item)))
            case doc.Heading(words):
                console.print(Text.assemble(phrase(words), style="dim"))
            case doc.CodeBlock(lines):
                for line in lines:
                    console.print(Text(f"  {plain(line, MAX_LOG_LINE)}", style="dim"))
            case doc.Table():
                console.print(_table(block, console))
            case _:
                pass


def _table(table: doc.Table, console: Console) -> RichTable:
    width = console.width
    shown_table = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    scales = scales_of(table)
    places = [place for place, column in enumerate(table.columns) if width >= column.shown_from]
    for place in places:
        column = table.columns[place]
        title = Text("\n").join([*_lines(column, console), *([Text(scales[place].unit)] if scales[place].unit else [])])
        shown_table.add_column(
            title, justify="left" if column.is_words else "right", overflow="fold", no_wrap=not column.is_words
        )
    for row in table.rows:
        cells = [_cell(row.cells[place], table.columns[place], scales[place], width) for place in places]
        shown_table.add_row(*cells, style=_STYLES[row.mark])
    return shown_table


def _lines(column: doc.Column, console: Console) -> list[Text]:
    """The title of numbers in lines about as short as the numbers are."""
    title = phrase(column.title)
    return [title] if column.is_words else list(title.wrap(console, WIDEST_NUMBER_TITLE))


def _cell(cell: doc.TableCell, column: doc.Column, scale: Scale, width: int) -> Text:
    match cell:
        case None:
            return Text(UNKNOWN)
        case doc.Quantity():
            return Text(written_in(column, scale, cell, interval=width >= column.intervals_from).text)
        case _:
            return phrase(cell)
