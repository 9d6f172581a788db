"""Markdown that says what it is told to say, whatever is in the names."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

MAX_NAME = 80
MAX_TEXT = 400
MAX_LOG_LINE = 300

_TAME = re.compile(r"[\w .@/+:·=,()…-]+")  # nothing that ends a code span or a table cell
_MARKDOWN = re.compile(r"([\\`*_\[\]|~#])")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def visible(text: str) -> str:
    """One line without control, colour or direction characters."""
    shown = "".join(" " if unicodedata.category(char).startswith(("C", "Z")) else char for char in _ANSI.sub("", text))
    return " ".join(shown.split())


def plain(text: str, limit: int = MAX_TEXT) -> str:
    """The same, not longer than `limit`."""
    line = visible(text)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def escape(text: str, limit: int = MAX_TEXT) -> str:
    """As it is, to a reader of the rendered page."""
    line = plain(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", line)


def code(text: str, limit: int = MAX_NAME) -> str:
    """A name in code type, or escaped where it could break out of it."""
    line = plain(text, limit)
    return f"`{line}`" if _TAME.fullmatch(line) else escape(text, limit)


def code_block(lines: Iterable[str]) -> str:
    body = [plain(line, MAX_LOG_LINE) for line in lines]
    longest = max((len(run) for line in body for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *body, fence])


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> str:
    """A table that is also readable before it is rendered. Cells must be escaped already."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    marks = ["-" * width if column in left else "-" * (width - 1) + ":" for column, width in enumerate(widths)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    return "\n".join([line(header), line(marks), *(line(row) for row in rows)])


def listing(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def counted(words: Iterable[str]) -> str:
    """`crashed, oom (2)`."""
    groups = [(word, len(list(same))) for word, same in groupby(sorted(words))]
    return ", ".join(word if count == 1 else f"{word} ({count})" for word, count in groups)
