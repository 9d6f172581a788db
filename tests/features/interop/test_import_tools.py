"""Result files of other tools; the samples are small files in the layout that each tool documents or writes."""

import json
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from bitbench.analysis.results.summary import PointSummary, StudySummary
from bitbench.features.interop.files import import_files, read_tool_file
from bitbench.features.interop.readers.reading import ImportedStarts, ImportFileError, Tool
from bitbench.machine.workplace import get_default_home
from bitbench.reports.document.terminal import render_in_terminal
from bitbench.reports.study import build_study_report
from bitbench.reports.write import StudyReport
from bitbench.study.study_file import read_study
from bitbench.study.workload import Arrival

DATA = Path(__file__).parents[2] / "unit" / "data" / "imports"


def imported(
    tool: Tool, into: Path, *names: str, starts: ImportedStarts = ImportedStarts.PER_FILE
) -> tuple[StudySummary, str]:
    folder = import_files([DATA / name for name in names], tool, starts, into)
    report = StudyReport(folder, get_default_home())
    return report.summary, report.write().read_text(encoding="utf-8")


def means(point: PointSummary) -> dict[str, float]:
    return {name: estimate.value for name, estimate in point.metrics.items()}


def test_vllm_files_are_starts(tmp_path: Path) -> None:
    summary, report = imported(
        Tool.VLLM, tmp_path / "out", "vllm-serve-1.json", "vllm-serve-2.json"
    )
    (point,) = summary.points
    assert (basis := point.metrics["output_throughput"].basis) is not None
    assert basis.starts == 2
    assert means(point)["output_throughput"] == pytest.approx((320.5 + 318.9) / 2)
    assert means(point)["ttft_s"] == pytest.approx((0.0952 + 0.0970) / 2)
    assert means(point)["itl_p99_s"] == pytest.approx(0.0315)
    assert "latency_s" not in point.metrics
    assert "2 requests failed" in report
    assert "closed loop, 64 requests per trial" in report


def test_the_first_start_of_each_config_is_in_one_block(tmp_path: Path) -> None:
    """Else no two of them would have a block in common, and nothing could be told apart."""
    files = []
    for model, speed in (("bf16", 100.0), ("awq", 200.0)):
        for start in range(3):
            content = json.loads((DATA / "vllm-serve-1.json").read_text())
            content |= {"model_id": model, "output_throughput": speed + start}
            files.append(tmp_path / f"{model}-{start}.json")
            files[-1].write_text(json.dumps(content))
    folder = import_files(files, Tool.VLLM, ImportedStarts.PER_FILE, tmp_path / "out")
    assert {trial.block for trial in folder.trials()} == {0, 1, 2}
    assert StudyReport(folder, tmp_path).summary.rankings[0].entries[1].undecided_with == ()


def test_vllm_lengths_are_means_of_what_was_completed() -> None:
    (run,) = read_tool_file(Tool.VLLM, (DATA / "vllm-serve-1.json").read_bytes()).runs
    assert (run.workload.input_tokens, run.workload.output_tokens, run.workload.concurrency) == (
        256,
        128,
        8,
    )
    assert run.workload.arrival.kind is Arrival.CLOSED_LOOP
    assert run.started_at == "2026-11-02T10:15:00"


def test_sglang(tmp_path: Path) -> None:
    summary, report = imported(Tool.SGLANG, tmp_path / "out", "sglang-serving.jsonl")
    assert [point.point.workload for point in summary.points] == [
        "c16-in256-out128",
        "in256-out128-rate4",
    ]
    assert means(summary.points[0])["latency_s"] == pytest.approx(1.5)
    assert "input_throughput" not in summary.points[0].metrics
    assert (
        "Concurrency –, input 256 tokens, output 128 tokens, arrival –, 200 requests per trial."
        in report
    )
    assert summary.configs[0].engine_versions == ("0.5.3",)


def test_guidellm(tmp_path: Path) -> None:
    summary, report = imported(Tool.GUIDELLM, tmp_path / "out", "guidellm.json")
    assert [point.point.workload for point in summary.points] == [
        "c1-in256-out128",
        "c8-in256-out128",
        "in256-out128-rate4",
    ]
    assert means(summary.points[1])["output_throughput"] == 620.0
    assert means(summary.points[1])["tpot_s"] == pytest.approx(0.0094)
    assert means(summary.points[1])["itl_p99_s"] == pytest.approx(0.015)
    assert summary.points[0].point.config.name == "Qwen/Qwen3-8B"
    assert "Run 2: 3 requests failed" in report


def test_aiperf(tmp_path: Path) -> None:
    summary, report = imported(Tool.AIPERF, tmp_path / "out", "aiperf.json")
    (point,) = summary.points
    assert point.point.name == "Qwen/Qwen3-0.6B · c10-in550-out96"
    assert means(point) == pytest.approx(
        {
            "output_throughput": 489.6,
            "latency_s": 1.9,
            "ttft_s": 0.15,
            "tpot_s": 0.0185,
            "request_throughput": 5.1,
            "itl_p99_s": 0.033,
        }
    )
    assert "2 requests failed" in report


def test_aiperf_with_phases() -> None:
    content = json.loads((DATA / "aiperf.json").read_text())
    content["input_config"] = {
        "models": {"items": [{"name": "m"}]},
        "phases": [{"name": "warmup", "concurrency": 2}, {"name": "profiling", "concurrency": 6}],
    }
    (run,) = read_tool_file(Tool.AIPERF, json.dumps(content).encode()).runs
    assert (run.variant, run.workload.concurrency) == ("m", 6)


