"""What is exported of a study, and Prometheus' text; the tools themselves are in tests/slow/test_exports.py."""

import sys
from pathlib import Path

import pytest

from bitbench.features.exports.command import exporter_for_command
from bitbench.features.exports.content import ExportError, Target, exported
from bitbench.features.exports.to_prometheus import export, exposition
from bitbench.features.interop.files import import_files
from bitbench.features.interop.readers.reading import ImportedStarts, Tool
from bitbench.measure.workplace import default_home
from bitbench.reports.write import StudyReport
from tests.command_line import bitbench
from tests.features.exports.exported_study import exported_study

DATA = Path(__file__).parents[2] / "unit" / "data" / "imports"


def test_prometheus_gets_a_family_per_figure_and_limit_with_every_label_escaped() -> None:
    lines = exposition(exported_study()).splitlines()
    assert lines[:4] == [
        "# HELP bitbench_output_throughput_tokens_per_second Tokens per second.",
        "# TYPE bitbench_output_throughput_tokens_per_second gauge",
        'bitbench_output_throughput_tokens_per_second{study="study-1",variant="bf16",engine="vllm",'
        'workload="chat"} 100.5',
        r'bitbench_output_throughput_tokens_per_second{study="study-1",variant="w4 \"quoted\" \\ back\nline {x=\"1\"}",'
        'engine="vllm",workload="chat"} 201.0',
    ]
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert names == [
        "bitbench_output_throughput_tokens_per_second",
        "bitbench_output_throughput_tokens_per_second_low",
        "bitbench_output_throughput_tokens_per_second_high",
        "bitbench_ttft_p99_seconds",
        "bitbench_ttft_p99_seconds_low",
        "bitbench_peak_bytes",
        "bitbench_study_info",
    ]
    assert lines[-1].startswith('bitbench_study_info{study="study-1",bitbench_version="0.1"')


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense"])
def test_a_gateway_that_does_not_answer_is_named(url: str) -> None:
    with pytest.raises(ExportError, match=r"metrics/job/bitbench/study/study-1 cannot be reached .*check --url"):
        export(exported_study(), url)


def test_a_study_is_exported_with_its_intervals_and_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    third = tmp_path / "vllm-serve-3.json"
    third.write_bytes((DATA / "vllm-serve-1.json").read_bytes())
    files = [DATA / "vllm-serve-1.json", DATA / "vllm-serve-2.json", third]  # two starts have no interval
    folder = import_files(files, Tool.VLLM, ImportedStarts.PER_FILE, tmp_path / "out", "nightly")
    records = folder.read()
    study = exported(StudyReport(folder, default_home()).summary, records.lock)
    (point,) = study.points
    (throughput,) = [figure for figure in point.figures if figure.name == "output_throughput"]
    assert study.name == "nightly"
    assert throughput.low is not None
    assert throughput.high is not None
    assert throughput.low < throughput.value < throughput.high
    assert point.facts["input_tokens"] == "256"
    assert "itl_p99" not in [figure.name for figure in point.figures]  # of single trials, not of all requests

    printed = bitbench(capsys, "export", str(folder.path), "--to", "prometheus")
    assert printed.exit_code == 0
    assert 'bitbench_output_throughput_tokens_per_second{study="nightly"' in printed.out


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delitem(sys.modules, "bitbench.features.exports.to_wandb", raising=False)
    with pytest.raises(ExportError, match=r"pip install 'bitbench\[wandb\]'"):
        exporter_for_command(Target.WANDB)
