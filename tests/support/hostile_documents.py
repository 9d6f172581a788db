"""Documents in which every name and reason is hostile, and what must hold of each form of them."""

import io
import json
from typing import TypeVar

from markdown_it import MarkdownIt
from rich.console import Console

from bitbench.reports.document.markdown import render_markdown
from bitbench.reports.document.model import Document
from bitbench.reports.document.terminal import render_in_terminal, render_whole_in_terminal
from bitbench.study.base import Json, Record
from tests.unit.test_hostile_names import Elements, harmless, printable

# Fields whose words are not ours: names from studies, what engines and files say.
FOREIGN = frozenset(
    {
        "variant",
        "engine",
        "workload",
        "study",
        "baseline",
        "candidate",
        "folder",
        "subject",
        "before",
        "after",
        "file",
    }
    | {
        "ids",
        "kernels",
        "notes",
        "detail",
        "reason",
        "why_no_result",
        "condition",
        "known_beforehand",
        "without_result",
    }
)
R = TypeVar("R", bound=Record)


def made_hostile(record: R, name: str) -> R:
    """The same with `name` before every foreign word: what was distinct stays so."""

    def walk(value: Json, key: str) -> Json:
        if isinstance(value, dict):
            return {field: walk(inner, field) for field, inner in value.items()}
        if isinstance(value, list):
            return [walk(inner, key) for inner in value]
        return f"{name}{value}" if isinstance(value, str) and key in FOREIGN else value

    return type(record).model_validate(walk(json.loads(record.model_dump_json()), ""))


def assert_every_form_is_harmless(document: Document) -> None:
    text = render_markdown(document)
    rendered = str(MarkdownIt("commonmark").enable("table").render(text))
    harmless(Elements(rendered.replace('<img src="figures/', '<span title="figures/')), scripts=0)
    assert rendered.count("<h2>") == len(document.sections)  # no heading was opened or swallowed
    printable(text)
    for show in (render_in_terminal, render_whole_in_terminal):
        console = Console(file=io.StringIO(), width=100)
        show(document, console)
        assert isinstance(console.file, io.StringIO)
        printable(console.file.getvalue())
        assert max(map(len, console.file.getvalue().splitlines())) <= 100
