import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from bitbench.analysis.results.summary import StudySummary
from bitbench.records.lock import Lock
from bitbench.records.trial import Memory
from bitbench.reports import files
from bitbench.reports.document.markdown import render_markdown as rendered
from bitbench.reports.files import make_report_files
from bitbench.reports.study import build_study_report
from bitbench.reports.write import StudyReport
from bitbench.study.study import Count, Measure
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.support.study_folders import write_folder
from tests.support.synthetic import (
    demo_study,
    make_instance,
    make_plan,
    make_trial,
    speed_metrics,
    summarize,
)

INTERACTIVE = BUILT_IN_WORKLOADS["interactive"]


@pytest.fixture(scope="module")
def demo() -> StudySummary:
    plan, trials, instances, _ = demo_study()
    return summarize(plan, trials, instances)


@pytest.fixture(scope="module")
def text(demo: StudySummary) -> str:
    return markdown(demo, demo_study()[3])


def markdown(summary: StudySummary, lock: Lock | None = None) -> str:
    return rendered(build_study_report(summary, lock or demo_study()[3]))


def html(text: str) -> str:
    return str(MarkdownIt("commonmark").enable("table").render(text))


def test_the_answer_comes_before_anything_else(text: str) -> None:
    first, picture = text.splitlines()[2], text.splitlines()[4]
    assert re.match(
        r"\*\*Use `quick`\.\*\* 1\.\d+× \(95 % CI 1\.\d+× to 1\.\d+×\) the output "
        r"throughput of `steady` on `interactive`",
        first,
    )
    assert picture == "![Output throughput against the baseline](figures/answer-ratios.svg)"
    opening = text.split("\n## ", maxsplit=1)[0]
    assert "Failed: `broken` on `interactive` and `medium_batch` (unsupported)" in opening
    assert "Outliers: 1 trial flagged (still included in the means)" in opening


def test_every_table_has_as_many_points_in_each_row(text: str) -> None:
    tables = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    assert len(tables) > 10
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert html(text).count("<table>") == len(tables)


def stands_in(value: float, text: str) -> bool:
    """Whether a number in the text is this value, rounded to the digits that are shown."""
    for shown in re.findall(r"\d[\d,]*(?:\.\d+)?", text):
        decimals = len(shown.partition(".")[2])
        if abs(float(shown.replace(",", "")) - value) <= 0.5001 * 10**-decimals:
            return True
    return False


def test_every_figure_of_the_summary_is_in_its_row(demo: StudySummary, text: str) -> None:
    for point in demo.points:
        section = text.split(f"## Workload `{point.point.workload}`")[1].split(
            "## Workload", maxsplit=1
        )[0]
        rows = "\n".join(
            line for line in section.splitlines() if f"`{point.point.config.name}`" in line
        )
        for metric, estimate in point.metrics.items():
            factor = {"s": 1e-3, "bytes": 2**20}.get(demo.definitions[metric].unit, 1.0)
            assert estimate.interval is not None
            for value in (estimate.value, estimate.interval.low, estimate.interval.high):
                assert stands_in(value / factor, rows), (point.point.name, metric)


