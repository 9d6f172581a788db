"""Text and grid tables in reStructuredText."""

import unicodedata
from collections.abc import Iterator, Sequence
from textwrap import TextWrapper

from bitbench.reports.document.words import plain_words
from bitbench.util.units import UNKNOWN

WIDEST_TEXT = 44  # characters of a column of words


def escape_rst(text: str) -> str:
    """As it is, to a reader of the rendered page; nothing at all is what is not known."""
    words = plain_words(text)
    line = (
        "".join(
            f"\\{char}" if _is_markup(words, place) else char for place, char in enumerate(words)
        )
        or UNKNOWN
    )
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
    inner = (
        first[1:-1]
        if first.startswith("(") and first.endswith(")")
        else first[:-1]
        if first[-1] in ".)"
        else ""
    )
    return bool(inner) and all(char.isalnum() or char == "_" for char in inner)


def rst_heading(text: str, mark: str) -> str:
    """The text, escaped already, with its line of marks."""
    return f"{text}\n{mark * max(_width(text), 3)}"


def rst_grid_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, merged: int = 0) -> str:
    """Cells must be escaped already. The first `merged` columns of a row that repeat the one above are left out.

    A repeated cell is joined with the one above it, as long as all columns before it repeat too.
    """
    # An escape must not be cut off from what it escapes, so words stay whole.
    whole_words = TextWrapper(WIDEST_TEXT, break_long_words=False, break_on_hyphens=False)
    lines = [[whole_words.wrap(cell) or [""] for cell in row] for row in (header, *rows)]
    widths = [
        max(_width(part) for row in lines for part in row[column]) for column in range(len(header))
    ]
    output = [_rule(widths, "-"), *_cells(lines[0], widths), _rule(widths, "=")]
    for number, row in enumerate(rows):
        repeated = 0
        if number:
            above = rows[number - 1]
            repeated = next(
                (place for place in range(merged) if above[place] != row[place]), merged
            )
            output.append(_rule(widths, "-", open_columns=repeated))
        output += _cells([[""]] * repeated + lines[number + 1][repeated:], widths)
    return "\n".join([*output, _rule(widths, "-")])


def _rule(widths: Sequence[int], mark: str, open_columns: int = 0) -> str:
    parts = [
        (" " if column < open_columns else mark) * (width + 2)
        for column, width in enumerate(widths)
    ]
    return f"+{'+'.join(parts)}+"


def _cells(row: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    for number in range(max(len(cell) for cell in row)):
        parts = [cell[number] if number < len(cell) else "" for cell in row]
        padded = (
            f" {part}{' ' * (width - _width(part))} "
            for part, width in zip(parts, widths, strict=True)
        )
        yield f"|{'|'.join(padded)}|"


def _width(text: str) -> int:
    """Columns that it takes, as docutils counts them: two for a wide character, none for a combining one."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