def test_llama_bench(tmp_path: Path) -> None:
    summary, report = imported(Tool.LLAMA_BENCH, tmp_path / "out", "llama-bench.json")
    prompt, generation = summary.points
    assert [prompt.point.workload, generation.point.workload] == ["pp512", "tg128"]
    assert summary.primary_metric == "latency_s"  # the only figure that both tests have
    assert (basis := prompt.metrics["input_throughput"].basis) is not None
    assert basis.trials == 5
    assert means(generation)["output_throughput"] == pytest.approx(128 / 9.814, rel=1e-4)
    assert summary.configs[0].memory.weight_bytes_stored == 4677120000
    assert summary.configs[0].engine_versions == ("5163 8cf427ff",)
    assert "| Processor                       | AMD Ryzen 7 7800X3D" in report


@pytest.mark.parametrize("tool", [tool for tool in Tool if tool is not Tool.PUBLISHED_TABLE])
@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"[1]", b"null", b'{"a": 1', b"\xff\xfe", b"## no JSON"]
)
def test_what_is_no_result_is_refused_in_a_sentence(
    tool: Tool, content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(ImportFileError, match=r"result\.json") as refused:
        import_files([path], tool, ImportedStarts.PER_FILE, tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_result_without_any_request_is_a_result(tmp_path: Path) -> None:
    content = json.loads((DATA / "vllm-serve-1.json").read_text())
    content |= {
        "completed": 0,
        "failed": 64,
        "output_throughput": 0.0,
        "request_throughput": 0.0,
        "mean_ttft_ms": 0.0,
    }
    path = tmp_path / "empty.json"
    path.write_text(json.dumps(content))
    folder = import_files([path], Tool.VLLM, ImportedStarts.PER_FILE, tmp_path / "out")
    report = StudyReport(folder, get_default_home()).write().read_text(encoding="utf-8")
    assert "**invalid**" in report
    assert "No request was completed." in report


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            '{"model_id": "x", "completed": 1, "duration": 1, "request_throughput": 1, '
            '"max_concurrency": 1e9, "num_prompts": 2e9}',
            "concurrency",
        ),
        ("[" * 100_000, "RecursionError"),
    ],
    ids=["too many streams", "too deep"],
)
def test_what_no_record_can_hold_is_refused(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(content)
    with pytest.raises(
        ImportFileError, match=r"result\.json is not a known result format of vllm"
    ) as refused:
        import_files([path], Tool.VLLM, ImportedStarts.PER_FILE, tmp_path / "out")
    assert said.lower() in str(refused.value).lower()
    assert len(str(refused.value)) < 1_000


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a | b || c",
    "`code` **bold** [link](javascript:alert(1))",
    "\u202egnp.exe\u202c",
    "line\nbreak\r\x1b[31mred\x00",
    "x" * 10_000,
)


@pytest.mark.parametrize(
    "name", HOSTILE, ids=["script", "quotes", "pipes", "markdown", "right-to-left", "lines", "long"]
)
def test_hostile_names_do_no_harm(name: str, tmp_path: Path) -> None:
    content = json.loads((DATA / "vllm-serve-1.json").read_text())
    content |= {"model_id": name, "backend": name, "label": name}
    path = tmp_path / ("hostile<b>|.json" if len(name) < 100 else "hostile.json")
    path.write_text(json.dumps(content))
    folder = import_files([path], Tool.VLLM, ImportedStarts.PER_FILE, tmp_path / "out")
    summary = StudyReport(folder, get_default_home()).summary
    report = StudyReport(folder, get_default_home()).write().read_text(encoding="utf-8")
    html = str(MarkdownIt("commonmark").enable("table").render(report))
    for bad in ("<script", "<b>", 'javascript:alert(1)"', "\u202e", "\x1b", "\x00"):
        assert bad not in html
    pictures = re.findall(r"<img[^>]*>", html)  # the report's own figures, and no other
    assert all(re.match(r'<img src="figures/[\w.-]+"', one) for one in pictures), pictures
    assert max(map(len, report.splitlines())) < 2_000
    for table in html.split("<table>")[1:]:
        rows = table.split("</table>")[0].split("<tr>")[1:]
        assert len({row.count("<td") + row.count("<th") for row in rows}) == 1
    console = Console(width=100, record=True, force_terminal=False)
    with console.capture() as captured:
        render_in_terminal(build_study_report(summary, folder.read().lock), console)
    assert not {"\u202e", "\x1b", "\x00"} & set(captured.get())
    assert len(captured.get()) < 10_000


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        (Tool.VLLM, "vllm-serve-1.json"),
        (Tool.SGLANG, "sglang-serving.jsonl"),
        (Tool.GUIDELLM, "guidellm.json"),
        (Tool.AIPERF, "aiperf.json"),
        (Tool.LLAMA_BENCH, "llama-bench.json"),
        (Tool.PUBLISHED_TABLE, "published-runs.md"),
    ],
)
def test_the_study_file_of_an_import_can_be_read(tmp_path: Path, tool: Tool, name: str) -> None:
    folder = import_files([DATA / name], tool, ImportedStarts.PER_FILE, tmp_path / "out")
    assert read_study(folder.study_file)[0] == folder.read().study
    assert folder.study_file.read_text().startswith(
        "# Written by `bitbench import`: it can be reported, not run.\n"
    )
