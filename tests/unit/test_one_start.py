"""One start of each config ranks nothing, in any form: the next start may differ as much as two configs do."""

import io
import json
import re

import pytest
from rich.console import Console

from bitbench.analysis.recommend import recommend
from bitbench.analysis.results.recommendation import Limits
from bitbench.analysis.results.summary import StudySummary
from bitbench.reports.answers.recommend import build_recommendation
from bitbench.reports.document.data import format_json
from bitbench.reports.document.html import render_html
from bitbench.reports.document.markdown import render_markdown
from bitbench.reports.document.model import Document
from bitbench.reports.document.terminal import render_in_terminal
from bitbench.reports.labels import CHOSEN
from bitbench.reports.study import build_study_report
from bitbench.study.study import Measure
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.support.synthetic import demo_study, make_plan, make_trial, speed_metrics, summarize

WORKLOAD = BUILT_IN_WORKLOADS["interactive"]
SPEEDS = {"base": 100.0, "quick": 150.0, "slow": 50.0}
NOISE = (0.98, 1.0, 1.02, 1.01, 0.99)  # of five trials
CLAIMS = re.compile(r"\b(faster|slower|Use|use this|tied with|is tied|are tied|tie)\b")


@pytest.fixture(scope="module")
def summary() -> StudySummary:
    plan = make_plan(
        list(SPEEDS),
        [WORKLOAD],
        Measure.model_validate({"starts": 1, "trials": 5}),
        baseline="base",
    )
    trials = [
        make_trial(
            point, 0, index, metrics=speed_metrics(WORKLOAD, SPEEDS[point.config.engine] * factor)
        )
        for point in plan.points
        for index, factor in enumerate(NOISE)
    ]
    return summarize(plan, trials, [])


@pytest.fixture(scope="module")
def report(summary: StudySummary) -> Document:
    return build_study_report(summary, demo_study()[3])


def printed(document: Document) -> str:
    console = Console(file=io.StringIO(), width=120)
    render_in_terminal(document, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def answers(text: str) -> str:
    """Without the section that defines what the words of a report mean."""
    return text.partition("How the figures are made")[0]


def test_page_and_terminal_show_means_and_claim_nothing(report: Document) -> None:
    for text in (
        printed(report),
        render_markdown(report),
        re.sub(r"<script.*?</script>", "", render_html(report, "")),
    ):
        assert not CLAIMS.search(answers(text))
        assert f"{CHOSEN} " not in answers(text)
        assert "± 2.4" in text
        assert "a decision needs 3 starts" in " ".join(text.split())


def test_json_has_no_rank(summary: StudySummary) -> None:
    (ranking,) = json.loads(format_json(summary, []))["summary"]["rankings"]
    assert ranking["starts_needed"] == 3
    assert ranking["possible_bests"] == []
    for entry in ranking["entries"]:
        assert (entry["rank_low"], entry["rank_high"], entry["undecided_with"]) == (None, None, [])
        assert entry["against_baseline"] in (None, "undecided")
    for point in summary.points:
        assert point.metrics["output_throughput"].basis is not None
        assert point.metrics["output_throughput"].interval is None


def test_recommend_chooses_none(summary: StudySummary) -> None:
    found = recommend(summary, Limits())
    assert [choice.chosen for choice in found.choices] == [None]
    assert not CLAIMS.search(printed(build_recommendation(found)))
