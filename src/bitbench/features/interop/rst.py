"""A document as reStructuredText: grid tables, and names that are only names."""

import unicodedata
from collections.abc import Iterator, Sequence
from textwrap import wrap

from bitbench.reports.document import model as doc
from bitbench.reports.document.numbers import shown, text_cells
from bitbench.reports.document.text import plain
from bitbench.util.units import UNKNOWN

WIDEST_TEXT = 44  # characters of a column of words


def rst(document: doc.Document, *, merged: int = 0) -> str:
    """Its title, paragraphs, lists and tables; `merged`: see `grid_table`."""
    parts = [_heading(document.title, "="), *_blocks(document.answer, merged)]
    for section in document.sections:
        parts += [_heading(section.title, "-"), *_blocks(section.blocks, merged)]
    return "\n\n".join(parts) + "\n"


def _blocks(blocks: Sequence[doc.Block], merged: int) -> Iterator[str]:
    for block in blocks:
        match block:
            case doc.Paragraph(phrase):
                yield _line(phrase)
            case doc.Bullets(items):
                yield "\n".join(f"-  {_line(item)}" for item in items)
            case doc.Table():
                yield _table(block, merged)


def _line(phrase: doc.Phrase) -> str:
    return escape(
        "".join(shown(part) if isinstance(part, doc.Quantity) else doc.plain_text((part,)) for part in phrase)
    )


def escape(text: str) -> str:
    """As it is, to a reader of the rendered page; nothing at all is what is not known."""
    words = plain(text)
    line = "".join(f"\\{char}" if _is_markup(words, place) else char for place, char in enumerate(words)) or UNKNOWN
    is_plain = line[0].isalnum() or line[0] in "\\–"
    return line if is_plain and not _begins_a_list(line) else f"\\{line}"


def _is_markup(line: str, place: int) -> bool:
    """A colon before a word makes a link of an address or a role, an @ in a word an address of mail."""
    match line[place]:
        case ":":
            return line[place + 1 : place + 2].strip() != ""
        case "@":
            return line[max(place - 1, 0) : place].strip() != ""
    return line[place] in "\\*`|_"


def _begins_a_list(line: str) -> bool:
    """`1.`, `a)` or `(iv)`."""
    first = line.split(maxsplit=1)[0]
    inner = first[1:-1] if first.startswith("(") and first.endswith(")") else first[:-1] if first[-1] in ".)" else ""
    return bool(inner) and all(char.isalnum() or char == "_" for char in inner)


def _heading(title: doc.Phrase, mark: str) -> str:
    text = _line(title)
    return f"{text}\n{mark * max(_width(text), 3)}"


def _table(table: doc.Table, merged: int) -> str:
    titles, rows = text_cells(table, _line)
    return grid_table(titles, rows, merged=merged)


def grid_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, merged: int = 0) -> str:
    """Cells must be escaped already. The first `merged` columns of a row that repeat the one above are left out.

    A repeated cell is joined with the one above it, as long as all columns before it repeat too.
    """
    lines = [[_wrapped(cell) for cell in row] for row in (header, *rows)]
    widths = [max(_width(part) for row in lines for part in row[column]) for column in range(len(header))]
    output = [_rule(widths, "-"), *_cells(lines[0], widths), _rule(widths, "=")]
    for number, row in enumerate(rows):
        repeated = _repeated(rows[number - 1], row, merged) if number else 0
        if number:
            output.append(_rule(widths, "-", open_columns=repeated))
        output += _cells([[""]] * repeated + lines[number + 1][repeated:], widths)
    return "\n".join([*output, _rule(widths, "-")])


def _repeated(above: Sequence[str], row: Sequence[str], merged: int) -> int:
    return next((place for place in range(merged) if above[place] != row[place]), merged)


def _wrapped(cell: str) -> list[str]:
    # An escape must not be cut off from what it escapes, so words stay whole.
    return wrap(cell, WIDEST_TEXT, break_long_words=False, break_on_hyphens=False) or [""]


def _rule(widths: Sequence[int], mark: str, open_columns: int = 0) -> str:
    parts = [(" " if column < open_columns else mark) * (width + 2) for column, width in enumerate(widths)]
    return f"+{'+'.join(parts)}+"


def _cells(row: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    for number in range(max(len(cell) for cell in row)):
        parts = [cell[number] if number < len(cell) else "" for cell in row]
        padded = (f" {part}{' ' * (width - _width(part))} " for part, width in zip(parts, widths, strict=True))
        yield f"|{'|'.join(padded)}|"


def _width(text: str) -> int:
    """Columns that it takes, as docutils counts them: two for a wide character, none for a combining one."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
