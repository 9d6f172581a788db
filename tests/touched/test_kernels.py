"""`bitbench kernels --quick` with real torch: the published table, and how fast VPTQ is where a speed is claimed.

Needs: bitbench env create transformers.
"""

from pathlib import Path

import pytest

from bitbench.features.kernels.computing import KernelRun, summarize_kernels
from bitbench.features.kernels.words import build_kernel_document
from bitbench.features.vptq.packed import find_native_isa
from bitbench.reports.document.markdown import render_markdown
from tests.command_line import bitbench

COLUMNS = (
    "case",
    "batch_size",
    "in_features",
    "out_features",
    "main_centroids",
    "residual_centroids",
    "activation_bits",
    "time (ms)",
    "torch-linear (ms)",
    "speed-up to `torch-linear`",
    "torch-mv (ms)",
    "speed-up to `torch-mv`",
    "traffic (MB)",
    "bandwidth (GB/s)",
    "intensity (flop/byte)",
    "of roofline (%)",
    "error",
)


# At most so much of F.linear's time in bfloat16 at every shape, by instruction set. docs/internals/kernels.md has the medians:
# about 0.3, 0.5 and 0.55 on a core that has all of them. An older core loads its tables from a smaller cache through
# fewer ports (0.5 to 0.9, the most at the smallest shapes), and no more is claimed for it than that it is faster. The
# rest is what a busy machine does to a ratio within rounds.
CLAIMS = {"avx512vbmi": 0.6, "avx512": 1.0, "avx2": 1.0}
LOOKS = 3  # other work may spoil one of them


def test_a_quick_look_has_the_published_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = bitbench(capsys, "kernels", "--quick", "--into", str(tmp_path))
    assert said.exit_code == 0, said.err
    written = (tmp_path / "kernels.md").read_text(encoding="utf-8")
    lines = [
        [point.strip() for point in line.strip("| ").split("|")] for line in written.splitlines()
    ]
    place = lines.index(list(COLUMNS))
    rows = [line for line in lines[place + 2 :] if len(line) == len(COLUMNS)]
    assert (
        sum(row[0].startswith("`vptq") for row in rows) == 8
    )  # two shapes, four sizes of codebooks
    run = KernelRun.model_validate_json((tmp_path / "records.json").read_text(encoding="utf-8"))
    summary = summarize_kernels(run, ["torch-linear", "torch-mv"])
    again = render_markdown(build_kernel_document(summary))  # from the records alone
    assert [line for line in again.splitlines() if line.startswith("|")] == [
        line for line in written.splitlines() if line.startswith("|")
    ]
    vptq = [one for one in summary.figures if one.timing.case.startswith("vptq")]
    assert all(one.timing.error is not None and one.timing.error < 0.02 for one in vptq)


def test_the_best_level_is_as_fast_as_is_claimed_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    isa = str(find_native_isa())
    if isa not in CLAIMS:
        pytest.skip(f"no speed is claimed for {isa}")
    shares = []
    for look in range(LOOKS):
        shares.append(most_of_linear(tmp_path / str(look), capsys))
        if shares[-1] < CLAIMS[isa]:
            return
    pytest.fail(
        f"the slowest shape takes {min(shares)} of F.linear's time, claimed are {CLAIMS[isa]}"
    )


def most_of_linear(into: Path, capsys: pytest.CaptureFixture[str]) -> float:
    """The share of F.linear's time that the slowest of the quick look's shapes takes."""
    said = bitbench(capsys, "kernels", "--quick", "--cases", "vptq-4096-256", "--into", str(into))
    assert said.exit_code == 0, said.err
    run = KernelRun.model_validate_json((into / "records.json").read_text(encoding="utf-8"))
    vptq = [
        one
        for one in summarize_kernels(run, ["torch-linear"]).figures
        if one.timing.case == "vptq-4096-256"
    ]
    return max(1 / one.speedups["torch-linear"].value for one in vptq)
