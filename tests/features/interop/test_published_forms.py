"""The forms in which benchmark records are published: valid, complete, and harmless whatever the names are."""

import warnings
from pathlib import Path

import pytest
from docutils.core import publish_doctree
from docutils.nodes import Element, document, row, table
from markdown_it import MarkdownIt

from bitbench.api.results import format_study
from bitbench.features.interop import forms, rst
from bitbench.features.interop.files import import_files
from bitbench.features.interop.readers import published_backends
from bitbench.features.interop.readers.reading import ImportedStarts, Tool
from bitbench.features.interop.rst import escape_rst, format_rst_grid_table
from bitbench.features.interop.words import imported_section
from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder
from bitbench.reports.document.markdown import render_markdown_section
from bitbench.reports.write import StudyReport
from bitbench.study.plan import ImportedFile, ImportSource
from tests.command_line import bitbench
from tests.features.interop.test_import_published import DATA
from tests.support.eight_configs import eight_configs
from tests.support.reported_studies import HOSTILE, demo_report, hostile_report, reported


@pytest.fixture(scope="module")
def demo() -> StudyReport:
    return demo_report()


@pytest.fixture(scope="module")
def hostile() -> StudyReport:
    return hostile_report()


def imported(folder: StudyFolder) -> StudyReport:
    return StudyReport(folder, get_default_home())


