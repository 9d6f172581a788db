"""One name per figure: every place that spells one spells it as the registry does."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from bitbench.analysis.changes import parse_change_metric, parse_gate_condition
from bitbench.analysis.trial import RECORDED, compute_trial_metrics
from bitbench.records.folder import StudyFolder
from bitbench.records.request_rows import RequestRows
from bitbench.records.request_sums import RATES
from bitbench.records.tables import TABLES
from bitbench.records.trial import Memory, TrialMetrics
from bitbench.study.metrics import (
    METRICS,
    NEEDED,
    OBJECTIVES,
    PRIMARY_METRICS,
    FigureSource,
    find_metric,
)
from bitbench.study.objective import Objective, Objectives
from bitbench.study.study import Measure
from bitbench.study.study_file import make_study_schema
from bitbench.util.errors import UsageError
from tests.command_line import bitbench
from tests.support.synthetic import demo_study, make_lock, request_rows, request_sums

ROOT = Path(__file__).parents[2]
COLUMNS = {metric.column for metric in METRICS.values()}
FIGURES = [*TrialMetrics.model_fields, *Memory.model_fields]
# How the names of figures are recognized in a text: a time, with or without a statistic and the unit.
TIME = re.compile(r"`((?:ttft|tpot|itl|latency|first_answer)(?:_(?:mean|p\d+))?(?:_s)?)`")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo study as a folder."""
    plan, trials, instances, _ = demo_study()
    path = tmp_path_factory.mktemp("metrics") / "demo"
    with StudyFolder(path).open_writer() as writer:
        writer.write_study("name: demo\n")
        writer.write_lock(make_lock(plan))
        for instance in instances:
            writer.append_instance(instance)
        for trial in trials:
            writer.append_trial(trial, None)
    return path


def test_every_spelling_is_the_same_figure() -> None:
    for metric in METRICS.values():
        assert find_metric(metric.name) is find_metric(metric.column) is metric
    assert find_metric("ttft_mean") is find_metric("ttft_s") is METRICS["ttft"]
    assert find_metric("joy") is None
    spellings = [
        spelling for metric in METRICS.values() for spelling in {metric.name, metric.column}
    ]
    assert len(spellings) == len(set(spellings))


def test_every_figure_of_a_record_is_in_the_registry_and_the_other_way_round() -> None:
    assert sorted(RECORDED) == sorted(FIGURES)
    rows = {
        metric.name
        for metric in METRICS.values()
        if metric.source is FigureSource.ROWS and metric.time is None
    }
    assert rows == {*RATES, "goodput"}  # that one needs the study's objectives as well


@pytest.mark.parametrize(
    "metric", [one for one in METRICS.values() if one.time], ids=lambda one: one.name
)
def test_every_time_can_be_computed_from_rows(metric: object) -> None:
    assert isinstance(metric, type(METRICS["ttft"]))
    rows = RequestRows(
        request_rows({"planned_s": 0.0, "chunk_s": [1.0, 1.5, 2.5], "first_answer_s": 1.5})
    )
    expected = {"ttft": 1.0, "tpot": 0.75, "latency": 2.5, "first_answer": 1.5}
    assert rows.time(str(metric.time)).tolist() == (
        [0.5, 1.0] if metric.time == "itl" else [expected[metric.time or ""]]
    )


def test_a_tail_needs_more_requests_than_a_mean() -> None:
    assert (METRICS["ttft"].needs, METRICS["ttft_p90"].needs, METRICS["ttft_p99"].needs) == (
        1,
        100,
        1000,
    )
    for metric in OBJECTIVES.values():
        assert metric.needs == NEEDED[metric.statistic or ""]


def test_what_is_measured_is_named_by_columns() -> None:
    found = compute_trial_metrics(request_sums({"planned_s": 0.0, "chunk_s": [1.0, 1.5]}))
    assert {name for name, value in found if value is not None} <= COLUMNS
    assert found.ttft_s == 1.0


def test_the_study_file_uses_the_names_and_reads_both_spellings() -> None:
    schema = make_study_schema()
    assert list(schema["$defs"]["Measure"]["properties"]["metric"]["enum"]) == list(PRIMARY_METRICS)
    assert {*PRIMARY_METRICS} <= METRICS.keys()
    assert schema["properties"]["objectives"]["propertyNames"]["enum"] == list(OBJECTIVES)
    for name in PRIMARY_METRICS:
        assert Measure.model_validate({"metric": METRICS[name].column}).metric == name


def test_slo_takes_every_promise_in_both_spellings() -> None:
    adapter = TypeAdapter[tuple[Objective, ...]](Objectives)
    for name, metric in OBJECTIVES.items():
        (plain,) = adapter.validate_python(f"{name}=200ms")
        (column,) = adapter.validate_python(f"{metric.column}=200ms")
        assert plain == column
        assert plain.name == name


def test_fail_if_takes_every_recorded_figure_in_both_spellings() -> None:
    for metric in (*RECORDED.values(), METRICS["perplexity"]):
        for spelling in (metric.name, metric.column):
            assert (
                parse_gate_condition(f"{spelling} < -3%").metric
                == parse_change_metric(metric.name)
                == metric.column
            )
    with pytest.raises(
        UsageError,
        match="unknown figure ttft_p90; did you mean `ttft_p99`\\? known are output_throughput",
    ):
        parse_change_metric("ttft_p90")


def test_csv_json_and_sql_have_the_columns(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = next(
        csv.reader(io.StringIO(bitbench(capsys, "report", str(folder), "--format", "csv").out))
    )
    assert [name for name in header if name in COLUMNS] == FIGURES
    content = json.loads(bitbench(capsys, "report", str(folder), "--format", "json").out)
    assert set(content["definitions"]) == set(FIGURES)
    assert content["summary"]["primary_metric"] in COLUMNS
    assert all(set(point["metrics"]) <= COLUMNS for point in content["summary"]["points"])
    assert set(FIGURES) <= set(content["trials"][0])
    of_trials = {column.name: column.meaning for column in TABLES["trials"].columns}
    assert {name: of_trials[name] for name in FIGURES} == {
        name: RECORDED[name].meaning for name in FIGURES
    }
    assert {one.name for one in TABLES["quality"].columns} >= {"perplexity"}


def test_the_document_lists_the_registry() -> None:
    text = (ROOT / "docs" / "measurement.md").read_text(encoding="utf-8")
    table = re.findall(
        r"^\| `(\w+)` \| (\S+) \| (more|less) \| ([\d,]+) \| (.+) \|$", text, re.MULTILINE
    )
    assert table == [
        (
            metric.name,
            metric.unit or "–",
            "more" if metric.higher_is_better else "less",
            f"{metric.needs:,}",
            metric.meaning,
        )
        for metric in METRICS.values()
    ]


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]), ids=lambda path: path.name
)
def test_figures_that_documents_name_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = (
        TIME.findall(text)
        + re.findall(r"--(?:fail-if|metric) \"?([a-z]\w+)", text)
        + re.findall(r"--slo (\w+)=", text)
    )
    unknown = [name for name in named if find_metric(name) is None]
    assert not unknown, f"{path.name} names {unknown}"
