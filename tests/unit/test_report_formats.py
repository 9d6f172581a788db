"""The forms in which benchmark records are published: valid, complete, and harmless whatever the names are."""

import csv
import io
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from docutils.core import publish_doctree
from docutils.nodes import Element, document, row, table
from markdown_it import MarkdownIt

from bitbench.core.asked.kernel_device import KernelDevice
from bitbench.core.asked.study import EngineSetup
from bitbench.core.asked.workload import Workload
from bitbench.core.cell import Cell, Contender, Plan
from bitbench.core.found.summary import StudySummary
from bitbench.core.recorded.study import StudyRecords
from bitbench.core.recorded.trial import InstanceRecord, Outcome, TrialRecord
from bitbench.features.kernels.types import KernelMachine, KernelRun, KernelTiming
from bitbench.ground.exit_codes import ExitCode
from bitbench.imports import vendor_backends
from bitbench.imports.choices import Starts, Tool
from bitbench.lab.imports import import_files
from bitbench.lab.study import Lab
from bitbench.report.document.rst import escape, grid_table
from bitbench.report.forms.choices import Form
from bitbench.report.forms.registry import STUDY_FORMS
from bitbench.report.forms.tidy import json_text, trial_columns
from bitbench.report.study import study_document
from bitbench.store.folder import StudyFolder
from tests.command_line import bitbench
from tests.unit.synthetic import demo_study, make_lock, make_plan, make_trial, speed_metrics, summarize
from tests.unit.test_import_seeds import DATA

HOSTILE = [
    '<script>alert("x")</script>',
    "a|b",
    "`tick`",
    "*star*",
    "under_",
    "\u202eright",
    "=1+1",
    "x" * 10_000,
    "::",
]


@dataclass(frozen=True)
class Measured:
    """A study whose records were summarized."""

    summary: StudySummary
    records: StudyRecords

    def as_form(self, form: Form) -> str:
        return STUDY_FORMS[form](self.summary, self.records)

    def as_json(self) -> str:
        return json_text(self.summary, self.records.trials, study_document(self.summary, self.records.lock))


def measured(plan: Plan, trials: list[TrialRecord], instances: Sequence[InstanceRecord] = ()) -> Measured:
    return Measured(summarize(plan, trials, instances), StudyRecords("made-up", make_lock(plan), trials, instances))


def imported(folder: StudyFolder) -> Measured:
    return Measured(Lab().summary(folder), folder.read())


@pytest.fixture(scope="module")
def demo() -> Measured:
    plan, trials, instances, _ = demo_study()
    return measured(plan, trials, instances)


@pytest.fixture(scope="module")
def hostile() -> Measured:
    """Names and causes that try to break out."""
    workload = Workload(name="shape", concurrency=1, input_tokens=16, output_tokens=8)
    engines = tuple(EngineSetup(name=name, engine=name, args={"flag": name, "api-key": "hidden"}) for name in HOSTILE)
    plan = make_plan(["one"], [workload])
    contenders = [Contender(variant=f"m/{name}", engine=name) for name in HOSTILE]
    cells = tuple(Cell(contender=one, workload="shape") for one in contenders)
    plan = plan.model_copy(update={"study": plan.study.model_copy(update={"engines": engines}), "cells": cells})
    trials = [
        make_trial(cell, 0, number, metrics=speed_metrics(workload, 100.0 + number))
        if number % 2
        else make_trial(cell, 0, number, outcome=Outcome.CRASHED, cause=cell.contender.engine)
        for number, cell in enumerate(cells)
    ]
    return measured(plan, trials)