def parsed(text: str) -> document:
    """Fails on anything that docutils has to say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = {
            "report_level": 1,
            "halt_level": 1,
            "file_insertion_enabled": False,
            "raw_enabled": False,
        }
        return publish_doctree(text, settings_overrides=settings)


def points_of(one: Element) -> list[list[str]]:
    return [[entry.astext() for entry in line.children] for line in one.findall(row)]


def test_rst_is_valid_and_has_every_point_with_its_reason(demo: StudyReport) -> None:
    tree = parsed(format_study(demo, "rst-by-length"))
    tables = [points_of(one) for one in tree.findall(table)]
    assert len(tables) == 2  # one engine kind, two batch sizes
    header, *rows = tables[0]
    assert header[:5] == ["Model", "Input Length", "Quantization", "Devices", "Speed (tokens/s)"]
    assert len(rows) == 5  # with the one that failed and the one that was refused
    notes = [line[-1] for line in rows]
    assert any(note.startswith("unsupported (2): Quant type (uint8b128)") for note in notes)
    assert any(note.startswith("refused: it runs decompressed") for note in notes)
    assert any("1 outlier flagged" in note for note in notes)
    assert "Requests/s" in tables[1][0]


def test_rst_is_valid_whatever_the_names_are(hostile: StudyReport) -> None:
    tree = parsed(format_study(hostile, "rst-by-length"))
    text = tree.astext()
    assert '<script>alert("x")</script>' in text  # as text, which is what it is
    assert "a|b" in text
    assert "hidden" not in text
    assert len(list(tree.findall(table))) == len(HOSTILE)


def test_a_grid_table_joins_what_repeats() -> None:
    rows = [["m", "1", "a"], ["m", "1", "b"], ["m", "2", "a"], ["n", "2", "a"]]
    tree = parsed(format_rst_grid_table(["x", "y", "z"], rows, merged=2))
    _, *body = [[entry.get("morerows", 0) for entry in line.children] for line in tree.findall(row)]  # type: ignore[attr-defined]
    assert body == [[2, 1, 0], [0], [0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    "text",
    ["- x", "1. x", "(a) b", "x::", ">>> y", ".. z", "A.", "-", ":f: g", "日本 語", "e\u0301"],
)
def test_rst_text_is_only_text(text: str) -> None:
    tree = parsed(format_rst_grid_table(["a"], [[escape_rst(text)]]))
    assert points_of(next(iter(tree.findall(table))))[1] == [text]


def test_the_markdown_of_runs_can_be_imported_again(demo: StudyReport, tmp_path: Path) -> None:
    (tmp_path / "out.md").write_text(format_study(demo, "markdown-runs"), encoding="utf-8")
    folder = import_files(
        [tmp_path / "out.md"], Tool.PUBLISHED_TABLE, ImportedStarts.PER_RUN, tmp_path / "again"
    )
    again = StudyReport(folder, get_default_home()).summary
    known = {
        (point.point.config.name, point.point.workload): point.metrics
        for point in demo.summary.points
    }
    assert len(again.points) == 6
    for point in again.points:
        before = known[point.point.config.name, point.point.workload]
        for metric in ("output_throughput", "latency_s"):
            assert point.metrics[metric].value == pytest.approx(before[metric].value, rel=0.01)


def test_the_markdown_of_runs_says_what_such_records_leave_out(demo: StudyReport) -> None:
    text = format_study(demo, "markdown-runs")
    assert "## Configuration: batch_size=1, input_len=128, output_len=64 (`interactive`)" in text
    assert "Memory peak (MiB)" in text
    assert "Quality: not measured." in text
    assert "Outlier: `twin`: output throughput 80.00 tok/s" in text
    assert "2–3 **twin**" in text
    assert "unsupported: Quant type (uint8b128)" in text.replace("\\_", "_")
    assert "`refused`: it runs decompressed" in text
    assert "Intel(R) Xeon(R) Platinum 8581C" in text


def test_an_imported_record_shows_its_outlier_its_tie_and_what_is_unknown(tmp_path: Path) -> None:
    folder = import_files(
        [DATA / "published-runs.md"], Tool.PUBLISHED_TABLE, ImportedStarts.PER_RUN, tmp_path / "out"
    )
    text = format_study(imported(folder), "markdown-runs")
    assert "Outlier: `w8a16_sparse_awq`: output throughput 1,526.74 tok/s" in text
    ranks = {
        line.split("**")[1].replace("\\", ""): line.split("**")[0].strip("- ")
        for line in text.splitlines()
        if line.startswith("- ") and "**:" in line and "tok/s" in line
    }
    assert "–" in ranks["w8a8_smooth_gptq"]
    assert ranks["w8a8_smooth_ptq"].startswith("1–")
    line = next(line for line in text.splitlines() if "| `w8a8_smooth_ptq`" in line)
    assert [point.strip() for point in line.split("|")][7] == "–"  # input throughput
    assert not set("ÂÃâð\ufffd") & set(text)


def test_backends_have_their_kernel_beside_their_times(demo: StudyReport) -> None:
    text = format_study(demo, "markdown-backends")
    lines = {
        line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| **")
    }
    assert "CPUInt8ScaledMMLinearKernel" in lines["**Kernel**"]
    assert "] ms |" in " ".join(lines["**TTFT**"].split())
    assert "unsupported (2)" in lines["**Failed**"]


def test_backends_can_be_imported_again(tmp_path: Path) -> None:
    folder = import_files(
        [DATA / "published-backends.md"],
        Tool.PUBLISHED_TABLE,
        ImportedStarts.PER_FILE,
        tmp_path / "once",
    )
    once = imported(folder)
    (tmp_path / "out.md").write_text(format_study(once, "markdown-backends"))
    second = import_files(
        [tmp_path / "out.md"], Tool.PUBLISHED_TABLE, ImportedStarts.PER_FILE, tmp_path / "again"
    )
    again = StudyReport(second, get_default_home()).summary
    for metric in ("ttft_s", "tpot_s"):
        before = {
            point.point.config.engine: point.metrics[metric].value for point in once.summary.points
        }
        after = {
            point.point.config.engine.replace("\\", ""): point.metrics[metric].value
            for point in again.points
        }
        assert after == pytest.approx(before, rel=1e-3)


def test_intervals_of_backends_are_no_obstacle_to_reading_them(demo: StudyReport) -> None:
    reading = published_backends.read(format_study(demo, "markdown-backends"))
    known = {run.engine.name: run.metrics.ttft_s for run in reading.runs}
    last = demo.summary.rankings[-1].workload
    for point in demo.summary.list_points(last):
        wanted = point.metrics["ttft_s"].value if "ttft_s" in point.metrics else None
        assert known[point.point.config.engine] == (
            wanted if wanted is None else pytest.approx(wanted, rel=1e-2)
        )


@pytest.mark.parametrize("form", ["markdown-runs", "markdown-backends"])
def test_names_do_no_harm_in_markdown(hostile: StudyReport, form: str) -> None:
    text = format_study(hostile, form)
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert "<script" not in html
    assert "\u202e" not in html
    assert "x" * 500 not in html
    assert "hidden" not in html


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = import_files(
        [DATA / "published-grids.rst"],
        Tool.PUBLISHED_TABLE,
        ImportedStarts.PER_FILE,
        tmp_path / "study",
    )
    said = bitbench(capsys, "report", str(folder.path), "--format", "rst-by-length")
    parsed(said.out)
    assert "gpu\\_memory\\_utilization=1.0" in said.out  # a setting as a column


def test_models_stand_apart_in_the_markdown_of_runs() -> None:
    study = reported(*eight_configs(("m-7b", "tiny-2m")))
    assert "(`c1`), `tiny-2m`" in format_study(study, "markdown-runs")


def test_an_import_names_its_files_and_what_was_assumed(demo: StudyReport) -> None:
    origin = ImportSource(
        tool="vllm", files=(ImportedFile(name="a.json", sha256="ab" * 32),), notes=("a <note>",)
    )
    text = "\n".join(render_markdown_section(imported_section(origin, demo.summary)))
    assert f"- Files: `a.json` sha256 `{'ab' * 8}`." in text
    assert "- a &lt;note&gt;" in text
    assert "imported" not in demo.summary.parts


def test_the_renderer_reads_no_text_back() -> None:
    assert "re" not in vars(rst)
    assert "re" not in vars(forms)
