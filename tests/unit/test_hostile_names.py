"""Names, errors and log lines that want to be markup, code or a command: they stay text, in every form there is."""

import csv
import io
import json
import re
import warnings
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from markdown_it import MarkdownIt
from rich.console import Console

from bitbench.api.results import format_study
from bitbench.features.kernels.computing import (
    KernelMachine,
    KernelRun,
    KernelTiming,
    summarize_kernels,
)
from bitbench.features.kernels.words import build_kernel_document
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.reports.charts.svg import render_svg
from bitbench.reports.document.html import render_html
from bitbench.reports.document.markdown import render_markdown
from bitbench.reports.document.terminal import render_in_terminal
from bitbench.reports.files import iter_figures
from bitbench.reports.formats import Form
from bitbench.reports.study import build_study_report
from bitbench.reports.write import StudyReport
from tests.support.hostile import HOSTILE, hostile_study


@pytest.fixture(scope="module", params=HOSTILE)
def hostile(request: pytest.FixtureRequest) -> StudyReport:
    summary, trials, instances, lock = hostile_study(HOSTILE[request.param])
    report = StudyReport(StudyFolder(Path("hostile")), Path("home"))
    report.records, report.summary = StudyRecords("hostile", lock, trials, instances), summary
    report.document = build_study_report(summary, lock)
    return report


class Elements(HTMLParser):
    """What a browser would make of it: elements with their attributes, outside of data that scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def harmless(made: Elements, *, scripts: int) -> None:
    assert made.tags.count("script") == scripts
    assert not {"img", "iframe", "object", "embed", "form", "base"} & set(made.tags)
    assert [name for name, _ in made.attributes if name.startswith("on")] == []
    links = [value for name, value in made.attributes if name in ("href", "src")]
    assert all(link.startswith(("#", "figures/")) for link in links), links


def printable(shown: str) -> None:
    """No control character, no mark that turns the direction of what follows."""
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]", shown)


def test_page(hostile: StudyReport) -> None:
    made = render_html(hostile.document, "0")
    figures = len(list(iter_figures(hostile.document)))
    assert figures >= 5
    harmless(
        Elements(made), scripts=figures + 3
    )  # their data; that of all; what the page does; the bundle
    printable(made)
    data = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', made, re.DOTALL)
    assert len([json.loads(one) for one in data]) == figures + 1
    assert (
        max(map(len, re.sub(r"<script.*?</script>", "", made, flags=re.DOTALL).splitlines()))
        < 12_000
    )


def test_markdown(hostile: StudyReport) -> None:
    made = render_markdown(hostile.document)
    rendered = str(MarkdownIt("commonmark").enable("table").render(made))
    pictures = len(re.findall(r'<img src="figures/', rendered))
    elements = Elements(rendered.replace('<img src="figures/', '<span title="figures/'))
    harmless(elements, scripts=0)
    assert pictures >= 5
    printable(made)
    assert rendered.count("<h2>") == made.count("\n## ")  # no heading was opened or swallowed
    for table in re.findall(r"<table>.*?</table>", rendered, re.DOTALL):
        rows = re.findall(r"<tr>.*?</tr>", table, re.DOTALL)
        assert len({len(re.findall(r"<t[hd]", row)) for row in rows}) == 1


def test_figures_as_files(hostile: StudyReport) -> None:
    for figure in list(iter_figures(hostile.document))[:3]:
        made = render_svg(figure)
        ElementTree.fromstring(made)
        harmless(Elements(made), scripts=0)
        printable(made)


@pytest.mark.parametrize("kind", HOSTILE)
def test_kernels(kind: str) -> None:
    """The table of kernels whose names, machine and errors are hostile; two cases have the same name."""
    name = HOSTILE[kind]
    shape = {"in_features": 64, "out_features": 64, "batch": 1, "weight_bytes": 8192}
    timings = [
        KernelTiming(case=case, **shape, error=0.0, seconds=(1e-5,) * 9)
        for case in (name, f"{name}\u200f")
    ]
    timings.append(KernelTiming(case=f"{name}?", **shape, error=None, cause=name))
    machine = {"device": "cpu", "read_bytes_per_s": 1e10, "flops_per_s": 1e12, "cold_bytes": 1,
               "seed": 0, "threads": 2}  # fmt: skip
    run = KernelRun(
        machine=KernelMachine(cpu_model=name, torch=name, isa=name, **machine),
        timings=tuple(timings),
    )
    summary = summarize_kernels(run, [name])
    table = render_markdown(build_kernel_document(summary))
    printable(table)
    harmless(Elements(str(MarkdownIt("commonmark").enable("table").render(table))), scripts=0)


def test_terminal(hostile: StudyReport) -> None:
    console = Console(file=io.StringIO(), width=100)
    render_in_terminal(hostile.document, console)
    assert isinstance(console.file, io.StringIO)
    made = console.file.getvalue()
    printable(made)
    assert max(map(len, made.splitlines())) <= 100


def looks_like_csv(made: str) -> None:
    rows = list(csv.reader(io.StringIO(made)))
    assert len(rows) > 10
    assert len({len(row) for row in rows}) == 1
    assert not [point for row in rows for point in row if point.startswith("=")]


def docutils_takes(made: str) -> None:
    """Without a warning, and as text: `raw` would be the way to HTML. (A heading may come twice.)"""
    settings = {
        "report_level": 2,
        "halt_level": 2,
        "file_insertion_enabled": False,
        "raw_enabled": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = publish_doctree(made, settings_overrides=settings)
    assert list(tree.findall(nodes.table)) != []
    assert list(tree.findall(nodes.reference)) == []
    assert list(tree.findall(nodes.image)) == []


CHECKS: dict[str, Callable[[str], object]] = {
    Form.CSV: looks_like_csv,
    "markdown-backends": lambda made: harmless(
        Elements(str(MarkdownIt("commonmark").render(made))), scripts=0
    ),
    "markdown-runs": lambda made: harmless(
        Elements(str(MarkdownIt("commonmark").render(made))), scripts=0
    ),
    "rst-by-length": docutils_takes,
}


@pytest.mark.parametrize("form", CHECKS)
def test_every_other_form(hostile: StudyReport, form: str) -> None:
    made = format_study(hostile, form)
    CHECKS[form](made)
    printable(made)


def test_json(hostile: StudyReport) -> None:
    """Control characters are escaped in it; the report that it holds has none to begin with."""
    content = json.loads(format_study(hostile, Form.JSON))
    assert not {"document"} & content.keys()