def test_ties_failures_and_refusals_stand_in_the_table(text: str) -> None:
    section = text.split("## Workload `interactive`")[1].split("## Workload", maxsplit=1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    ranks = {row.split("|")[1].strip(): row.split("|")[2].strip() for row in rows[2:6]}
    assert ranks == {
        "`quick`": "1",
        "`steady`": "2–3",
        "`twin`": "2–3",
        "`broken`": "–",
    }
    assert "`refused`" not in section  # for no workload tries it
    assert "`refused`" in text.split("## Refused")[1]
    assert any("`broken`" in row and "unsupported (2)" in row for row in rows)


def test_memory_stands_beside_speed(text: str) -> None:
    main = text.split("## Workload `interactive`")[1].split("Further metrics", maxsplit=1)[0]
    header, _, *rows = [line for line in main.splitlines() if line.startswith("| ")]
    place = [point.strip() for point in header.split("|")].index("Memory peak (MiB)")
    shown = {row.split("|")[1].strip(): row.split("|")[place].strip() for row in rows}
    assert shown["`quick`"] == "605.0"
    assert shown["`broken`"] == "–"


def test_where_a_device_was_used_its_memory_stands_beside_speed() -> None:
    """*Not yet run on a GPU.*"""
    plan = make_plan(["a"], [INTERACTIVE])
    gib = 2**30
    held = Memory(
        resident_bytes=gib, peak_bytes=gib, device_bytes=20 * gib, device_peak_bytes=21 * gib
    )
    trials = [
        make_trial(
            plan.points[0], block, index, metrics=speed_metrics(INTERACTIVE, 100.0), memory=held
        )
        for block in range(3)
        for index in range(2)
    ]
    text = markdown(summarize(plan, trials, [make_instance(plan.configs[0], 0)]))
    main = text.split("## Workload `interactive`")[1].split("Further metrics", maxsplit=1)[0]
    assert "Device peak (GiB)" in main
    assert "Memory peak" not in main


def test_unknown_is_a_dash_never_a_zero(text: str) -> None:
    assert not re.search(r"\| 0\.0+ \|", text)
    assert "N/A" not in text
    assert "None" not in text
    assert "nan" not in text


def test_nothing_ran_yet() -> None:
    text = markdown(summarize(make_plan(["a", "b"], [INTERACTIVE]), [], []))
    assert "no config has a result" in text
    assert "Not finished: 2 of 2 points" in text


def test_one_instance_is_cautioned_about() -> None:
    plan = make_plan(
        ["a", "b"], [INTERACTIVE], Measure(starts=Count(min=1, max=1), trials=Count(min=3, max=3))
    )
    trials = [
        make_trial(point, 0, index, metrics=speed_metrics(INTERACTIVE, speed + index / 10))
        for point, speed in zip(plan.points, (100.0, 200.0), strict=True)
        for index in range(3)
    ]
    assert "Caution: some points have a single start" in markdown(summarize(plan, trials, []))


def result_rows(text: str) -> list[list[str]]:
    """Of the one table: a row per config, its figure and its ratio."""
    table = text.split("## Results")[1].split("\n\n")[1].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_best_latency_is_the_lowest() -> None:
    measure = Measure(metric="latency", starts=Count(min=3, max=3), trials=Count(min=2, max=2))
    plan = make_plan(["slow", "fast"], [INTERACTIVE], measure)
    trials = [
        make_trial(
            point,
            block,
            index,
            metrics=speed_metrics(INTERACTIVE, speed * (1 + (block + index) / 10_000)),
        )
        for point, speed in zip(plan.points, (100.0, 200.0), strict=True)
        for block in range(3)
        for index in range(2)
    ]
    (name, figure, *_), *_ = result_rows(markdown(summarize(plan, trials, [])))
    assert name == "★ `fast`"
    assert figure.startswith("320.0")


@pytest.mark.parametrize(
    ("speeds", "baseline", "said"),
    [
        ((100.0, 50.0), "a", ["★ `a`", "baseline"]),
        ((100.0, 100.0), "a", ["`a`", "baseline"]),
        ((100.0, 100.0, 50.0), "c", ["★ `a`", "2.000× [2.000, 2.000]"]),
        ((100.0, 50.0), "nobody", ["★ `a`"]),
    ],
)
def test_the_table_stars_what_the_answer_recommends(
    speeds: tuple[float, ...], baseline: str | None, said: list[str]
) -> None:
    twice = Measure(starts=Count(min=3, max=3))
    plan = make_plan(["a", "b", "c"][: len(speeds)], [INTERACTIVE], twice, baseline=baseline)
    trials = [
        make_trial(point, block, index, metrics=speed_metrics(INTERACTIVE, speed))
        for point, speed in zip(plan.points, speeds, strict=True)
        for block in range(3)
        for index in range(2)
    ]
    (name, figure, *ratio), *_ = result_rows(markdown(summarize(plan, trials, [])))
    assert [name, *ratio[:1]] == said
    assert figure.startswith("100.0 ± 0")


def test_a_report_is_utf_8_and_has_its_figures_beside_it(
    demo: StudySummary, tmp_path: Path
) -> None:
    path = make_report_files(build_study_report(demo, demo_study()[3]), tmp_path)
    linked = re.findall(r"\]\((figures/[^)]+)\)", path.read_text(encoding="utf-8"))
    assert "figures/answer-ratios.svg" in linked
    assert sorted(linked) == sorted(
        f"figures/{one.name}" for one in (path.parent / "figures").iterdir()
    )
    assert path == tmp_path / "report" / "report.md"
    assert "×" in path.read_text(encoding="utf-8")
    assert "Ã" not in path.read_text(encoding="utf-8")


def test_without_the_extra_figures_a_report_has_no_figure_files(
    demo: StudySummary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "has_svg_renderer", lambda: False)
    path = make_report_files(build_study_report(demo, demo_study()[3]), tmp_path)
    assert "figures/" not in path.read_text(encoding="utf-8")
    assert not (path.parent / "figures").exists()
    page = (path.parent / "index.html").read_text(encoding="utf-8")
    assert 'class="canvas"' in page


@pytest.mark.parametrize("kind", ["demo", "sweep"])
def test_a_report_removes_the_figures_of_the_one_before_and_no_other_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "render_svg", lambda _: "<svg/>")
    document = StudyReport(write_folder(kind, tmp_path / "study"), tmp_path).document
    figures = make_report_files(document, tmp_path / "study").parent / "figures"
    assert list(figures.iterdir())
    (figures / "mine.svg").write_text("mine")
    make_report_files(replace(document, answer=(), sections=()), tmp_path / "study")
    assert [path.name for path in figures.iterdir()] == ["mine.svg"]
