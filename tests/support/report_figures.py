"""The figures of a report, read back from what was written: by section, row and column, in base units.

No renderer reads text; a test may, since its question is whether the texts say what the document holds.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser

from bitbench.reports.document.model import (
    Block,
    Details,
    Document,
    Emphasis,
    Name,
    Phrase,
    Quantity,
    Row,
    Strong,
    Table,
    TableCell,
    format_plain_text,
)

FACTORS = {
    "ns": 1e-9,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "B": 1.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
}
FACTORS["%"] = 0.01
UNIT = r"(?:ns|µs|ms|s|B|KiB|MiB|GiB|%)"
NUMBER = re.compile(rf"(?<![\w.])([-+]?)(\d[\d,]*(?:\.\d+)?)(?:\s?({UNIT})(?!\w))?")
ONLY_A_FIGURE = re.compile(rf"[-+\d.,\s\[\]()–×∞±]+?\s?({UNIT})")
OF_A_COLUMN = re.compile(rf"(.*?) \(({UNIT}|[^()]+)\)")
WORDS = "How the figures are made"  # definitions: their digits are no figures

Key = tuple[str, str, str]  # section, names of the row, column
Points = dict[Key, list[str]]  # in order, where a key occurs more than once


@dataclass(frozen=True)
class Number:
    """`step`: what one more in its last digit is worth; 0: was not rounded. Without its unit it may be of any."""

    value: float
    step: float = 0.0
    has_unit: bool = True

    def is_like(self, other: "Number") -> bool:
        """Equal, as far as the digits of both say."""
        return any(
            abs(self.value * scale - other.value)
            <= 0.501 * (self.step * scale + other.step) + 1e-9 * abs(other.value)
            for scale in ([1.0] if self.has_unit else [1.0, *FACTORS.values()])
        )


def numbers_in(text: str) -> list[Number]:
    """In base units; names in code type are no figures."""
    text = re.sub(r"`[^`]*`", "", text).strip()
    whole = ONLY_A_FIGURE.fullmatch(text)
    return [_number(found, whole.group(1) if whole else None) for found in NUMBER.finditer(text)]


def _number(found: re.Match[str], of_point: str | None) -> Number:
    sign, digits, unit = found.groups()
    factor = FACTORS.get(unit or of_point or "", 1.0)
    decimals = len(digits.partition(".")[2])
    value = float(sign + digits.replace(",", ""))
    return Number(value * factor, 10.0**-decimals * factor, bool(unit or of_point))


def numbers_of(point: TableCell) -> list[Number]:
    match point:
        case None:
            return []
        case Quantity(value, sd=sd, low=low, high=high, note=note):
            return [
                Number(known) for known in (value, sd, low, high) if known is not None
            ] + numbers_in(note)
        case _:
            return [number for part in point for number in _numbers_of_part(part)]


def _numbers_of_part(part: object) -> list[Number]:
    match part:
        case str():
            return numbers_in(part)
        case Strong(phrase) | Emphasis(phrase):
            return numbers_of(phrase)
        case Quantity():
            return numbers_of(part)
        case _:
            return []


# --- of the document itself ---


def tables_of(document: Document) -> Iterator[tuple[str, Table]]:
    """With the title of their section; empty for the answer."""
    yield from (("", table) for table in _tables(document.answer))
    for section in document.sections:
        yield from ((format_plain_text(section.title), table) for table in _tables(section.blocks))


def _tables(blocks: Iterable[Block]) -> Iterator[Table]:
    for block in blocks:
        match block:
            case Table():
                yield block
            case Details(_, inner):
                yield from _tables(inner)


def document_points(document: Document) -> dict[Key, list[TableCell]]:
    found: dict[Key, list[TableCell]] = {}
    for section, table in tables_of(document):
        for row in table.rows if section != WORDS else ():
            for column, point in zip(table.columns, row.cells, strict=True):
                if numbers_of(point):
                    found.setdefault(
                        (section, row_names(row), format_plain_text(column.title)), []
                    ).append(point)
    return found


def row_names(row: Row) -> str:
    names = [part.text for point in row.cells if isinstance(point, tuple) for part in _names(point)]
    return ", ".join(names) or _first(row.cells[0])


def _names(phrase: Phrase) -> Iterator[Name]:
    for part in phrase:
        match part:
            case Name():
                yield part
            case Strong(inner) | Emphasis(inner):
                yield from _names(inner)


def _first(point: TableCell) -> str:
    match point:
        case Quantity(value):
            return f"{value:g}"
        case None:
            return ""
        case _:
            return format_plain_text(point)


# --- of what was written ---


def points_of_tables(tables: Iterable[tuple[str, Sequence[Sequence[str]]]]) -> Points:
    """Of tables with the titles of their sections. Names are in backticks; a column's unit is put into its points."""
    found: Points = {}
    for section, (header, *rows) in tables:
        columns = [_column(title) for title in header]
        for row in rows if section != WORDS else ():
            names = ", ".join(
                name for point in row for name in re.findall(r"`([^`]*)`", point)
            ) or _plain(row[0])
            of_row = next(
                (found_unit for point in row if (found_unit := _column(point)[1]) in FACTORS), ""
            )
            for (title, unit), point in zip(columns, row, strict=True):
                if numbers_in(point):
                    found.setdefault((section, names, title), []).append(
                        _with_unit(point, unit or of_row)
                    )
    return found


def _column(title: str) -> tuple[str, str]:
    title = title.replace("`", "")
    parts = OF_A_COLUMN.fullmatch(title)
    return (parts.group(1), parts.group(2)) if parts else (title, "")


def _with_unit(point: str, unit: str) -> str:
    has_own = any(number.has_unit for number in numbers_in(point))
    return point if has_own or unit not in FACTORS else f"{point} {unit}"


def _plain(text: str) -> str:
    return f"{float(text.replace(',', '')):g}" if re.fullmatch(r"[\d.,]+", text) else text


def markdown_tables(text: str) -> Iterator[tuple[str, list[list[str]]]]:
    section, table = "", list[list[str]]()
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            table.append([_unescaped(point) for point in re.split(r"(?<!\\)\|", line)[1:-1]])
            continue
        if table:
            yield section, [table[0], *table[2:]]
            table = []
        if line.startswith("## "):
            section = _unescaped(line[3:]).replace("`", "")


def _unescaped(point: str) -> str:
    return re.sub(r"\\(.)", r"\1", point).replace("*", "").strip()


class PageTables(HTMLParser):
    """Tables of a page, in the form of those of Markdown."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: list[tuple[str, list[list[str]]]] = []
        self._section = ""
        self._title = "h2"  # h3, in its summary, of what is folded
        self._within: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._within.append(tag)
        if tag == "h2" or (tag == "details" and ("class", "fold") in attrs):
            self._section, self._title = "", "h2" if tag == "h2" else "h3"
        elif tag == "table":
            self.tables.append((self._section, []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._within and self._within.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._title in self._within and (self._title == "h2" or "summary" in self._within):
            self._section += data
        elif {"td", "th"} & {*self._within}:
            self.tables[-1][1][-1][-1] += f"`{data}`" if "code" in self._within else data


def terminal_rows(text: str) -> list[list[str]]:
    """Lines of tables: what stands two spaces apart is a point."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return [points for points in lines if len(points) > 2 and any(map(numbers_in, points))]
