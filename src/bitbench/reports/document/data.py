"""A document as data: the same blocks, with numbers as numbers, for programs."""

from bitbench.reports.document import model as doc
from bitbench.reports.document.text import one_line
from bitbench.study.base import Json

DOCUMENT_FORMAT = 1  # 1: first published form


def document_data(document: doc.Document) -> dict[str, Json]:
    return {
        "format": DOCUMENT_FORMAT,
        "title": one_line(doc.plain_text(document.title)),
        "facts": {label: one_line(value) for label, value in document.facts},
        "answer": [_block(block) for block in document.answer],
        "sections": [_section(section) for section in document.sections],
    }


def _section(section: doc.Section) -> dict[str, Json]:
    return {
        "title": one_line(doc.plain_text(section.title)),
        "anchor": section.anchor,
        "blocks": [_block(block) for block in section.blocks],
    }


def _block(block: doc.Block) -> dict[str, Json]:
    match block:
        case doc.Paragraph(phrase):
            return {"kind": "paragraph", "text": _phrase(phrase)}
        case doc.Bullets(items):
            return {"kind": "bullets", "items": [_phrase(item) for item in items]}
        case doc.CodeBlock(lines):
            return {"kind": "code", "lines": [one_line(line) for line in lines]}
        case doc.Heading(phrase):
            return {"kind": "heading", "text": _phrase(phrase)}
        case doc.Table():
            return _table(block)
        case doc.Chart(figure):
            return {"kind": "chart", "name": figure.name, "title": one_line(figure.title), "rows": figure.rows}
        case doc.Details(title, blocks):
            return {"kind": "details", "title": one_line(title), "blocks": [_block(inner) for inner in blocks]}


def _table(table: doc.Table) -> dict[str, Json]:
    columns = [{"title": one_line(doc.plain_text(column.title)), "unit": column.unit} for column in table.columns]
    rows = [[_cell(cell) for cell in row.cells] for row in table.rows]
    return {"kind": "table", "columns": columns, "rows": rows}


def _cell(cell: doc.TableCell) -> Json:
    match cell:
        case None:
            return None
        case doc.Quantity():
            return _quantity(cell)
        case _:
            return _phrase(cell)


def _phrase(phrase: doc.Phrase) -> Json:
    """A string where it is nothing but words; else its parts, so that no number has to be read out of a sentence."""
    if all(not isinstance(part, doc.Quantity) for part in phrase):
        return one_line(doc.plain_text(phrase))
    return [_part(part) for part in phrase]


def _part(part: doc.Part) -> Json:
    match part:
        case str() | doc.Name() | doc.Link():
            return one_line(doc.plain_text((part,)))
        case doc.Strong(inner) | doc.Emphasis(inner):
            return _phrase(inner)
        case doc.Quantity():
            return _quantity(part)


def _quantity(quantity: doc.Quantity) -> dict[str, Json]:
    known = {"low": quantity.low, "high": quantity.high, "note": quantity.note or None}
    content = {"value": quantity.value, "unit": quantity.unit, **known}
    return {name: value for name, value in content.items() if value is not None or name == "value"}
