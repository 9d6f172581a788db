"""index.html: everything inside, nothing from outside, and only our own scripts may run."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

import pytest

from bitbench.analysis.results.summary import StudySummary
from bitbench.reports.document.html import read_vega_bundle, render_html
from bitbench.reports.study import build_study_report
from tests.support.synthetic import demo_study, summarize

BUNDLE = "window.vegaEmbed = 1; // stands in for the real one"


@pytest.fixture(scope="module")
def demo() -> StudySummary:
    plan, trials, instances, _ = demo_study()
    return summarize(plan, trials, instances)


@pytest.fixture(scope="module")
def text(demo: StudySummary) -> str:
    _, _, _, lock = demo_study()
    return render_html(build_study_report(demo, lock), BUNDLE)


class Outline(HTMLParser):
    """Ids, links, scripts, and whatever would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.handlers: list[str] = []
        self._kind: str | None = None
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.handlers += [name for name in given if name.startswith("on")]
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag == "a":
            self.links.append(str(given.get("href")))
        if given.get("src") or (tag == "link" and given.get("href")):
            self.fetched.append(tag)
        if tag == "script":
            self._inside, self._kind = True, given.get("type")
            self.scripts.append((self._kind, ""))

    def handle_data(self, data: str) -> None:
        if self._inside:
            kind, before = self.scripts[-1]
            self.scripts[-1] = (kind, before + data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._inside = False


def test_the_answer_comes_first_and_every_link_leads_somewhere(text: str) -> None:
    outline = Outline(text)
    assert (
        text.index("<strong>Use <code>quick</code>.</strong>")
        < text.index("figure-answer-ratios")
        < text.index("Results</h2>")
        < text.index("Details <button")
    )
    assert len(outline.ids) == len(set(outline.ids))
    assert {link.removeprefix("#") for link in outline.links} <= set(outline.ids)
    for wanted in (
        "what-failed-and-why",
        "starts",
        "where-it-was-measured",
        "how-the-figures-are-made",
    ):
        assert wanted in outline.ids


def test_nothing_is_fetched_and_only_hashed_scripts_run(text: str) -> None:
    outline = Outline(text)
    assert outline.fetched == []
    assert outline.handlers == []
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    allowed = policy.group(1).replace("&#39;", "'")
    assert allowed.startswith("default-src 'none'")
    assert "unsafe-eval" not in allowed
    run = [script for kind, script in outline.scripts if kind == "module"]
    assert len(run) == 2
    for script in run:
        assert f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in allowed


def test_figures_carry_their_rows(demo: StudySummary, text: str) -> None:
    data = [
        json.loads(script) for kind, script in Outline(text).scripts if kind == "application/json"
    ]
    figures = {one["name"]: one for one in data if "name" in one}
    ratios = figures["answer-ratios"]
    config, workload = (ratios["fields"].index(field) for field in ("config", "workload"))
    shown = {(row[config], row[workload]) for row in ratios["values"]}
    ranked = {
        (entry.config.engine, ranking.workload)
        for ranking in demo.rankings
        for entry in ranking.entries
    }
    assert {(str(name).split()[-1], where) for name, where in shown} == ranked


def test_intervals_are_set_apart_and_points_carry_their_numbers(text: str) -> None:
    assert re.search(
        r'<td class="number" data-sort="[\d.]+">[\d.,]+ ± [\d.,]+ '
        r'<span class="interval">\[[\d.,]+, [\d.,]+\]</span></td>',
        text,
    )


def test_the_column_of_names_stays_in_sight(text: str) -> None:
    tables = re.findall(r'<table class="names">\s*<thead><tr>(.*?)</tr>', text)
    titles = [re.findall(r"<th[^>]*>(.*?)</th>", heads)[0] for heads in tables]
    assert "Config" in titles
    assert "Rank" not in titles


def test_the_script_that_draws_cannot_end_its_element() -> None:
    made = read_vega_bundle()
    assert "vegaEmbed" in made
    assert "</script" not in made
    assert "\r" not in made
