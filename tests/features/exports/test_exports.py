"""What is exported of a study, and Prometheus' text; the tools themselves are in tests/slow/test_exports.py."""

import sys
from pathlib import Path

import pytest

from bitbench.features.exports.content import list_exported_points
from bitbench.features.exports.tools import prometheus
from bitbench.features.interop.files import import_files
from bitbench.features.interop.readers.reading import ImportedStarts, Tool
from bitbench.machine.workplace import get_default_home
from bitbench.reports.write import StudyReport
from bitbench.util.errors import ExitCode
from tests.command_line import bitbench
from tests.features.exports.exported_study import exported_study
from tests.gallery import TWINS

DATA = Path(__file__).parents[2] / "unit" / "data" / "imports"


def test_prometheus_gets_a_family_per_figure_and_limit_with_every_label_escaped() -> None:
    lines = prometheus(exported_study(), None).splitlines()
    assert lines[4:8] == [
        "# HELP bitbench_output_throughput_tokens_per_second Tokens per second.",
        "# TYPE bitbench_output_throughput_tokens_per_second gauge",
        'bitbench_output_throughput_tokens_per_second{study="study-1",variant="bf16",engine="vllm",'
        'workload="chat"} 100.5',
        r'bitbench_output_throughput_tokens_per_second{study="study-1",variant="w4 \"quoted\" \\ back\nline {x=\"1\"}",'
        'engine="vllm",workload="chat"} 201.0',
    ]
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert names == [
        "bitbench_point_info",
        "bitbench_output_throughput_tokens_per_second",
        "bitbench_output_throughput_tokens_per_second_low",
        "bitbench_output_throughput_tokens_per_second_high",
        "bitbench_ttft_p99_seconds",
        "bitbench_ttft_p99_seconds_low",
        "bitbench_peak_bytes",
    ]
    assert 'bitbench_version="0.1",host_cpu_model="Xeon' in lines[2]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense"])
def test_a_gateway_that_does_not_answer_is_one_sentence(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = bitbench(capsys, "export", str(TWINS), "--to", "prometheus", "--url", url)
    assert said.exit_code == ExitCode.UNAVAILABLE
    assert said.err.startswith("error: prometheus did not take the figures")
    assert said.err.count("\n") == 1


def test_a_study_is_exported_with_its_intervals_and_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    third = tmp_path / "vllm-serve-3.json"
    third.write_bytes((DATA / "vllm-serve-1.json").read_bytes())
    files = [
        DATA / "vllm-serve-1.json",
        DATA / "vllm-serve-2.json",
        third,
    ]  # two starts have no interval
    folder = import_files(files, Tool.VLLM, ImportedStarts.PER_FILE, tmp_path / "out")
    records = folder.read()
    (point,) = list_exported_points(StudyReport(folder, get_default_home()).summary, records.lock)
    value, low, high = (
        figure.value for figure in point.figures if figure.name == "output_throughput"
    )
    assert point.labels["study"] == "vllm-serve-1"
    assert low < value < high
    assert point.facts["input_tokens"] == "256"
    assert "itl_p99" not in [
        figure.name for figure in point.figures
    ]  # of single trials, not of all requests

    printed = bitbench(capsys, "export", str(folder.path), "--to", "prometheus")
    assert printed.exit_code == 0
    assert 'bitbench_output_throughput_tokens_per_second{study="vllm-serve-1"' in printed.out


def test_a_missing_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    said = bitbench(capsys, "export", str(TWINS), "--to", "wandb")
    assert said.exit_code == ExitCode.UNAVAILABLE
    assert "pip install 'bitbench[wandb]'" in said.err