def parsed(text: str) -> document:
    """Fails on anything that docutils has to say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = {"report_level": 1, "halt_level": 1, "file_insertion_enabled": False, "raw_enabled": False}
        return publish_doctree(text, settings_overrides=settings)


def cells_of(one: Element) -> list[list[str]]:
    return [[entry.astext() for entry in line.children] for line in one.findall(row)]


def test_rst_is_valid_and_has_every_cell_with_its_reason(demo: Measured) -> None:
    tree = parsed(demo.as_form(Form.VENDOR_RST))
    tables = [cells_of(one) for one in tree.findall(table)]
    assert len(tables) == 2  # one engine kind, two batch sizes
    header, *rows = tables[0]
    assert header[:5] == ["Model", "Input Length", "Quantization", "Devices", "Speed (tokens/s)"]
    assert len(rows) == 5  # with the one that failed and the one that was refused
    notes = [line[-1] for line in rows]
    assert any(note.startswith("unsupported (2): Quant type (uint8b128)") for note in notes)
    assert any(note.startswith("refused: it runs decompressed") for note in notes)
    assert any("1 outlier flagged" in note for note in notes)
    assert "Requests/s" in tables[1][0]


def test_rst_is_valid_whatever_the_names_are(hostile: Measured) -> None:
    tree = parsed(hostile.as_form(Form.VENDOR_RST))
    text = tree.astext()
    assert '<script>alert("x")</script>' in text  # as text, which is what it is
    assert "a|b" in text
    assert "hidden" not in text
    assert len(list(tree.findall(table))) == len(HOSTILE)


def test_a_grid_table_joins_what_repeats() -> None:
    rows = [["m", "1", "a"], ["m", "1", "b"], ["m", "2", "a"], ["n", "2", "a"]]
    tree = parsed(grid_table(["x", "y", "z"], rows, merged=2))
    _, *body = [[entry.get("morerows", 0) for entry in line.children] for line in tree.findall(row)]  # type: ignore[attr-defined]
    assert body == [[2, 1, 0], [0], [0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    "text", ["- x", "1. x", "(a) b", "x::", ">>> y", ".. z", "A.", "-", ":f: g", "日本 語", "e\u0301"]
)
def test_rst_text_is_only_text(text: str) -> None:
    tree = parsed(grid_table(["a"], [[escape(text)]]))
    assert cells_of(next(iter(tree.findall(table))))[1] == [text]


def test_the_markdown_of_runs_can_be_imported_again(demo: Measured, tmp_path: Path) -> None:
    (tmp_path / "out.md").write_text(demo.as_form(Form.VENDOR_MD), encoding="utf-8")
    folder = import_files([tmp_path / "out.md"], Tool.VENDOR_TABLE, Starts.PER_RUN, tmp_path / "again")
    again = Lab().summary(folder)
    known = {(cell.cell.contender.name, cell.cell.workload): cell.metrics for cell in demo.summary.cells}
    assert len(again.cells) == 6
    for cell in again.cells:
        before = known[cell.cell.contender.name, cell.cell.workload]
        for metric in ("output_throughput", "latency_s"):
            assert cell.metrics[metric].mean == pytest.approx(before[metric].mean, rel=0.01)


def test_the_markdown_of_runs_says_what_such_records_leave_out(demo: Measured) -> None:
    text = demo.as_form(Form.VENDOR_MD)
    assert "## Configuration: batch_size=1, input_len=128, output_len=64 (`interactive`)" in text
    assert "Memory peak (MiB)" in text
    assert "Quality: not measured." in text
    assert "Outlier: `twin`: output throughput 80.00 tok/s" in text
    assert "2–3 (tie) **twin**" in text
    assert "unsupported: Quant type (uint8b128)" in text.replace("\\_", "_")
    assert "`refused`: it runs decompressed" in text
    assert "Intel(R) Xeon(R) Platinum 8581C" in text


def test_an_imported_record_shows_its_outlier_its_tie_and_what_is_unknown(tmp_path: Path) -> None:
    folder = import_files([DATA / "seed-runs.md"], Tool.VENDOR_TABLE, Starts.PER_FILE, tmp_path / "out")
    text = imported(folder).as_form(Form.VENDOR_MD)
    assert "Outlier: `w8a16_sparse_awq`: output throughput 1,526.74 tok/s" in text
    ranks = {
        line.split("**")[1].replace("\\", ""): line.split("**")[0].strip("- ")
        for line in text.splitlines()
        if line.startswith("- ") and "**:" in line and "tok/s" in line
    }
    assert ranks["w8a8_smooth_gptq"].endswith("(tie)")
    assert ranks["w8a8_smooth_ptq"].startswith("1–")
    assert ranks["w8a8_smooth_ptq"].endswith("(tie)")
    line = next(line for line in text.splitlines() if "| `w8a8_smooth_ptq`" in line)
    assert [cell.strip() for cell in line.split("|")][7] == "–"  # input throughput
    assert not set("ÂÃâð\ufffd") & set(text)


def test_backends_have_their_kernel_beside_their_times(demo: Measured) -> None:
    text = demo.as_form(Form.BACKEND_MD)
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| **")}
    assert "CPUInt8ScaledMMLinearKernel" in lines["**Kernel**"]
    assert "] ms |" in " ".join(lines["**TTFT**"].split())
    assert "unsupported (2)" in lines["**Failed**"]


def test_backends_can_be_imported_again(tmp_path: Path) -> None:
    folder = import_files([DATA / "seed-backends.md"], Tool.VENDOR_TABLE, Starts.PER_FILE, tmp_path / "once")
    once = imported(folder)
    (tmp_path / "out.md").write_text(once.as_form(Form.BACKEND_MD))
    again = Lab().summary(import_files([tmp_path / "out.md"], Tool.VENDOR_TABLE, Starts.PER_FILE, tmp_path / "again"))
    for metric in ("ttft_s", "tpot_s"):
        before = {cell.cell.contender.engine: cell.metrics[metric].mean for cell in once.summary.cells}
        after = {cell.cell.contender.engine.replace("\\", ""): cell.metrics[metric].mean for cell in again.cells}
        assert after == pytest.approx(before, rel=1e-3)


def test_intervals_of_backends_are_no_obstacle_to_reading_them(demo: Measured) -> None:
    reading = vendor_backends.read(demo.as_form(Form.BACKEND_MD))
    known = {run.engine.name: run.metrics.ttft_s for run in reading.runs}
    last = demo.summary.rankings[-1].workload
    for cell in demo.summary.cells_of(last):
        wanted = cell.metrics["ttft_s"].mean if "ttft_s" in cell.metrics else None
        assert known[cell.cell.contender.engine] == (wanted if wanted is None else pytest.approx(wanted, rel=1e-2))


@pytest.mark.parametrize("form", [Form.VENDOR_MD, Form.BACKEND_MD])
def test_names_do_no_harm_in_markdown(hostile: Measured, form: Form) -> None:
    text = hostile.as_form(form)
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert "<script" not in html
    assert "\u202e" not in html
    assert "x" * 500 not in html
    assert "hidden" not in html


def test_csv_has_one_row_per_trial_and_no_formula(hostile: Measured, demo: Measured) -> None:
    rows = list(csv.DictReader(io.StringIO(demo.as_form(Form.CSV))))
    assert len(rows) == len(demo.records.trials)
    assert list(rows[0]) == trial_columns()
    slow = next(one for one in rows if one["trial"] == "twin-interactive-1-1")
    assert (float(slow["output_throughput"]), slow["outlier"]) == (80.0, "True")
    assert next(one for one in rows if one["engine"] == "broken")["output_throughput"] == ""
    engines = [one["engine"] for one in csv.DictReader(io.StringIO(hostile.as_form(Form.CSV)))]
    assert "'=1+1" in engines


def test_json_has_the_figures_and_what_they_mean(hostile: Measured, demo: Measured) -> None:
    content = json.loads(demo.as_json())
    assert content["bitbench_report"] == 1
    assert content["definitions"]["ttft_s"]["unit"] == "s"
    assert len(content["trials"]) == len(demo.records.trials)
    assert content["summary"]["rankings"][0]["entries"][0]["contender"]["engine"] == "quick"
    assert content["document"]["title"] == "demo"
    assert "Workload interactive" in [section["title"] for section in content["document"]["sections"]]
    assert "hidden" not in hostile.as_json()


KERNELS = KernelRun(
    machine=KernelMachine(
        device=KernelDevice.CPU, cpu_model="Xeon", threads=2, torch="2.13", read_bytes_per_s=2e10, flops_per_s=1e12,
        warm=False, cold_bytes=1, seed=0,
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


def test_the_command_writes_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = import_files([DATA / "seed-grids.rst"], Tool.VENDOR_TABLE, Starts.PER_FILE, tmp_path / "study")
    said = bitbench(capsys, "report", str(folder.path), "--format", "vendor-rst")
    parsed(said.out)
    assert "gpu\\_memory\\_utilization=1.0" in said.out  # a setting as a column
    there = bitbench(capsys, "report", str(folder.path), "--format", "csv", "-o", str(tmp_path / "a" / "b.csv"))
    assert there.exit_code == 0
    assert (tmp_path / "a" / "b.csv").read_text().startswith("study,trial,kind")
    assert "--output needs --format" in bitbench(capsys, "report", str(folder.path), "-o", "x").err


def test_an_unknown_form_is_answered_with_the_known_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = bitbench(capsys, "report", str(tmp_path), "--format", "markdown")
    assert wrong.exit_code == ExitCode.USAGE
    assert "vendor-md" in wrong.err


def test_kernel_tables_come_from_kernel_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "records.json").write_text(KERNELS.model_dump_json())
    said = bitbench(capsys, "report", str(tmp_path), "--format", "kernel-md")
    assert said.exit_code == 0
    assert "| vptq (ms) | torch (ms) |" in said.out
    assert " 0.50× [0.50, 0.50] |" in said.out
    nothing = bitbench(capsys, "report", str(tmp_path / "no"), "--format", "kernel-md")
    assert "has no kernel records" in nothing.err
    (tmp_path / "records.json").write_text("{}")
    assert "cannot be read as kernel records" in bitbench(capsys, "report", str(tmp_path), "--format", "kernel-md").err
