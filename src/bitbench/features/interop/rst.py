"""Text and grid tables in reStructuredText."""

import itertools
import unicodedata
from collections.abc import Iterator, Sequence
from textwrap import TextWrapper

from bitbench.reports.document.words import format_plain_words
from bitbench.util.units import UNKNOWN

WIDEST_TEXT = 44  # characters of a column of words


def escape_rst(text: str) -> str:
    """Return the text so that the rendered page shows it as it is. Empty text is unknown."""
    words = format_plain_words(text)
    line = ""
    for index, char in enumerate(words):
        line += f"\\{char}" if _is_markup(words, index) else char
    line = line or UNKNOWN
    is_plain = line[0].isalnum() or line[0] in "\\–"
    if is_plain and not _starts_like_list_item(line):
        return line
    return f"\\{line}"


def _starts_like_list_item(line: str) -> bool:
    """Return True if the line begins with a marker such as `1.`, `a)` or `(iv)`."""
    marker = line.split(maxsplit=1)[0]
    if marker.startswith("(") and marker.endswith(")"):
        name = marker[1:-1]
    elif marker.endswith((".", ")")):
        name = marker[:-1]
    else:
        return False
    return name.replace("_", "a").isalnum()


def _is_markup(line: str, index: int) -> bool:
    """Return True if the character at `index` may be markup.

    A colon before a word makes a link or a role. An @ in a word makes a mail address.
    """
    match line[index]:
        case ":":
            return line[index + 1 : index + 2].strip() != ""
        case "@":
            return line[max(index - 1, 0) : index].strip() != ""
    return line[index] in "\\*`|_"


def format_rst_heading(text: str, mark: str) -> str:
    """Return a heading: the text, which must be escaped already, and its line of marks."""
    return f"{text}\n{mark * max(_count_columns(text), 3)}"


def format_rst_grid_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, merged: int = 0
) -> str:
    """Return a grid table. Its cells must be escaped already.

    A repeated cell in the first `merged` columns is joined with the cell above it, as long as all
    columns before it repeat too.
    """
    # An escape must stay next to the character that it escapes, so words stay whole.
    wrapper = TextWrapper(WIDEST_TEXT, break_long_words=False, break_on_hyphens=False)
    lines = [_wrap_cells(wrapper, row) for row in (header, *rows)]
    widths = []
    for column in range(len(header)):
        parts = itertools.chain.from_iterable(row[column] for row in lines)
        widths.append(max(map(_count_columns, parts)))
    output = [
        _format_rule(widths, "-"),
        *_iter_cell_lines(lines[0], widths),
        _format_rule(widths, "="),
    ]
    for number, row in enumerate(rows):
        repeated = 0
        if number:
            repeated = _count_repeated(rows[number - 1], row, merged)
            output.append(_format_rule(widths, "-", open_columns=repeated))
        output += _iter_cell_lines([[""]] * repeated + lines[number + 1][repeated:], widths)
    return "\n".join([*output, _format_rule(widths, "-")])


def _wrap_cells(wrapper: TextWrapper, row: Sequence[str]) -> list[list[str]]:
    return [wrapper.wrap(cell) or [""] for cell in row]


def _count_repeated(above: Sequence[str], row: Sequence[str], most: int) -> int:
    """Count the first columns, at most `most`, that repeat the row above."""
    for column in range(most):
        if above[column] != row[column]:
            return column
    return most


def _format_rule(widths: Sequence[int], mark: str, open_columns: int = 0) -> str:
    """Return a line between rows. The first `open_columns` have no line."""
    parts = []
    for column, width in enumerate(widths):
        filling = " " if column < open_columns else mark
        parts.append(filling * (width + 2))
    return f"+{'+'.join(parts)}+"


def _iter_cell_lines(row: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a row."""
    for parts in itertools.zip_longest(*row, fillvalue=""):
        padded = []
        for part, width in zip(parts, widths, strict=True):
            padded.append(f" {part}{' ' * (width - _count_columns(part))} ")
        yield f"|{'|'.join(padded)}|"


def _count_columns(text: str) -> int:
    """Count columns as docutils does: two for a wide character, zero for a combining one."""
    width = 0
    for char in text:
        if not unicodedata.combining(char):
            width += 2 if unicodedata.east_asian_width(char) in "WF" else 1
    return width
