"""A document as Markdown that is readable as text. Its charts, if drawn, are files."""

from collections.abc import Iterator, Sequence

from bitbench.reports.document import model as doc
from bitbench.reports.document.numbers import format_cells_with_units, format_quantity
from bitbench.reports.document.words import (
    MAX_LOG_LINE,
    MAX_NAME,
    format_inline_words,
    format_plain_words,
)

FIGURES = "figures"  # the folder of its charts, next to it
_ESCAPED = str.maketrans(
    {char: f"\\{char}" for char in "\\`*_[]|~#"} | {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
)
# With letters and digits, the characters that end neither a code span nor a table cell.
_TAME = frozenset(" .@/+:·=,()…-_")


def render_markdown(document: doc.Document, *, has_figures: bool = True) -> str:
    """Return the whole document. Without figures, its charts are left out."""
    parts = [
        f"# {render_markdown_phrase(document.title)}",
        *_iter_blocks(document.answer, has_figures=has_figures),
    ]
    for section in document.sections:
        parts += render_markdown_section(section, has_figures=has_figures)
    return "\n\n".join(parts) + "\n"


def render_markdown_section(section: doc.Section, *, has_figures: bool = True) -> list[str]:
    """Return the paragraphs of a section, its title first."""
    title = f"## {render_markdown_phrase(section.title)}"
    return [title, *_iter_blocks(section.blocks, has_figures=has_figures)]


def _escape_markdown(text: str) -> str:
    """Return text that a rendered page shows unchanged."""
    return _escape_line(format_inline_words(text))


def _escape_line(line: str) -> str:
    """Escape a line, except for characters without a meaning in their context.

    They stay readable in the source: a `_` inside a word, brackets around numbers.
    """
    escaped = []
    for index, char in enumerate(line):
        if _is_harmless(char, line[index - 1 : index], line[index + 1 : index + 2]):
            escaped.append(char)
        else:
            escaped.append(char.translate(_ESCAPED))
    return "".join(escaped)


def _is_harmless(char: str, before: str, after: str) -> bool:
    match char:
        case "_":
            return before.isalnum() and after.isalnum()
        case "[":
            return after.isdigit() or after in ("-", "+")
        case "]":  # not at the end of a line: a link could go on there
            return before.isdigit() and after in (" ", ",", ".", ";")
    return False


def _format_code(text: str) -> str:
    """Return a name in code type, or escaped if it could break out of it."""
    line = format_plain_words(text, MAX_NAME)
    is_tame = bool(line) and all(char.isalnum() or char in _TAME for char in line)
    return f"`{line}`" if is_tame else _escape_line(line)


def _format_number(text: str) -> str:
    """Escape a number, except for its brackets: nothing after them makes them a link."""
    return _escape_markdown(text).replace("\\[", "[").replace("\\]", "]")


def render_markdown_phrase(phrase: doc.Phrase) -> str:
    """Return a phrase as one escaped line."""
    return "".join(map(_render_part, phrase))


def _render_part(part: doc.Part) -> str:
    match part:
        case str():
            return _escape_markdown(part)
        case doc.Name(text):
            return _format_code(text)
        case doc.Strong(inner):
            return f"**{render_markdown_phrase(inner)}**"
        case doc.Emphasis(inner):
            return f"*{render_markdown_phrase(inner)}*"
        case doc.Quantity():
            return _format_number(format_quantity(part))


def _iter_blocks(blocks: Sequence[doc.Block], *, has_figures: bool = True) -> Iterator[str]:
    for block in blocks:
        match block:
            case doc.Chart() if not has_figures:
                pass
            case doc.Paragraph(phrase):
                yield render_markdown_phrase(phrase)
            case doc.Bullets(items):
                yield "\n".join(f"- {render_markdown_phrase(item)}" for item in items)
            case doc.CodeBlock(lines):
                yield _render_code_block(lines)
            case doc.Heading(phrase):
                yield f"### {render_markdown_phrase(phrase)}"
            case doc.Table():
                yield render_markdown_table(block)
            case doc.Chart(figure):
                title = _escape_markdown(figure.title)
                caption = _escape_markdown(figure.caption)
                yield f"![{title}]({FIGURES}/{figure.name}.svg)\n\n*{caption}*"
            case doc.Details(_, inner):
                yield from _iter_blocks(inner, has_figures=has_figures)


def _render_code_block(lines: Sequence[str]) -> str:
    """Return lines in a fence that is longer than any run of backticks in them."""
    body = [format_plain_words(line, MAX_LOG_LINE) for line in lines]
    fence = "```"
    while any(fence in line for line in body):
        fence += "`"
    return "\n".join([f"{fence}text", *body, fence])


def render_markdown_table(table: doc.Table) -> str:
    """Return a table whose columns are aligned in the source, too."""
    titles, rows = format_cells_with_units(table, render_markdown_phrase, _format_number)
    header = [title or " " for title in titles]
    widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]

    def format_line(cells: Sequence[str]) -> str:
        padded = []
        for cell, width, column in zip(cells, widths, table.columns, strict=True):
            align = str.ljust if column.is_words else str.rjust
            padded.append(align(cell, width))
        return f"| {' | '.join(padded)} |"

    marks = []
    for width, column in zip(widths, table.columns, strict=True):
        end = "-" if column.is_words else ":"
        marks.append("-" * (width - 1) + end)
    return "\n".join(map(format_line, [header, marks, *rows]))
