"""A document as Markdown, readable before it is rendered; its charts, if drawn, are files beside it."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from bitbench.reports.document import model as doc
from bitbench.reports.document.numbers import cells_with_units, shown
from bitbench.reports.document.words import MAX_LOG_LINE, MAX_NAME, inline_words, plain_words

FIGURES = "figures"  # the folder of its charts, beside it
_ESCAPED = str.maketrans(
    {char: f"\\{char}" for char in "\\`*_[]|~#"} | {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
)
_TAME = frozenset(
    " .@/+:·=,()…-_"
)  # beside letters and digits: nothing that ends a code span or a table cell


def markdown(document: doc.Document, *, has_figures: bool = True) -> str:
    """Return the whole document; without figures nothing stands for its charts."""
    parts = [
        f"# {markdown_phrase(document.title)}",
        *_blocks(document.answer, has_figures=has_figures),
    ]
    for section in document.sections:
        parts += markdown_section_parts(section, has_figures=has_figures)
    return "\n\n".join(parts) + "\n"


def markdown_section_parts(section: doc.Section, *, has_figures: bool = True) -> list[str]:
    title = f"## {markdown_phrase(section.title)}"
    return [title, *_blocks(section.blocks, has_figures=has_figures)]


def _escape_markdown(text: str) -> str:
    """As it is, to a reader of the rendered page."""
    return _escaped(inline_words(text))


def _escaped(line: str) -> str:
    """What means nothing where it stands stays readable in the source: a `_` inside a word, brackets around numbers."""
    return "".join(
        char
        if _is_harmless(char, line[place - 1 : place], line[place + 1 : place + 2])
        else char.translate(_ESCAPED)
        for place, char in enumerate(line)
    )


def _is_harmless(char: str, before: str, after: str) -> bool:
    match char:
        case "_":
            return before.isalnum() and after.isalnum()
        case "[":
            return after.isdigit() or after in ("-", "+")
        case "]":
            return before.isdigit() and after in (
                " ",
                ",",
                ".",
                ";",
            )  # not at the end: a link could go on there
    return False


def _markdown_code(text: str) -> str:
    """A name in code type, or escaped where it could break out of it."""
    line = plain_words(text, MAX_NAME)
    is_tame = bool(line) and all(char.isalnum() or char in _TAME for char in line)
    return f"`{line}`" if is_tame else _escaped(line)


def _number(text: str) -> str:
    """Its brackets stay readable in the source: nothing follows them that would make them a link."""
    return _escape_markdown(text).replace("\\[", "[").replace("\\]", "]")


def markdown_phrase(phrase: doc.Phrase) -> str:
    return "".join(_part(part) for part in phrase)


def _part(part: doc.Part) -> str:
    match part:
        case str():
            return _escape_markdown(part)
        case doc.Name(text):
            return _markdown_code(text)
        case doc.Strong(inner):
            return f"**{markdown_phrase(inner)}**"
        case doc.Emphasis(inner):
            return f"*{markdown_phrase(inner)}*"
        case doc.Quantity():
            return _number(shown(part))


def _blocks(blocks: Sequence[doc.Block], *, has_figures: bool = True) -> Iterator[str]:
    for block in blocks:
        match block:
            case doc.Chart() if not has_figures:
                pass
            case doc.Paragraph(phrase):
                yield markdown_phrase(phrase)
            case doc.Bullets(items):
                yield "\n".join(f"- {markdown_phrase(item)}" for item in items)
            case doc.CodeBlock(lines):
                yield _code_block(lines)
            case doc.Heading(phrase):
                yield f"### {markdown_phrase(phrase)}"
            case doc.Table():
                yield markdown_table(block)
            case doc.Chart(figure):
                title, caption = _escape_markdown(figure.title), _escape_markdown(figure.caption)
                yield f"![{title}]({FIGURES}/{figure.name}.svg)\n\n*{caption}*"
            case doc.Details(_, inner):
                yield from _blocks(inner, has_figures=has_figures)


def _code_block(lines: Sequence[str]) -> str:
    body = [plain_words(line, MAX_LOG_LINE) for line in lines]
    runs = (list(run) for line in body for char, run in groupby(line) if char == "`")
    longest = max(map(len, runs), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *body, fence])


def markdown_table(table: doc.Table) -> str:
    titles, rows = cells_with_units(table, markdown_phrase, _number)
    header = [title or " " for title in titles]
    widths = [max(len(line[place]) for line in (header, *rows)) for place in range(len(header))]
    marks = [
        "-" * width if column.is_words else "-" * (width - 1) + ":"
        for width, column in zip(widths, table.columns, strict=True)
    ]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if column.is_words else cell.rjust(width)
            for cell, width, column in zip(cells, widths, table.columns, strict=True)
        ]
        return f"| {' | '.join(padded)} |"

    return "\n".join([line(header), line(marks), *(line(row) for row in rows)])
