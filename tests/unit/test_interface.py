"""The Python interface: its names, what importing it costs, and its results as objects and tables."""

import inspect
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import bitbench
from bitbench.feature import collect_offers
from bitbench.features.interop.files import import_files
from bitbench.features.interop.readers.reading import ImportedStarts, Tool
from bitbench.records.folder import StudyFolder
from bitbench.records.tables import TABLES
from bitbench.records.trial import Outcome
from bitbench.util.errors import StoreError
from tests.support.synthetic import demo_study

RESULT_FILE = Path(__file__).parent / "data" / "imports" / "vllm-serve-1.json"
FUNCTIONS = {"compare", "load", "plan", "read", "recommend", "report", "run"}
TYPES = {
    "BitbenchError",
    "Comparison",
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


def test_importing_it_brings_nothing_heavy_and_packages_do_not_cover_functions() -> None:
    script = """
import sys, bitbench
heavy = {"torch", "numpy", "pyarrow", "altair", "pydantic", "scipy", "duckdb"} & set(sys.modules)
assert not heavy, heavy
import bitbench.loadgen.workers, bitbench.reports.document, bitbench.api.compare
assert callable(bitbench.load) and callable(bitbench.report) and callable(bitbench.compare)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def results(tmp_path: Path) -> bitbench.Results:
    return bitbench.read(
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


def test_trials_are_those_that_enter_figures(tmp_path: Path) -> None:
    _, trials, instances, lock = demo_study()
    changed = {"kind": "measured", "outcome": Outcome.CLIENT_BOUND, "cause": "late"}
    rejected = trials[0].model_copy(update=changed)
    with StudyFolder(tmp_path / "demo").open_writer() as writer:
        writer.write_study("name: demo\n")
        writer.write_lock(lock)
        for instance in instances:
            writer.append_instance(instance)
        for trial in (rejected, *trials):
            writer.append_trial(trial, None)
    results = bitbench.read(tmp_path / "demo")
    ended_well = sum(trial.kind == "measured" and trial.outcome is Outcome.OK for trial in trials)
    warm_ups = sum(trial.kind == "warmup" for trial in trials)
    assert {(trial.kind, trial.outcome) for trial in results.trials} == {("measured", Outcome.OK)}
    assert len(results.trials) == results.trials.to_arrow().num_rows == ended_well
    assert len(results.warm_ups) == results.warm_ups.to_arrow().num_rows == warm_ups > 0
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
        bitbench.read(tmp_path)


def test_a_study_made_in_python_is_planned_like_a_file(tmp_path: Path) -> None:
    study = bitbench.Study.model_validate(
        {"name": "x", "engines": ["null"], "workloads": ["interactive"]}
    )
    path = tmp_path / "x.yaml"
    path.write_text("name: x\nengines: [null]\nworkloads: [interactive]\n")
    assert bitbench.plan(study) == bitbench.plan(str(path)) == bitbench.plan(path)
