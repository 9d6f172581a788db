"""index.html: the same sections as one file that needs nothing else, with figures that answer to a pointer.

Nothing of a study's text is ever HTML here: Markdown is rendered with raw HTML switched off, the template escapes the
rest, and a content security policy lets only the two scripts of this page run, by their hashes.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from bitbench.core.base import Json
from bitbench.core.found.summary import StudySummary
from bitbench.ground.units import show_bytes
from bitbench.report.charts.figure import Figure
from bitbench.report.charts.style import CSS_COLOURS, DARK, LIGHT, config, css
from bitbench.report.document.text import plain
from bitbench.report.study import Records, Section

FILE_NAME = "index.html"
_INTERVAL = re.compile(r"(<td[^>]*>[^<\[\]]*?) (\[[^<\[\]]*\])(?=</td>)")
_PROSE = re.compile(r"<td>(?=[^<]{40})")  # a cell with a sentence in it
_HEADING = re.compile(r"<h2>(.*?)</h2>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")


@dataclass(frozen=True)
class _Part:
    """A section as the template wants it."""

    anchor: str
    title: Markup
    plain_title: str
    introduction: Markup
    body: Markup
    more: Markup  # what stands below the first table of a section with figures: for who wants to know more
    figures: tuple[Figure, ...]
    folded: bool


def write_page(summary: StudySummary, sections: Sequence[Section], records: Records, bundle: str, folder: Path) -> Path:
    """`bundle` is the script that draws figures (bundle.py)."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    path.write_text(page(summary, sections, records, bundle), encoding="utf-8", newline="\n")
    return path


def page(summary: StudySummary, sections: Sequence[Section], records: Records, bundle: str) -> str:
    environment = Environment(
        loader=PackageLoader("bitbench.report.document"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    first, *rest = sections
    used: set[str] = {"answer"}
    tables = count(1)  # each has a name of its own for who cannot see where it stands
    parts = [_part(section, used, tables) for section in rest]
    behaviour = _asset(environment, "page.js")
    return environment.get_template("page.html").render(
        title=plain(summary.study.name),
        opening=Markup(_html(first.text, tables)),
        parts=parts,
        facts=_facts(summary, records.lock),
        style=Markup(_style(environment)),
        config=_json(config(CSS_COLOURS)),
        packed=lambda figure: _json(_packed(figure)),
        behaviour=Markup(behaviour),
        bundle=Markup(bundle),
        policy=_policy(behaviour, bundle),
    )


def _part(section: Section, used: set[str], tables: Iterator[int]) -> _Part:
    rendered = _html(section.text, tables)
    found = _HEADING.search(rendered)
    title = found.group(1) if found else ""
    body = rendered[found.end() :] if found else rendered
    introduction, rest = _split(body, "</p>") if section.figures else ("", body)
    table, more = _split(rest, "</table></div>") if section.figures else (rest, "")
    plain_title = Markup(_TAG.sub("", title)).unescape()
    return _Part(
        anchor=_anchor(plain_title, used),
        title=Markup(title),
        plain_title=plain_title,
        introduction=Markup(introduction),
        body=Markup(table),
        more=Markup(more.strip()),
        figures=section.figures,
        folded=section.folded,
    )


def _html(text: str, tables: Iterator[int]) -> str:
    """Raw HTML in the text stays text; links are checked by the renderer; tables can be scrolled, and by keyboard."""
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    rendered = str(renderer.render(text))
    rendered = _INTERVAL.sub(r'\1 <span class="interval">\2</span>', rendered)
    rendered = _PROSE.sub('<td class="words">', rendered)
    opening = '<div class="scroll" role="region" aria-label="Table {}" tabindex="0"><table>'
    rendered = re.sub("<table>", lambda _: opening.format(next(tables)), rendered)
    return rendered.replace("</table>", "</table></div>").replace("<pre>", '<pre tabindex="0">')


def _split(body: str, mark: str) -> tuple[str, str]:
    """Up to and with the first mark; all of it is the second part where there is none."""
    head, found, rest = body.partition(mark)
    return (head + found, rest) if found else ("", body)


def _anchor(title: str, used: set[str]) -> str:
    """As Markdown renderers make them, so that links inside the text reach their headings; each only once."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "section"
    numbered = (f"{slug}-{number}" for number in range(2, len(used) + 3))
    anchor = slug if slug not in used else next(one for one in numbered if one not in used)
    used.add(anchor)
    return anchor


def _facts(summary: StudySummary, lock: Mapping[str, Json]) -> list[tuple[str, str]]:
    """What a reader wants to know before the first figure: how much was measured, on what, when."""
    host = lock.get("host") or {}
    machine = [host.get("cpu_model"), host.get("cores") and f"{host['cores']} cores"]
    machine += [show_bytes(host["memory_bytes"])] if host.get("memory_bytes") else []
    machine += [str(one.get("name")) for one in host.get("accelerators") or ()]
    trials = sum(len(cell.runs) for cell in summary.cells)
    rows = [
        ("Cells", f"{len(summary.cells):,}"),
        ("Trials", f"{trials:,}"),
        ("Machine", ", ".join(str(fact) for fact in machine if fact)),
        ("Measured", str(lock.get("created_at") or "")[:10]),
        ("bitbench", str(lock.get("bitbench") or "")),
    ]
    return [(label, plain(value)) for label, value in rows if value]


def _packed(figure: Figure) -> dict[str, Json]:
    """Rows as lists: names of fields would be half of a large page."""
    fields = list(dict.fromkeys(field for row in figure.rows for field in row))
    return {
        "name": figure.name,
        "spec": figure.spec,
        "narrow": figure.narrow,
        "fields": fields,
        "values": [[row.get(field) for field in fields] for row in figure.rows],
    }


def _json(content: Json) -> Markup:
    """For a script element: nothing in it can end the element."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _style(environment: Environment) -> str:
    template = environment.get_template("page.css")
    return template.render(light=css(LIGHT), dark=css(DARK))


def _asset(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _policy(*scripts: str) -> str:
    """No network, no frames, no other script: the page holds everything, and what names hold stays text."""
    hashes = " ".join(f"'sha256-{b64encode(sha256(one.encode()).digest()).decode()}'" for one in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
