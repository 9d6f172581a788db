"""`bitbench kernels --quick` with real torch: the seed's table, and a VPTQ kernel that is faster than torch.

Needs: bitbench env create transformers.
"""

from pathlib import Path

import pytest

from bitbench.core.recorded.kernel import KernelRun
from bitbench.report.document.markdown import markdown
from bitbench.report.sections.kernels import kernel_document
from bitbench.statistics.kernels import summarize_kernels
from tests.command_line import bitbench

COLUMNS = (
    "batch_size",
    "in_features",
    "out_features",
    "main_centroids",
    "residual_centroids",
    "vptq (ms)",
    "torch (ms)",
    "ratio",
    "torch.mv (ms)",
    "ratio to it",
    "traffic (MB)",
    "bandwidth (GB/s)",
    "intensity (flop/byte)",
    "of roofline (%)",
    "error",
)


def test_a_quick_look_has_the_seeds_table_and_vptq_is_faster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = bitbench(capsys, "kernels", "--quick", "--into", str(tmp_path))
    assert said.exit_code == 0, said.err
    written = (tmp_path / "kernels.md").read_text(encoding="utf-8")
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in written.splitlines()]
    place = lines.index(list(COLUMNS))
    rows = [line for line in lines[place + 2 :] if len(line) == len(COLUMNS)]
    assert len(rows) == 8  # two shapes, four sizes of codebooks
    assert "<svg" in (tmp_path / "figures" / "roofline.svg").read_text(encoding="utf-8")
    run = KernelRun.model_validate_json((tmp_path / "records.json").read_text(encoding="utf-8"))
    summary = summarize_kernels(run, ["torch-linear", "torch-mv"])
    again = markdown(kernel_document(summary))  # from the records alone
    assert [line for line in again.splitlines() if line.startswith("|")] == [
        line for line in written.splitlines() if line.startswith("|")
    ]
    vptq = [one for one in summary.figures if one.timing.case.startswith("vptq")]
    assert all(one.timing.error is not None and one.timing.error < 0.02 for one in vptq)
    if run.machine.isa == "avx512":
        # It takes a third of torch's time here; half is far beyond what a busy machine does to a ratio within rounds.
        assert all(one.ratios["torch-linear"].value < 0.6 for one in vptq)
