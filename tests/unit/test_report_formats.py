"""Formats of a report: complete, and harmless whatever the names are."""

import csv
import io
import json
from pathlib import Path

import pytest

from bitbench.api.results import format_study
from bitbench.features.kernels.computing import KernelMachine, KernelRun, KernelTiming
from bitbench.records.arrow_tables import make_table_schema
from bitbench.reports.formats import Form, list_formats
from bitbench.reports.write import StudyReport
from bitbench.study.hardware import KernelDevice
from bitbench.util.errors import ExitCode
from tests.command_line import bitbench
from tests.support.reported_studies import demo_report, hostile_report
from tests.support.study_folders import write_folder


@pytest.fixture(scope="module")
def demo() -> StudyReport:
    return demo_report()


@pytest.fixture(scope="module")
def hostile() -> StudyReport:
    return hostile_report()


def test_csv_has_one_row_per_trial_and_no_formula(hostile: StudyReport, demo: StudyReport) -> None:
    rows = list(csv.DictReader(io.StringIO(format_study(demo, Form.CSV))))
    assert len(rows) == len(demo.records.trials)
    assert set(make_table_schema("trials").names) - {"folder"} == set(rows[0]) - {"outlier"}
    slow = next(one for one in rows if one["trial"] == "twin-interactive-1-1")
    assert (float(slow["output_throughput"]), slow["outlier"]) == (80.0, "True")
    assert next(one for one in rows if one["engine"] == "broken")["output_throughput"] == ""
    engines = [
        one["engine"] for one in csv.DictReader(io.StringIO(format_study(hostile, Form.CSV)))
    ]
    assert "'=1+1" in engines


def test_json_has_the_figures_and_what_they_mean(hostile: StudyReport, demo: StudyReport) -> None:
    content = json.loads(format_study(demo, Form.JSON))
    assert content["bitbench_report"] == 1
    assert content["definitions"]["ttft_s"]["unit"] == "s"
    assert len(content["trials"]) == len(demo.records.trials)
    assert content["summary"]["rankings"][0]["entries"][0]["config"]["engine"] == "quick"
    assert "hidden" not in format_study(hostile, Form.JSON)


KERNELS = KernelRun(
    machine=KernelMachine(
        device=KernelDevice.CPU, cpu_model="Xeon", threads=2, torch="2.13", read_bytes_per_s=2e10, flops_per_s=1e12,
        cold_bytes=1, seed=0,
    ),
    timings=(
        KernelTiming(
            case="vptq", in_features=1024, out_features=1024, batch=1, weight_bytes=400_000, error=1e-3,
            labels={"main_centroids": 4096, "residual_centroids": 256, "activation_bits": 8}, seconds=(2e-5,) * 9,
        ),
        KernelTiming(
            case="torch-linear", in_features=1024, out_features=1024, batch=1, weight_bytes=2_097_152, error=0.0,
            seconds=(4e-5,) * 9,
        ),
    ),
)  # fmt: skip


def test_the_command_writes_where_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(write_folder("demo", tmp_path / "study").path)
    there = bitbench(
        capsys, "report", folder, "--format", "csv", "-o", str(tmp_path / "a" / "b.csv")
    )
    assert there.exit_code == 0
    assert (tmp_path / "a" / "b.csv").read_text().startswith("study,trial,kind")
    assert "--output needs --format" in bitbench(capsys, "report", folder, "-o", "x").err


def test_an_unknown_form_is_answered_with_the_known_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = bitbench(capsys, "report", str(tmp_path), "--format", "markdown")
    assert wrong.exit_code == ExitCode.USAGE
    assert all(form in wrong.err for form in list_formats())


def test_kernel_tables_come_from_kernel_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "records.json").write_text(KERNELS.model_dump_json())
    said = bitbench(capsys, "report", str(tmp_path), "--format", "markdown-kernels")
    assert said.exit_code == 0
    assert "| time (ms) | torch-linear (ms) |" in said.out
    assert " 2.00× [2.00, 2.00] |" in said.out
    nothing = bitbench(capsys, "report", str(tmp_path / "no"), "--format", "markdown-kernels")
    assert "has no kernel records" in nothing.err
    (tmp_path / "records.json").write_text("{}")
    assert (
        "cannot be read as kernel records"
        in bitbench(capsys, "report", str(tmp_path), "--format", "markdown-kernels").err
    )
