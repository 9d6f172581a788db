"""The Python interface: its names, what importing it costs, and its results as objects and tables."""

import inspect
import pydoc
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import bitbench
from bitbench.api import variants
from bitbench.api.inputs import parse_items
from bitbench.api.interface import _COUNTS
from bitbench.feature import collect_offers
from bitbench.features.interop.files import import_files
from bitbench.features.interop.readers.reading import ImportedStarts, Tool
from bitbench.quantize import backends
from bitbench.quantize.backends import Maker
from bitbench.records.folder import StudyFolder
from bitbench.records.tables import TABLES
from bitbench.records.trial import Outcome
from bitbench.reports.charts import svg
from bitbench.reports.document.html import render_html_blocks
from bitbench.reports.document.model import CodeBlock, Heading, Name, Paragraph
from bitbench.running.quality_study import QualityOptions
from bitbench.study.recipe import Backend
from bitbench.util.errors import NotReadyError, StoreError, UsageError
from tests.support.quantize_stand_in import StandIn, pretend_environment, write_model
from tests.support.synthetic import demo_study

RESULT_FILE = Path(__file__).parent / "data" / "imports" / "vllm-serve-1.json"
FUNCTIONS = {
    "compare",
    "load_test",
    "measure_quality",
    "open",
    "plan",
    "quantize_model",
    "quick",
    "recommend",
    "report",
    "run",
}
TYPES = {
    "BitbenchError",
    "Comparison",
    "MadeVariant",
    "Plan",
    "Recommendation",
    "Results",
    "Study",
    "Workload",
}


def test_the_public_face_is_these_names() -> None:
    assert set(bitbench.__all__) == {"__version__", *FUNCTIONS, *TYPES}
    assert set(dir(bitbench)) == {*bitbench.__all__, *collect_offers("python")}
    assert all(inspect.isfunction(getattr(bitbench, name)) for name in FUNCTIONS)
    assert all(inspect.isclass(getattr(bitbench, name)) for name in TYPES)
    with pytest.raises(AttributeError, match="nothing"):
        bitbench.nothing  # noqa: B018


def test_every_function_is_in_the_help_with_its_sentence() -> None:
    shown = pydoc.plain(pydoc.render_doc(bitbench))
    for name in FUNCTIONS:
        assert f"    {name}(" in shown
        assert (getattr(bitbench, name).__doc__ or "").splitlines()[0] in shown


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_docstring_names_arguments_and_example(name: str) -> None:
    function = getattr(bitbench, name)
    text = inspect.getdoc(function) or ""
    arguments = text.partition("\nArgs:\n")[2].partition("\nReturns:\n")[0]
    explained = re.findall(r"^ {4}\*?(\w+): [A-Z\"]", arguments, re.MULTILINE)
    assert explained == list(inspect.signature(function).parameters)
    assert "\nRaises:\n    BitbenchError: " in text
    example = textwrap.dedent(text.partition("\nExample:\n")[2])
    assert f"bitbench.{name}(" in example
    compile(example, name, "exec")


