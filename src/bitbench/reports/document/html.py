"""A document as one self-contained page with interactive charts.

No text of a study is ever HTML here: every string goes through `escape`. A content security policy
lets only the two scripts of this page run, by their hashes. Tables carry their numbers in
`data-sort`, so that the page sorts by values and not by text.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from itertools import count, groupby, starmap

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from bitbench.reports.document import model as doc
from bitbench.reports.document.numbers import (
    Scale,
    Written,
    choose_column_scales,
    format_quantity,
    write_quantity_in_column,
)
from bitbench.reports.document.palette import (
    CSS_COLOURS,
    DARK,
    LIGHT,
    format_css_colors,
    make_vega_config,
)
from bitbench.reports.document.words import (
    MAX_LOG_LINE,
    MAX_NAME,
    format_inline_words,
    format_plain_words,
)
from bitbench.study.base import Json
from bitbench.util.units import UNKNOWN

PROSE = 40  # characters from which a cell is a sentence and needs more width


_LOADER = PackageLoader("bitbench.reports.document")


def render_html(document: doc.Document, bundle: str) -> str:
    """Return the page. `bundle` is the script of `read_vega_bundle`."""
    environment = _make_environment()
    body = _Body(environment)
    sections = body.parts(document.sections)
    style = environment.get_template("page.css").render(
        light=format_css_colors(LIGHT), dark=format_css_colors(DARK)
    )
    behaviour = _LOADER.get_source(environment, "page.js")[0]
    return environment.get_template("page.html").render(
        title=format_plain_words(doc.format_plain_text(document.title)),
        heading=body.phrase(document.title),
        answer=body.blocks(document.answer),
        parts=[section for section in sections if not section.is_folded],
        folded=[section for section in sections if section.is_folded],
        facts=[(label, format_plain_words(value)) for label, value in document.facts],
        style=Markup(style),
        config=_format_script_json(make_vega_config(CSS_COLOURS)),
        behaviour=Markup(behaviour),
        bundle=Markup(bundle),
        policy=_format_policy(behaviour, bundle),
    )


def render_html_blocks(blocks: Sequence[doc.Block]) -> str:
    """Return blocks without charts as HTML for a page of others, such as a notebook."""
    return str(_Body(_make_environment()).blocks(blocks))


def render_html_frame(figure: doc.Figure) -> str:
    """Return a frame for a page of others, in which a page with only this chart draws it."""
    document = doc.Document((figure.title,), (doc.Chart(figure),))
    page = render_html(document, read_vega_bundle())
    frame = Markup(
        '<iframe srcdoc="{}" sandbox="allow-scripts allow-downloads" '
        'style="width: 100%; height: 30rem; border: 0"></iframe>'
    )
    return str(frame.format(page))


def _make_environment() -> Environment:
    return Environment(loader=_LOADER, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


@dataclass(frozen=True)
class _Part:
    """A section in the form that the template needs."""

    anchor: str
    title: Markup
    body: Markup
    is_folded: bool


class _Body:
    """A converter of blocks to HTML. It numbers the tables, to name them for screen readers."""

    def __init__(self, environment: Environment) -> None:
        self._chart = environment.get_template("chart.html")
        self._tables = count(1)

    def parts(self, sections: Sequence[doc.Section]) -> list[_Part]:
        """Return the sections with distinct anchors."""
        used = {"answer"}
        parts = []
        for section in sections:
            anchor = section.anchor
            number = 1
            while anchor in used:
                number += 1
                anchor = f"{section.anchor}-{number}"
            used.add(anchor)
            title = self.phrase(section.title)
            parts.append(_Part(anchor, title, self.blocks(section.blocks), section.is_folded))
        return parts

    def blocks(self, blocks: Sequence[doc.Block]) -> Markup:
        """Return blocks as HTML. Consecutive charts are next to each other on a wide page."""
        groups = []
        for are_charts, group in groupby(blocks, lambda block: isinstance(block, doc.Chart)):
            content = Markup("\n").join(map(self._block, group))
            if are_charts:
                content = Markup('<div class="charts">\n{}\n</div>').format(content)
            groups.append(content)
        return Markup("\n").join(groups)

    def _block(self, block: doc.Block) -> Markup:
        match block:
            case doc.Paragraph(phrase, is_small_print):
                kind = Markup(' class="small-print"') if is_small_print else ""
                return Markup("<p{}>{}</p>").format(kind, self.phrase(phrase))
            case doc.Bullets(items):
                lines = [Markup("<li>{}</li>").format(self.phrase(item)) for item in items]
                return Markup("<ul>\n{}\n</ul>").format(Markup("\n").join(lines))
            case doc.CodeBlock(lines):
                text = "\n".join(format_plain_words(line, MAX_LOG_LINE) for line in lines)
                return Markup('<pre tabindex="0"><code>{}</code></pre>').format(text)
            case doc.Heading(phrase):
                return Markup("<h3>{}</h3>").format(self.phrase(phrase))
            case doc.Table():
                return self._table(block)
            case doc.Chart(figure):
                data = _format_script_json(_convert_figure(figure))
                return Markup(self._chart.render(figure=figure, data=data))
            case doc.Details(title, inner):
                fold = Markup("<details><summary>{}</summary>\n{}\n</details>")
                return fold.format(format_plain_words(title), self.blocks(inner))

    def phrase(self, phrase: doc.Phrase) -> Markup:
        return Markup("").join(map(self._inline, phrase))

    def _inline(self, part: doc.Part) -> Markup:
        match part:
            case str():
                return escape(format_inline_words(part))
            case doc.Name(text):
                return Markup("<code>{}</code>").format(format_plain_words(text, MAX_NAME))
            case doc.Strong(inner):
                return Markup("<strong>{}</strong>").format(self.phrase(inner))
            case doc.Emphasis(inner):
                return Markup("<em>{}</em>").format(self.phrase(inner))
            case doc.Quantity():
                return escape(format_quantity(part))

    def _table(self, table: doc.Table) -> Markup:
        scales = choose_column_scales(table)
        heads = map(self._head, table.columns, scales)
        rows = [self._row(row, table.columns, scales) for row in table.rows]
        return Markup(
            '<div class="scroll" role="region" aria-label="Table {}" tabindex="0">'
            '<table class="names">\n'
            "<thead><tr>{}</tr></thead>\n<tbody>\n{}\n</tbody></table></div>"
        ).format(next(self._tables), Markup("").join(heads), Markup("\n").join(rows))

    def _head(self, column: doc.Column, scale: Scale) -> Markup:
        kind = Markup("") if column.is_words else Markup(' class="number"')
        unit = Markup(" ({})").format(scale.unit) if scale.unit else ""
        return Markup('<th scope="col"{}>{}{}</th>').format(kind, self.phrase(column.title), unit)

    def _row(self, row: doc.Row, columns: Sequence[doc.Column], scales: Sequence[Scale]) -> Markup:
        kind = Markup(' class="{}"').format(row.mark.value) if row.mark else ""
        cells = starmap(self._cell, zip(row.cells, columns, scales, strict=True))
        return Markup("<tr{}>{}</tr>").format(kind, Markup("").join(cells))

    def _cell(self, cell: doc.TableCell, column: doc.Column, scale: Scale) -> Markup:
        """Return a cell. `data-sort` holds a number in base units, and nothing if it is unknown."""
        number = "" if column.is_words else "number"
        match cell:
            case None:
                return Markup('<td class="{}" data-sort="">{}</td>').format(number, UNKNOWN)
            case doc.Quantity():
                key = "" if cell.value is None else cell.value
                text = _render_number(write_quantity_in_column(column, scale, cell))
                return Markup('<td class="{}" data-sort="{}">{}</td>').format(number, key, text)
            case _:
                words = "words" if len(doc.format_plain_text(cell)) >= PROSE else number
                return Markup('<td class="{}">{}</td>').format(words, self.phrase(cell))


def _render_number(number: Written) -> Markup:
    """Return a value, with an element for its interval."""
    limits = Markup("")
    if number.limits:
        limits = Markup('<span class="interval">{}</span>').format(number.limits)
    return Markup(" ").join(filter(None, (number.value, limits, number.unit, number.note)))


def _convert_figure(figure: doc.Figure) -> dict[str, Json]:
    """Return a chart with its rows as lists: names of fields would be half of a large page."""
    fields = list(dict.fromkeys(field for row in figure.rows for field in row))
    values = [list(map(row.get, fields)) for row in figure.rows]
    return {"name": figure.name, "spec": figure.spec, "fields": fields, "values": values}


def _format_script_json(content: Json) -> Markup:
    """Return JSON for a script element, which nothing in it can end."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False, sort_keys=True)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _format_policy(*scripts: str) -> str:
    """Return a content security policy: no network, no frames and no other script."""
    hashes = []
    for script in scripts:
        digest = b64encode(sha256(script.encode()).digest()).decode()
        hashes.append(f"'sha256-{digest}'")
    return (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; "
        "base-uri 'none'"
    )


def read_vega_bundle() -> str:
    """Return the script that draws charts in a page, about 900 kB."""
    return (files(__package__) / "templates" / "vega.js").read_text(encoding="utf-8")
