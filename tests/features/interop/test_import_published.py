"""Published benchmark records: what they show once bitbench's statistics look at them."""

from pathlib import Path

import pytest

from bitbench.analysis.results.summary import StudySummary
from bitbench.features.interop.files import import_files
from bitbench.features.interop.readers.reading import ImportedStarts, Tool
from bitbench.machine.workplace import get_default_home
from bitbench.planning.plan import plan_study_points
from bitbench.records.folder import StudyFolder
from bitbench.reports.write import StudyReport
from bitbench.util.errors import ExitCode, StoreError, StudyFileError
from tests.command_line import bitbench

DATA = Path(__file__).parents[2] / "unit" / "data" / "imports"


def imported(
    name: str, into: Path, starts: ImportedStarts = ImportedStarts.PER_FILE
) -> tuple[StudyFolder, StudySummary, str]:
    folder = import_files([DATA / name], Tool.PUBLISHED_TABLE, starts, into)
    report = StudyReport(folder, get_default_home()).write()
    return (
        folder,
        StudyReport(folder, get_default_home()).summary,
        report.read_text(encoding="utf-8"),
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyFolder, StudySummary, str]:
    return imported("published-runs.md", tmp_path_factory.mktemp("runs") / "out")


@pytest.fixture(scope="module")
def separate(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyFolder, StudySummary, str]:
    return imported(
        "published-runs.md", tmp_path_factory.mktemp("separate") / "out", ImportedStarts.PER_RUN
    )


Imported = tuple[StudyFolder, StudySummary, str]


def test_every_run_is_there_and_its_statistics_are_not_taken_for_a_run(runs: Imported) -> None:
    _, summary, _ = runs
    assert len(summary.points) == 7
    assert {len(point.runs) for point in summary.points} == {3}
    smooth = next(
        point for point in summary.points if point.point.config.variant == "w8a8_smooth_gptq"
    )
    assert smooth.metrics["output_throughput"].value == pytest.approx(4800.91, abs=0.01)
    assert (basis := smooth.metrics["output_throughput"].basis) is not None
    assert basis.trial_sd == pytest.approx(58.75, abs=0.01)


def test_the_slow_run_is_flagged(runs: Imported) -> None:
    _, summary, _ = runs
    sparse = next(
        point for point in summary.points if point.point.config.variant == "w8a16_sparse_awq"
    )
    assert [outlier.value for outlier in sparse.outliers] == [1526.74]


def test_equal_variants_are_a_tie_where_each_run_was_a_start(separate: Imported) -> None:
    _, summary, _ = separate
    (ranking,) = summary.rankings
    assert ranking.workload == "base"
    ptq = next(entry for entry in ranking.entries if entry.config.variant == "w8a8_smooth_ptq")
    assert "w8a8_smooth_gptq" in {other.variant for other in ptq.undecided_with}
    assert ranking.starts_needed is None


def test_runs_of_one_start_rank_nothing(runs: Imported) -> None:
    _, summary, report = runs
    (ranking,) = summary.rankings
    assert {entry.rank_low for entry in ranking.entries} == {None}
    assert ranking.starts_needed == 3
    assert not [line for line in report.splitlines() if line.startswith("| ★")]


def test_unknown_is_unknown(runs: Imported) -> None:
    folder, summary, report = runs
    assert all("input_throughput" not in point.metrics for point in summary.points)
    rows = [line for line in report.splitlines() if line.startswith("| `w8a8_smooth_gptq`")]
    assert any(row.split("|")[2].strip() == "–" for row in rows)
    assert all(
        trial.started_at is None and trial.requests_file is None for trial in folder.trials()
    )
    assert "| Processor                       | –" in report
    assert "Warm-up" not in report


def test_repeated_names_of_runs_are_said(runs: Imported) -> None:
    _, summary, report = runs
    assert "Names of runs repeat (3 of them, such as w8a16_smooth_awq_base_run3" in report
    ids = [run.trial_id for point in summary.points for run in point.runs]
    assert len(set(ids)) == len(ids) == 21


def test_one_file_is_one_start_unless_told_otherwise(runs: Imported, separate: Imported) -> None:
    _, as_one, report = runs
    _, as_three, other = separate
    assert "Assumed: each file is one start" in report
    assert "some points have a single start" in report
    assert "each run was its own start" in other
    assert "have a single start" not in other
    for one, three in zip(as_one.points, as_three.points, strict=True):
        single, repeated = one.metrics["output_throughput"], three.metrics["output_throughput"]
        assert single.basis is not None
        assert repeated.basis is not None
        assert (single.basis.starts, repeated.basis.starts) == (1, 3)
        assert single.basis.trial_sd == repeated.basis.trial_sd
        assert single.interval is None
        assert repeated.interval is not None