def test_importing_it_brings_nothing_heavy_and_packages_do_not_cover_functions() -> None:
    script = """
import sys, bitbench
heavy = {"torch", "numpy", "pyarrow", "altair", "pydantic", "scipy", "duckdb"} & set(sys.modules)
assert not heavy, heavy
import bitbench.loadgen.workers, bitbench.reports.document, bitbench.api.compare
import bitbench.quantize.variants, bitbench.quality
for name in bitbench.__all__:
    assert name == "__version__" or callable(getattr(bitbench, name)), name
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def results(tmp_path: Path) -> bitbench.Results:
    return bitbench.open(
        import_files([RESULT_FILE], Tool.VLLM, ImportedStarts.PER_FILE, tmp_path / "imported").path
    )


def test_records_are_typed_and_tables_have_the_columns_of_query(results: bitbench.Results) -> None:
    (trial,) = results.trials
    assert results.trials[0] is trial
    assert results.trials[:1] == (trial,)
    table = results.trials.to_arrow()
    assert table.column_names == [
        one.name for one in TABLES["trials"].columns if one.name not in ("folder", "study")
    ]
    assert table["trial"].to_pylist() == [trial.id]
    assert table["output_throughput"].to_pylist() == [trial.metrics.output_throughput]
    assert len(results.instances) == results.instances.to_arrow().num_rows
    assert results.requests.to_arrow().num_rows == 0  # an imported file has none
    assert "1 trials" in repr(results)


def write_demo(folder: Path, *, is_rejected: bool = False) -> bitbench.Results:
    """Write the demo study, with a trial that was rejected if that is wanted."""
    _, trials, instances, lock = demo_study()
    if is_rejected:
        changed = {"kind": "measured", "outcome": Outcome.CLIENT_BOUND, "cause": "late"}
        trials.insert(0, trials[0].model_copy(update=changed))
    with StudyFolder(folder).open_writer() as writer:
        writer.write_study("name: demo\n")
        writer.write_lock(lock)
        for instance in instances:
            writer.append_instance(instance)
        for trial in trials:
            writer.append_trial(trial, None)
    return bitbench.open(folder)


def test_trials_are_those_that_enter_figures(tmp_path: Path) -> None:
    _, trials, _, _ = demo_study()
    results = write_demo(tmp_path / "demo", is_rejected=True)
    ended_well = sum(trial.kind == "measured" and trial.outcome is Outcome.OK for trial in trials)
    warm_ups = sum(trial.kind == "warmup" for trial in trials)
    assert {(trial.kind, trial.outcome) for trial in results.trials} == {("measured", Outcome.OK)}
    assert len(results.trials) == results.trials.to_arrow().num_rows == ended_well
    assert len(results.warmups) == results.warmups.to_arrow().num_rows == warm_ups > 0
    assert len(results.excluded_trials) == len(trials) + 1 - ended_well - warm_ups
    assert Outcome.CLIENT_BOUND in {trial.outcome for trial in results.excluded_trials}


def test_figures_of_points_are_those_of_the_summary(results: bitbench.Results) -> None:
    (point,) = results.points
    figures = {row["metric"]: row["mean"] for row in results.points.to_arrow().to_pylist()}
    assert figures == {name: estimate.value for name, estimate in point.metrics.items()}
    assert figures


def test_without_pandas_the_other_way_is_named(
    results: bitbench.Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(StoreError, match=r"pip install pandas`, or use to_arrow\(\)"):
        results.trials.to_pandas()


def test_what_is_no_study_folder_is_refused_as_the_command_does(tmp_path: Path) -> None:
    with pytest.raises(bitbench.BitbenchError, match="is not a study folder"):
        bitbench.open(tmp_path)


def test_a_study_made_in_python_is_planned_like_a_file(tmp_path: Path) -> None:
    study = bitbench.Study.model_validate(
        {"name": "x", "engines": ["null"], "workloads": ["interactive"]}
    )
    path = tmp_path / "x.yaml"
    path.write_text("name: x\nengines: [null]\nworkloads: [interactive]\n")
    assert bitbench.plan(study) == bitbench.plan(str(path)) == bitbench.plan(path)


def test_study_dict_is_planned_like_a_file(tmp_path: Path) -> None:
    content = {"name": "x", "engines": ["null"], "workloads": ["interactive"]}
    assert bitbench.plan(content) == bitbench.plan(bitbench.Study.model_validate(content))


WRONG_TYPES = {
    "plan": (lambda: bitbench.plan(3), "a study is a file, a dict or a bitbench.Study"),
    "run": (lambda: bitbench.run({"name": "x", "engnes": []}), "engnes: Extra inputs"),
    "open": (lambda: bitbench.open(None), "but they are NoneType"),
    "compare": (lambda: bitbench.compare({}, {}), "but they are dict"),
    "concurrency": (lambda: bitbench.load_test("u", concurrency=0), "concurrency: Input should be"),
    "rate": (lambda: bitbench.load_test("u", rate={}), "rate: Input should be"),
    "recipes": (lambda: bitbench.measure_quality("m", 3), "recipes: Input should be"),
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_wrong_type_is_refused_with_a_sentence(name: str) -> None:
    call, message = WRONG_TYPES[name]
    with pytest.raises(bitbench.BitbenchError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [2, [2], (2,), range(2, 3)])
def test_concurrency_is_a_number_or_several(value: object) -> None:
    assert parse_items(value, _COUNTS, about="concurrency") == (2,)


def test_results_are_compared_like_their_folders(tmp_path: Path) -> None:
    results = write_demo(tmp_path / "demo")
    assert bitbench.compare(results, results) == bitbench.compare(results.path, str(results.path))


def test_results_in_a_cell_show_answer_and_table(tmp_path: Path) -> None:
    cell = write_demo(tmp_path / "demo")._repr_html_()
    assert "<strong>Use <code>quick</code>.</strong>" in cell
    assert cell.count("<table") == 1
    assert "<script" not in cell


def test_results_in_a_cell_are_escaped() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    blocks = (Heading((hostile,)), Paragraph((Name(hostile),)), CodeBlock((hostile,)))
    cell = render_html_blocks(blocks)
    assert cell.count("&lt;img") == len(blocks)
    assert "<img" not in cell


def test_summary_has_a_short_repr(tmp_path: Path) -> None:
    summary = write_demo(tmp_path / "demo").summary
    assert repr(summary) == str(summary) == "<StudySummary of demo: 4 configs, 8 points>"


def test_plot_draws_the_chart_of_the_report(tmp_path: Path) -> None:
    plot = write_demo(tmp_path / "demo").plot("answer-ratios")
    assert "Output throughput against the baseline" in repr(plot)
    assert (plot._repr_svg_() or "").startswith("<svg")
    assert plot._repr_html_() is None


def test_plot_without_renderer_is_a_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plot = write_demo(tmp_path / "demo").plot("answer-ratios")
    monkeypatch.setattr(svg, "has_svg_renderer", lambda: False)
    assert plot._repr_svg_() is None
    frame = plot._repr_html_() or ""
    assert frame.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert frame.count("<") == 2  # the frame alone: its page is escaped


def test_plot_unknown_name_lists_the_charts(tmp_path: Path) -> None:
    results = write_demo(tmp_path / "demo")
    with pytest.raises(
        bitbench.BitbenchError, match=r"no chart x; the charts are: answer-ratios, "
    ):
        results.plot("x")


def test_quantize_model_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("BITBENCH_HOME", str(home))
    stand_in = StandIn()
    maker = Maker("quantize", ("llmcompressor",), stand_in.compress)
    monkeypatch.setitem(backends.MAKERS, Backend.LLMCOMPRESSOR, maker)
    pretend_environment(home)
    model = write_model(tmp_path / "tiny")
    variant = bitbench.quantize_model(model, "w8a8-rtn")
    assert variant.path.is_dir()
    assert bitbench.quantize_model(str(model), "w8a8-rtn").path == variant.path
    assert stand_in.made == 1


def test_quick_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotReadyError, match=r"model smollm2-135m.*call quick with create=True"):
        bitbench.quick("smollm2-135m", "gguf-q4_0")
    assert list(tmp_path.iterdir()) == []


def test_quick_takes_one_server() -> None:
    with pytest.raises(UsageError, match="one server at a time"):
        bitbench.quick("http://127.0.0.1:1", "http://127.0.0.1:2")


def test_measure_quality_passes_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[QualityOptions] = []

    def measure(
        workplace: object, options: QualityOptions, into: Path | None, observer: object
    ) -> StudyFolder:
        passed.append(options)
        assert into == tmp_path / "demo"
        return StudyFolder(into)

    write_demo(tmp_path / "demo")
    monkeypatch.setattr(variants, "measure_quality_study", measure)
    results = bitbench.measure_quality("m", "w8a8-rtn", tmp_path / "demo", corpus="a.txt")
    assert results.path == tmp_path / "demo"
    assert passed == [QualityOptions(model="m", recipes=("w8a8-rtn",), corpus=(Path("a.txt"),))]
