"""What a report says of slow requests: pooled over all trials, by its name only where there are enough."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bitbench.analysis.results.summary import StudySummary
from bitbench.api.results import Results
from bitbench.records.folder import StudyFolder
from bitbench.reports.document.data import format_json
from bitbench.reports.document.markdown import render_markdown
from bitbench.reports.document.terminal import render_in_terminal
from bitbench.reports.study import build_study_report
from bitbench.study.workload import Workload
from tests.support.synthetic import make_lock, make_plan
from tests.unit.test_recommend_tails import BATCH, LOOP, even, study


def page(summary: StudySummary, workload: Workload = LOOP) -> str:
    return render_markdown(
        build_study_report(summary, make_lock(make_plan(["engine"], [workload])))
    )


def row_below(text: str, title: str) -> dict[str, str]:
    """The first row of the table that has a column of this title, by titles without units."""
    lines = [[part.strip() for part in line.strip("| ").split("|")] for line in text.splitlines()]
    for heads, rule, points in zip(lines, lines[1:], lines[2:], strict=False):
        titles = [head.partition(" (")[0] for head in heads]
        if title in titles and set("".join(rule)) <= set("-:"):
            return dict(zip(titles, points, strict=True))
    raise AssertionError(f"no column {title}")


def test_few_requests_show_their_slowest() -> None:
    row = row_below(page(study(even(3, 3, 15))), "TTFT p99")
    assert row["TTFT p99"].endswith("∞) (slowest of 135)")
    assert row["TTFT p99"].startswith("200.0 [")


def test_many_requests_have_a_p99_with_both_ends() -> None:
    row = row_below(page(study(even(6, 5, 100))), "TTFT p99")
    assert "slowest" not in row["TTFT p99"]
    assert "∞" not in row["TTFT p99"]


def test_batches_are_counted() -> None:
    row = row_below(page(study(even(3, 3, 64), BATCH), BATCH), "TTFT p99")
    assert row["TTFT p99"].endswith("(slowest of 9 batches)")


@pytest.mark.parametrize(
    ("limit", "mark", "verdict"),
    [(0.3, "✓", "met"), (0.05, "✗", "missed"), (0.15, "?", "inconclusive")],
)
def test_objectives_have_a_verdict_per_point_on_the_page_and_in_the_terminal(
    limit: float, mark: str, verdict: str
) -> None:
    summary = study(even(6, 5, 100), objectives={"ttft_p50": limit})
    answer, section = page(summary).split("\n## Objectives\n")
    assert f"of 1 point 1 {verdict}." in answer
    section = section.split("\n## ")[0]
    row = row_below(section, "Workload")
    assert row["ttft_p50"].endswith(mark)
    assert row["Verdict"] == verdict
    console = Console(file=io.StringIO(), width=120)
    render_in_terminal(
        build_study_report(summary, make_lock(make_plan(["engine"], [LOOP]))), console
    )
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert verdict in shown
    assert f"of 1 point 1 {verdict}." in shown
    assert ("Inconclusive: `ttft_p50` of" in section) is (mark == "?")


def test_a_study_that_promises_nothing_has_no_such_section() -> None:
    assert "## Objectives" not in page(study(even(3, 3, 8)))


def test_json_has_tails_and_verdicts_as_numbers() -> None:
    summary = study(even(3, 3, 8), objectives={"ttft_p99": 10.0})
    (point,) = json.loads(format_json(summary, []))["summary"]["points"]
    assert point["tails"]["ttft_p99_s"]["value"] == pytest.approx(0.2)
    assert point["tails"]["ttft_p99_s"]["high"] is None
    assert (point["objectives"][0]["verdict"], point["objectives"][0]["estimate"]["note"]) == (
        "inconclusive",
        "slowest of 72",
    )


def test_the_table_of_figures_has_the_pooled_tail(tmp_path: Path) -> None:
    summary = study(even(3, 3, 8))
    (point,) = summary.points
    per_trial = point.model_copy(
        update={"metrics": {**point.metrics, "ttft_p99_s": point.metrics["ttft_s"]}}
    )
    results = Results(StudyFolder(tmp_path), tmp_path)
    results._of.summary = summary.model_copy(update={"points": (per_trial,)})
    rows = {row["metric"]: row for row in results.points.to_arrow().to_pylist()}
    assert rows["ttft_p99_s"]["mean"] == pytest.approx(0.2)
    assert (rows["ttft_p99_s"]["high"], rows["ttft_p99_s"]["note"]) == (None, "slowest of 72")
    assert rows["ttft_s"]["note"] == ""
