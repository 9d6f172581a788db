"""A sweep in words, in a table that fits, and in a picture that is one."""

import io
from xml.etree import ElementTree

import altair as alt
import pytest
from rich.console import Console

from bitbench.analysis.results.summary import RateAnswer, SearchStop, StudySummary
from bitbench.records.trial import ObjectiveResult, Outcome, TrialMetrics, TrialRecord
from bitbench.reports.charts.curves import build_load_charts
from bitbench.reports.charts.svg import render_svg
from bitbench.reports.document.markdown import render_markdown, render_markdown_phrase
from bitbench.reports.document.model import Chart, Document, Mark, Table
from bitbench.reports.document.terminal import render_in_terminal
from bitbench.reports.document.words import bullets, say
from bitbench.reports.labels import Labels
from bitbench.reports.sections.sweep import (
    build_sweep_section,
    list_sweep_points,
    list_sweep_sentences,
)
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Count, Measure
from bitbench.study.variant import NO_MODEL
from bitbench.study.workload import BUILT_IN_WORKLOADS, Workload
from bitbench.util.errors import ExitCode
from tests.support.synthetic import make_plan, make_trial, summarize

RATES = (10.0, 40.0, 160.0)
ONE_START = Measure(starts=Count(min=1, max=1), trials=Count(min=2, max=2))


def at_rate(rate: float) -> Workload:
    return Workload.model_validate(
        {
            "name": f"rate-{rate:g}",
            "input_tokens": 128,
            "output_tokens": 64,
            "arrival": {"kind": "poisson", "rate": rate},
            "duration": "10s",
        }
    )


def sweep_study(name: str = "server") -> tuple[Plan, list[TrialRecord]]:
    """Meets its objective up to 40 requests/s; at 160 one of two trials fails it and the other is overloaded."""
    plan = make_plan(
        [name],
        [at_rate(rate) for rate in reversed(RATES)],
        ONE_START,
        objectives={"ttft_p99": "200ms"},
    )
    trials = []
    for rate in RATES:
        point = Point(config=Config(variant=NO_MODEL, engine=name), workload=f"rate-{rate:g}")
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
            result = ObjectiveResult(
                holds=rate < 100, why_not=None if rate < 100 else "ttft_p99 was 830 ms"
            )
            given = {"metrics": metrics, "objectives": result}
            if rate > 100 and index == 1:
                given = {
                    "outcome": Outcome.OVERLOADED,
                    "cause": "HTTP 429: no.",
                    "failed_requests": 7,
                }
            trials.append(make_trial(point, 0, index, **given))
    return plan, trials


def summary_of(name: str = "server", *, search: RateAnswer | None = None) -> StudySummary:
    return summarize(*sweep_study(name), []).model_copy(update={"search": search})


def document_of(summary: StudySummary) -> Document:
    charts = (Chart(figure) for figure in build_load_charts(summary, Labels.of(summary)))
    return Document(
        say("a sweep"),
        (*charts, *bullets(list_sweep_sentences(summary))),
        (build_sweep_section(summary),),
    )


def answer_of(summary: StudySummary) -> str:
    return " ".join(render_markdown_phrase(sentence) for sentence in list_sweep_sentences(summary))


@pytest.mark.parametrize("width", [80, 120, 160, 200])
def test_the_table_fits_and_is_sorted_by_load(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    render_in_terminal(document_of(summary_of()), console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    rows = [
        line.split() for line in lines if line.strip() and line.split()[0] in ("10", "40", "160")
    ]
    assert [row[0] for row in rows] == ["10", "40", "160"]
    assert "meets (2)" in " ".join(rows[1])
    assert rows[2][1] == "fails,"  # beside its load
    assert "…" not in "".join(lines)


def test_the_answer_names_the_highest_point_that_held() -> None:
    sentences = answer_of(summary_of())
    assert (
        "The highest point that met `ttft_p99` ≤ 200 ms in every trial: 40 requests/s" in sentences
    )
    assert "Requests failed on `rate-160`: HTTP 429: no." in sentences
    assert "Over all its requests that is inconclusive: " in sentences


def test_a_point_that_fails_is_marked_and_its_errors_are_counted() -> None:
    table = build_sweep_section(summary_of()).blocks[1]
    assert isinstance(table, Table)
    assert [row.mark for row in table.rows] == [None, None, Mark.ALARM]
    errors = [row.cells[-1] for row in table.rows]
    assert [getattr(point, "value", None) for point in errors] == [0, 0, 7]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            RateAnswer(
                rate=40.4, low=39.6, high=41.7, confidence=0.95, trials=9, stop=SearchStop.PRECISE
            ),
            "**40.4 [39.6, 41.7] requests/s** (95 % interval, 9 trials).",
        ),
        (
            RateAnswer(
                rate=40.4,
                low=39.6,
                high=41.7,
                confidence=0.95,
                trials=11,
                stop=SearchStop.PRECISE,
                verified=39.6,
                verified_requests=4188,
                refuted=(39.9,),
            ),
            "Verified: a trial of 4,188 requests at 39.6 requests/s met the limits.",
        ),
        (
            RateAnswer(
                rate=40.4,
                low=39.6,
                high=41.7,
                confidence=0.95,
                trials=15,
                stop=SearchStop.TRIALS,
                refuted=(40, 39, 38),
            ),
            "requests/s missed the limits. All its trials were used",
        ),
        (
            RateAnswer(
                rate=40.0, low=36.0, high=44.0, confidence=0.95, trials=12, stop=SearchStop.TRIALS
            ),
            "(95 % interval, 12 trials). All its trials were used; more --trials narrow it.",
        ),
        (
            RateAnswer(
                rate=99.0, low=99.0, high=None, confidence=0.95, trials=3, stop=SearchStop.HIGHEST
            ),
            "is met even at 99 requests/s, the highest rate tried. --max-rate allows more.",
        ),
        (
            RateAnswer(
                rate=None, low=None, high=0.5, confidence=0.95, trials=3, stop=SearchStop.LOWEST
            ),
            "is not met, not even at 0.5 requests/s, the lowest rate that was tried.",
        ),
        (
            RateAnswer(rate=None, low=None, high=4.0, confidence=0.95, trials=1, stop=None),
            "the lowest rate that was tried. The search was interrupted; the same command",
        ),
        (
            RateAnswer(
                rate=None, low=None, high=1.0, confidence=0.95, trials=2, stop=SearchStop.TRIALS
            ),
            "the lowest rate that was tried. All its trials were used; more --trials narrow it.",
        ),
        (
            RateAnswer(
                rate=64.0, low=64.0, high=None, confidence=0.95, trials=3, stop=SearchStop.TRIALS
            ),
            "the highest rate tried. All its trials were used; more --trials narrow it.",
        ),
        (
            RateAnswer(rate=None, low=None, high=None, confidence=0.95, trials=0, stop=None),
            "No rate was tested against `ttft_p99` ≤ 200 ms: none of 6 trials counts; the same command with --into",
        ),
        (
            RateAnswer(rate=40.0, low=36.0, high=44.0, confidence=0.95, trials=5, stop=None),
            "The search was interrupted; the same",
        ),
    ],
)
def test_a_search_says_its_rate_its_interval_and_why_it_stopped(
    found: RateAnswer, said: str
) -> None:
    assert said in answer_of(summary_of(search=found))


