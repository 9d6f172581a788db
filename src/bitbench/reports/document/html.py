"""A document as one page that needs nothing else, with charts that answer to a pointer.

Nothing of a study's text is ever HTML here: every string goes through `escape`, and a content security policy lets
only the two scripts of this page run, by their hashes. Tables carry their numbers in `data-sort`, so that the page
sorts by values and not by what they look like.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from itertools import count, groupby

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from bitbench.reports.document import model as doc
from bitbench.reports.document.numbers import (
    Scale,
    Written,
    column_quantity_scales,
    shown,
    written_quantity_in_column,
)
from bitbench.reports.document.palette import (
    CSS_COLOURS,
    DARK,
    LIGHT,
    figure_colours_css,
    figure_config,
)
from bitbench.reports.document.words import MAX_LOG_LINE, MAX_NAME, inline_words, plain_words
from bitbench.study.base import Json
from bitbench.util.units import UNKNOWN

PROSE = 40  # characters from which a cell is a sentence and needs room


def html_page(document: doc.Document, bundle: str) -> str:
    """Return the page. `bundle`: see `vega_bundle`."""
    loader = PackageLoader("bitbench.reports.document")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    body = _Body(environment)
    parts = body.parts(document.sections)
    behaviour = loader.get_source(environment, "page.js")[0]
    return environment.get_template("page.html").render(
        title=plain_words(doc.plain_text(document.title)),
        heading=body.phrase(document.title),
        answer=body.blocks(document.answer),
        parts=[part for part in parts if not part.is_folded],
        folded=[part for part in parts if part.is_folded],
        facts=[(label, plain_words(value)) for label, value in document.facts],
        style=Markup(
            environment.get_template("page.css").render(
                light=figure_colours_css(LIGHT), dark=figure_colours_css(DARK)
            )
        ),
        config=_script_json(figure_config(CSS_COLOURS)),
        behaviour=Markup(behaviour),
        bundle=Markup(bundle),
        policy=_policy(behaviour, bundle),
    )


@dataclass(frozen=True)
class _Part:
    """A section as the template wants it."""

    anchor: str
    title: Markup
    body: Markup
    is_folded: bool


class _Body:
    """Blocks as HTML. Tables are numbered, as each needs a name for readers who cannot see where it stands."""

    def __init__(self, environment: Environment) -> None:
        self._chart = environment.get_template("chart.html")
        self._tables = count(1)

    def parts(self, sections: Sequence[doc.Section]) -> list[_Part]:
        used, parts = {"answer"}, []
        for section in sections:
            numbered = (f"{section.anchor}-{number}" for number in count(2))
            anchor = (
                section.anchor
                if section.anchor not in used
                else next(free for free in numbered if free not in used)
            )
            used.add(anchor)
            parts.append(
                _Part(
                    anchor,
                    self.phrase(section.title),
                    self.blocks(section.blocks),
                    section.is_folded,
                )
            )
        return parts

    def blocks(self, blocks: Sequence[doc.Block]) -> Markup:
        """Charts that follow each other stand beside each other, where there is room."""
        made = []
        for are_charts, group in groupby(blocks, lambda block: isinstance(block, doc.Chart)):
            inner = Markup("\n").join(self._block(block) for block in group)
            made.append(
                Markup('<div class="charts">\n{}\n</div>').format(inner) if are_charts else inner
            )
        return Markup("\n").join(made)

    def _block(self, block: doc.Block) -> Markup:
        match block:
            case doc.Paragraph(phrase, is_small_print):
                kind = Markup(' class="small-print"') if is_small_print else ""
                return Markup("<p{}>{}</p>").format(kind, self.phrase(phrase))
            case doc.Bullets(items):
                lines = Markup("\n").join(
                    Markup("<li>{}</li>").format(self.phrase(item)) for item in items
                )
                return Markup("<ul>\n{}\n</ul>").format(lines)
            case doc.CodeBlock(lines):
                text = "\n".join(plain_words(line, MAX_LOG_LINE) for line in lines)
                return Markup('<pre tabindex="0"><code>{}</code></pre>').format(text)
            case doc.Heading(phrase):
                return Markup("<h3>{}</h3>").format(self.phrase(phrase))
            case doc.Table():
                return self._table(block)
            case doc.Chart(figure):
                return Markup(self._chart.render(figure=figure, data=_script_json(_packed(figure))))
            case doc.Details(title, inner):
                fold = Markup("<details><summary>{}</summary>\n{}\n</details>")
                return fold.format(plain_words(title), self.blocks(inner))

    def phrase(self, phrase: doc.Phrase) -> Markup:
        return Markup("").join(self._inline(part) for part in phrase)

    def _inline(self, part: doc.Part) -> Markup:
        match part:
            case str():
                return escape(inline_words(part))
            case doc.Name(text):
                return Markup("<code>{}</code>").format(plain_words(text, MAX_NAME))
            case doc.Strong(inner):
                return Markup("<strong>{}</strong>").format(self.phrase(inner))
            case doc.Emphasis(inner):
                return Markup("<em>{}</em>").format(self.phrase(inner))
            case doc.Quantity():
                return escape(shown(part))

    def _table(self, table: doc.Table) -> Markup:
        scales = column_quantity_scales(table)
        heads = Markup("").join(
            self._head(*pair) for pair in zip(table.columns, scales, strict=True)
        )
        rows = Markup("\n").join(self._row(row, table.columns, scales) for row in table.rows)
        return Markup(
            '<div class="scroll" role="region" aria-label="Table {}" tabindex="0"><table class="names">\n'
            "<thead><tr>{}</tr></thead>\n<tbody>\n{}\n</tbody></table></div>"
        ).format(next(self._tables), heads, rows)

    def _head(self, column: doc.Column, scale: Scale) -> Markup:
        kind = Markup("") if column.is_words else Markup(' class="number"')
        unit = Markup(" ({})").format(scale.unit) if scale.unit else ""
        return Markup('<th scope="col"{}>{}{}</th>').format(kind, self.phrase(column.title), unit)

    def _row(self, row: doc.Row, columns: Sequence[doc.Column], scales: Sequence[Scale]) -> Markup:
        kind = Markup(' class="{}"').format(row.mark.value) if row.mark else ""
        cells = Markup("").join(
            self._cell(*cell) for cell in zip(row.cells, columns, scales, strict=True)
        )
        return Markup("<tr{}>{}</tr>").format(kind, cells)

    def _cell(self, cell: doc.TableCell, column: doc.Column, scale: Scale) -> Markup:
        """`data-sort` holds the number in base units; text is sorted as it stands, and what is unknown stays last."""
        number = "" if column.is_words else "number"
        match cell:
            case None:
                return Markup('<td class="{}" data-sort="">{}</td>').format(number, UNKNOWN)
            case doc.Quantity():
                key = "" if cell.value is None else cell.value
                text = _figure(written_quantity_in_column(column, scale, cell))
                return Markup('<td class="{}" data-sort="{}">{}</td>').format(number, key, text)
            case _:
                words = "words" if len(doc.plain_text(cell)) >= PROSE else number
                return Markup('<td class="{}">{}</td>').format(words, self.phrase(cell))


def _figure(number: Written) -> Markup:
    """A value with its interval set apart."""
    limits = (
        Markup('<span class="interval">{}</span>').format(number.limits) if number.limits else ""
    )
    return Markup(" ").join(
        part for part in (number.value, limits, number.unit, number.note) if part
    )


def _packed(figure: doc.Figure) -> dict[str, Json]:
    """Rows as lists: names of fields would be half of a large page."""
    fields = list(dict.fromkeys(field for row in figure.rows for field in row))
    return {
        "name": figure.name,
        "spec": figure.spec,
        "fields": fields,
        "values": [[row.get(field) for field in fields] for row in figure.rows],
    }


def _script_json(content: Json) -> Markup:
    """For a script element: nothing in it can end the element."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False, sort_keys=True)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _policy(*scripts: str) -> str:
    """No network, no frames, no other script: the page holds everything, and what names hold stays text."""
    hashes = " ".join(
        f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; base-uri 'none'"


def vega_bundle() -> str:
    """Return the script that draws charts in a page, about 900 kB."""
    return (files(__package__) / "templates" / "vega.js").read_text(encoding="utf-8")
