"""A document as data: the same blocks, with numbers as numbers, for programs."""

from bitbench.core.base import Json
from bitbench.report.document.model import (
    Block,
    Bullets,
    Chart,
    CodeBlock,
    Details,
    Document,
    Emphasis,
    Heading,
    Link,
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
from bitbench.report.document.text import visible

DOCUMENT_FORMAT = 1  # 1: first published form


def document_data(document: Document) -> dict[str, Json]:
    return {
        "format": DOCUMENT_FORMAT,
        "title": visible(plain_text(document.title)),
        "facts": {label: visible(value) for label, value in document.facts},
        "answer": [_block(block) for block in document.answer],
        "sections": [_section(section) for section in document.sections],
    }


def _section(section: Section) -> dict[str, Json]:
    return {
        "title": visible(plain_text(section.title)),
        "anchor": section.anchor,
        "blocks": [_block(block) for block in section.blocks],
    }


def _block(block: Block) -> dict[str, Json]:
    match block:
        case Paragraph(phrase):
            return {"kind": "paragraph", "text": _phrase(phrase)}
        case Bullets(items):
            return {"kind": "bullets", "items": [_phrase(item) for item in items]}
        case CodeBlock(lines):
            return {"kind": "code", "lines": [visible(line) for line in lines]}
        case Heading(phrase):
            return {"kind": "heading", "text": _phrase(phrase)}
        case Table():
            return _table(block)
        case Chart(figure):
            return {"kind": "chart", "name": figure.name, "title": visible(figure.title), "rows": figure.rows}
        case Details(title, blocks):
            return {"kind": "details", "title": visible(title), "blocks": [_block(inner) for inner in blocks]}


def _table(table: Table) -> dict[str, Json]:
    columns = [{"title": visible(plain_text(column.title)), "unit": column.unit} for column in table.columns]
    rows = [[_cell(cell) for cell in row.cells] for row in table.rows]
    return {"kind": "table", "columns": columns, "rows": rows}


def _cell(cell: TableCell) -> Json:
    match cell:
        case None:
            return None
        case Quantity():
            return _quantity(cell)
        case _:
            return _phrase(cell)


def _phrase(phrase: Phrase) -> Json:
    """A string where it is nothing but words; else its parts, so that no number has to be read out of a sentence."""
    if all(not isinstance(part, Quantity) for part in phrase):
        return visible(plain_text(phrase))
    return [_part(part) for part in phrase]


def _part(part: Part) -> Json:
    match part:
        case str() | Name() | Link():
            return visible(plain_text((part,)))
        case Strong(inner) | Emphasis(inner):
            return _phrase(inner)
        case Quantity():
            return _quantity(part)


def _quantity(quantity: Quantity) -> dict[str, Json]:
    known = {"low": quantity.low, "high": quantity.high, "note": quantity.note or None}
    content = {"value": quantity.value, "unit": quantity.unit, **known}
    return {name: value for name, value in content.items() if value is not None or name == "value"}
