"""reStructuredText that says what it is told to say: grid tables, and names that are only names."""

import re
import unicodedata
from collections.abc import Sequence
from textwrap import wrap

from bitbench.ground.units import UNKNOWN
from bitbench.report.document.text import MAX_TEXT, plain

# A colon before a word makes a link of an address or a role, an @ in a word an address of mail.
_MARKUP = re.compile(r"([\\*`|_]|:(?=\S)|(?<=\S)@)")
_BEGINS_A_LIST = re.compile(r"(\w+[.)]|\(\w+\))(\s|$)")
WIDEST_TEXT = 44  # characters of a column of words


def rst(text: str, limit: int = MAX_TEXT) -> str:
    """As it is, to a reader of the rendered page; nothing at all is what is not known."""
    line = _MARKUP.sub(r"\\\1", plain(text, limit)) or UNKNOWN
    begins = line[:1]
    if begins and not begins.isalnum() and begins not in "\\–":
        return f"\\{line}"
    return f"\\{line}" if _BEGINS_A_LIST.match(line) else line


def heading(text: str, mark: str) -> str:
    return f"{text}\n{mark * max(_width(text), 3)}"


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
        shown = [[""] if column < repeated else cell for column, cell in enumerate(lines[number + 1])]
        output += _cells(shown, widths)
    return "\n".join([*output, _rule(widths, "-")])


def _repeated(above: Sequence[str], row: Sequence[str], merged: int) -> int:
    count = 0
    while count < merged and above[count] == row[count]:
        count += 1
    return count


def _wrapped(cell: str) -> list[str]:
    # An escape must not be cut off from what it escapes, so words stay whole.
    return wrap(cell, WIDEST_TEXT, break_long_words=False, break_on_hyphens=False) or [""]


def _rule(widths: Sequence[int], mark: str, open_columns: int = 0) -> str:
    parts = [" " * (width + 2) if column < open_columns else mark * (width + 2) for column, width in enumerate(widths)]
    return f"+{'+'.join(parts)}+"


def _cells(row: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    height = max(len(cell) for cell in row)
    lines = []
    for number in range(height):
        parts = [cell[number] if number < len(cell) else "" for cell in row]
        lines.append(
            "|"
            + "|".join(f" {part}{' ' * (width - _width(part))} " for part, width in zip(parts, widths, strict=True))
            + "|"
        )
    return lines


def _width(text: str) -> int:
    """Columns that it takes, as docutils counts them: two for a wide character, none for a combining one."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
