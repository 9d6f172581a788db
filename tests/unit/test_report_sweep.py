"""A sweep in words, in a table that fits, and in a picture that is one."""

import io
from xml.etree import ElementTree

import pytest
from rich.console import Console

from bitbench.core.asked.study import Count, Measure
from bitbench.core.asked.workload import BUILT_IN_WORKLOADS, Workload
from bitbench.core.cell import Cell, Contender
from bitbench.core.found.summary import RateAnswer, SearchStop, StudySummary
from bitbench.core.recorded.trial import ObjectiveResult, Outcome, TrialMetrics
from bitbench.core.recorded.variant import NO_MODEL
from bitbench.report.charts.svg import svg
from bitbench.report.document.markdown import markdown
from bitbench.report.document.terminal import render
from bitbench.report.sections.sweep import sweep_answer, sweep_cells
from bitbench.report.study import Records, document
from tests.unit.synthetic import make_plan, make_trial, summarize

RATES = (10.0, 40.0, 160.0)
ONE_START = Measure(instances=Count(min=1, max=1), trials=Count(min=2, max=2))


def point(rate: float) -> Workload:
    return Workload.model_validate(
        {
            "name": f"rate-{rate:g}",
            "input_tokens": 128,
            "output_tokens": 64,
            "arrival": {"kind": "poisson", "rate": rate},
            "duration": "10s",
        }
    )


def summary_of(name: str = "server", *, search: RateAnswer | None = None) -> StudySummary:
    """Holds up to 40 requests/s; at 160 one of two trials fails and the other is refused."""
    plan = make_plan([name], [point(rate) for rate in reversed(RATES)], ONE_START, objectives={"ttft_p99": "200ms"})
    trials = []
    for rate in RATES:
        cell = Cell(contender=Contender(variant=NO_MODEL, engine=name), workload=f"rate-{rate:g}")
        served = min(rate, 50.0)
        for index in range(2):
            metrics = TrialMetrics(
                offered_rate=rate,
                achieved_rate=served + index,
                goodput=served,
                output_throughput=64 * (served + index),
                ttft_p50_s=0.02 + rate / 1000,
                ttft_p99_s=0.03 + rate / 200,
                tpot_s=0.002,
            )
            result = ObjectiveResult(holds=rate < 100, why_not=None if rate < 100 else "ttft_p99 was 830 ms")
            given = {"metrics": metrics, "objectives": result}
            if rate > 100 and index == 1:
                given = {"outcome": Outcome.OVERLOADED, "cause": "HTTP 429: no.", "failed_requests": 7}
            trials.append(make_trial(cell, 0, index, **given))
    return summarize(plan, trials, []).model_copy(update={"search": search})


@pytest.mark.parametrize("width", [80, 120, 160])
def test_the_table_fits_and_is_sorted_by_load(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    render(summary_of(), console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    rows = [line.split() for line in lines if line.strip() and line.split()[0] in ("10", "40", "160")]
    assert [row[0] for row in rows] == ["10", "40", "160"]
    assert "holds (2)" in " ".join(rows[1])
    assert "fails," in rows[2]
    assert "…" not in "".join(lines)


def test_the_answer_names_the_highest_point_that_held() -> None:
    sentences = " ".join(sweep_answer(summary_of(), str))
    assert "The highest point that held ttft_p99 ≤ 200 ms in every trial: 40 requests/s" in sentences
    assert "Requests failed at rate-160: HTTP 429: no." in sentences


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            RateAnswer(rate=40.4, low=39.6, high=41.7, confidence=0.95, trials=9, stop=SearchStop.PRECISE),
            "40.4 requests/s [39.6, 41.7], 95 % interval. 9 trials were enough.",
        ),
        (
            RateAnswer(rate=40.0, low=36.0, high=44.0, confidence=0.95, trials=12, stop=SearchStop.TRIALS),
            "All 12 trials were used, and it is known to ± 10.0 %; more --trials narrow it.",
        ),
        (
            RateAnswer(rate=99.0, low=99.0, high=None, confidence=0.95, trials=3, stop=SearchStop.HIGHEST),
            "holds even at 99 requests/s, the highest rate that was tried; --max-rate allows more.",
        ),
        (
            RateAnswer(rate=None, low=None, high=0.5, confidence=0.95, trials=3, stop=SearchStop.LOWEST),
            "does not hold, not even at 0.5 requests/s, the lowest rate that was tried.",
        ),
        (
            RateAnswer(rate=40.0, low=36.0, high=44.0, confidence=0.95, trials=5, stop=None),
            "The search was interrupted after 5 trials",
        ),
    ],
)
def test_a_search_says_its_rate_its_interval_and_why_it_stopped(found: RateAnswer, said: str) -> None:
    assert said in sweep_answer(summary_of(search=found), str)[0]


def test_the_figure_is_a_picture_whatever_the_names_hold() -> None:
    sections = document(summary_of("<script>&"), Records({}))
    figure = next(figure for section in sections for figure in section.figures)
    assert len(figure.rows) == 2 * len(RATES)  # the median and the 99th percentile
    assert [row["at"] for row in figure.rows if row["series"] == "TTFT p99"] == ["10", "40", "160"]
    drawn = svg(figure)
    ElementTree.fromstring(drawn)
    assert "TTFT p99" in drawn
    assert "<script>" not in drawn
    assert "<script>" not in markdown(summary_of("<script>&"), {})


def test_other_studies_are_no_sweeps() -> None:
    two_shapes = make_plan(["a"], [BUILT_IN_WORKLOADS["interactive"], BUILT_IN_WORKLOADS["base"]])
    assert sweep_cells(summarize(two_shapes, [], [])) == []
    two_contenders = make_plan(["a", "b"], [point(1.0), point(2.0)])
    assert sweep_cells(summarize(two_contenders, [], [])) == []