def test_backends(tmp_path: Path) -> None:
    folder, summary, report = imported("published-backends.md", tmp_path / "out")
    figures = {
        point.point.config.engine: (point.metrics["ttft_s"].value, point.metrics["tpot_s"].value)
        for point in summary.points
    }
    assert figures["vLLM (awq_marlin)"] == pytest.approx((0.00751, 0.00583))
    assert figures["transformers"] == pytest.approx((0.09541, 0.06205))
    kernels = {one.config.engine: (one.kernels, one.engine_versions) for one in summary.configs}
    assert kernels["vLLM (awq_marlin)"] == (("awq_marlin",), ("0.12.0",))
    assert kernels["transformers"] == ((), ("4.51.3",))
    assert (
        "Concurrency –, input – tokens, output – tokens, arrival –, – requests per trial." in report
    )
    assert [one.name for one in folder.read().lock.host.accelerators] == ["A100-SXM4-80GB"]


def test_grids(tmp_path: Path) -> None:
    _, summary, report = imported("published-grids.rst", tmp_path / "out")
    assert (
        "72B (vLLM): 4 rows (input length 30720) are printed twice; they are kept once." in report
    )
    assert {len(point.runs) for point in summary.points} == {1}
    by_name = {point.point.name: point.metrics for point in summary.points}
    small = by_name["Qwen2-0.5B-Instruct/GPTQ-Int8 @ transformers, 1 GPU · c1-in1-out2048"]
    assert small["output_throughput"].value == 36.35
    assert small["device_peak_bytes"].value == 0.85e9
    two_gpus = by_name["Qwen2-72B-Instruct/BF16 @ vllm, 2 GPUs, Setting 1 · c1-in1-out2048"]
    assert two_gpus["output_throughput"].value == 17.68
    assert (
        by_name["Qwen2-72B-Instruct/AWQ @ vllm, 2 GPUs · c1-in129024-out2048"][
            "output_throughput"
        ].value
        == 7.78
    )
    moe = by_name["Qwen2-57B-A14B-Instruct/BF16 @ vllm, throughput script · c1000-in1000-out100"]
    assert moe["overall_throughput"].value == 5698.37
    settings = {setup.name: setup.args for setup in summary.study.engines}
    assert settings["vllm, 1 GPU, Setting 2"]["max_model_len"] == "4096"
    assert settings["vllm, 4 GPUs"] == {
        "gpus": 4,
        "gpu_memory_utilization": "0.9",
        "max_model_len": "32768",
        "enforce_eager": "False",
    }


def test_an_imported_study_cannot_be_run(tmp_path: Path) -> None:
    _, summary, _ = imported("published-backends.md", tmp_path / "out")
    study = summary.study.model_copy(update={"engines": ()})
    with pytest.raises(StudyFileError, match="can be reported, not run"):
        plan_study_points(study, {}, lambda *_: pytest.fail("there is nothing to resolve"), "cpu")


def test_a_folder_that_holds_a_study_is_left_alone(tmp_path: Path) -> None:
    imported("published-runs.md", tmp_path / "out")
    before = (tmp_path / "out" / "trials.jsonl").read_bytes()
    with pytest.raises(StoreError, match="already contains a study"):
        imported("published-backends.md", tmp_path / "out")
    assert (tmp_path / "out" / "trials.jsonl").read_bytes() == before


def test_the_command_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = bitbench(
        capsys,
        "import",
        str(DATA / "published-runs.md"),
        "--from",
        "published-table",
        "--into",
        str(tmp_path / "out"),
    )
    assert said.exit_code == 0
    assert "Assumed: each file is one start of the engine" in " ".join(said.out.split())
    again = bitbench(capsys, "report", str(tmp_path / "out"))
    assert again.exit_code == 0
    missing = bitbench(capsys, "import", str(tmp_path / "no"), "--from", "vllm")
    assert missing.exit_code == ExitCode.REFUSED
    assert "cannot be read: No such file" in missing.err
    wrong = bitbench(capsys, "import", str(DATA / "published-runs.md"), "--from", "guidellm")
    assert wrong.exit_code == ExitCode.REFUSED
    assert "is not JSON" in wrong.err