def test_a_search_without_a_trial_that_counts_names_no_rate() -> None:
    untried = RateAnswer(rate=None, low=None, high=None, confidence=0.95, trials=0, stop=None)
    summary = summarize(sweep_study()[0], [], []).model_copy(update={"search": untried})
    assert (
        "≤ 200 ms: no trial was finished; the same command with --into resumes the search."
        in answer_of(summary)
    )
    assert "not even at" not in answer_of(summary)


@pytest.mark.parametrize(
    ("stop", "code"),
    [(None, ExitCode.INCONCLUSIVE), (SearchStop.LOWEST, ExitCode.FAILED)],
    ids=["open", "lowest"],
)
def test_a_search_that_was_interrupted_has_not_failed(
    stop: SearchStop | None, code: ExitCode
) -> None:
    found = RateAnswer(rate=None, low=None, high=4.0, confidence=0.95, trials=1, stop=stop)
    assert summary_of(search=found).exit_code() is code


def test_a_rate_that_no_long_trial_met_is_inconclusive() -> None:
    found = RateAnswer(
        rate=40.0, low=36.0, high=44.0, confidence=0.95, trials=13, stop=SearchStop.TRIALS
    )
    assert summary_of(search=found).exit_code() is ExitCode.INCONCLUSIVE
    verified = found.model_copy(update={"verified": 36.0, "verified_requests": 3900})
    assert summary_of(search=verified).exit_code() is ExitCode.DONE


def test_the_figure_is_a_picture_whatever_the_names_hold() -> None:
    document = document_of(summary_of("<script>&"))
    figure, throughput = (block.figure for block in document.answer if isinstance(block, Chart))
    assert [row["series"] for row in throughput.rows if "series" in row] == [
        "output throughput"
    ] * len(RATES)
    lines = [row for row in figure.rows if "series" in row]
    assert len(lines) == 2 * len(RATES)  # the median and the 99th percentile
    assert [row["at"] for row in lines if row["series"] == "TTFT p99"] == ["10", "40", "160"]
    drawn = render_svg(figure)
    ElementTree.fromstring(drawn)
    assert "TTFT p99" in drawn
    assert "<script>" not in drawn
    assert "<script>" not in render_markdown(document)


def test_a_search_is_drawn_over_its_rate_with_its_limit_and_its_answer() -> None:
    found = RateAnswer(
        rate=47.0, low=41.0, high=55.0, confidence=0.95, trials=9, stop=SearchStop.PRECISE
    )
    summary = summary_of(search=found)
    figure, throughput = build_load_charts(summary, Labels.of(summary))
    assert figure.title == "Time to first token by offered rate"
    assert throughput.title == "Output throughput by offered rate"
    assert [row["x"] for row in figure.rows if row.get("series") == "TTFT p99"] == [
        10.0,
        40.0,
        160.0,
    ]
    limit, answer = (row for row in figure.rows if "guide" in row)
    assert (limit["guide"], limit["guide_y"]) == ("ttft_p99 ≤ 200 ms", 200.0)
    assert (answer["guide"], answer["guide_x"]) == ("47.0 requests/s", 47.0)
    assert (answer["guide_low"], answer["guide_high"]) == (41.0, 55.0)
    drawn = render_svg(figure)
    assert "ttft_p99 ≤ 200 ms" in drawn
    assert "offered rate (requests/s)" in drawn
    alt.LayerChart.from_dict(figure.spec)


def test_other_studies_are_no_sweeps() -> None:
    two_shapes = make_plan(["a"], [BUILT_IN_WORKLOADS["interactive"], BUILT_IN_WORKLOADS["base"]])
    assert list_sweep_points(summarize(two_shapes, [], [])) == []
    two_configs = make_plan(["a", "b"], [at_rate(1.0), at_rate(2.0)])
    assert list_sweep_points(summarize(two_configs, [], [])) == []
