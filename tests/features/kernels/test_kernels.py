"""The kernel bench without torch: what is asked, what the rounds come to, and what a reader sees."""

from pathlib import Path

import pytest

from bitbench.features.kernels import bench, runner
from bitbench.features.kernels.case import KernelShape
from bitbench.features.kernels.computing import (
    KernelMachine,
    KernelRun,
    KernelTiming,
    compute_median,
    compute_median_of_passes,
    compute_speedup,
    summarize_kernels,
)
from bitbench.features.kernels.runner import parse_kernel_shapes
from bitbench.features.kernels.words import build_kernel_document
from bitbench.machine.gpus import GpuSurvey
from bitbench.reports.document.markdown import render_markdown
from bitbench.study.hardware import KernelDevice
from bitbench.util.errors import ExitCode, KernelError
from tests.command_line import bitbench
from tests.support.quantize_stand_in import write_tensors

MACHINE = KernelMachine(
    device=KernelDevice.CPU,
    cpu_model="A processor",
    threads=2,
    torch="2.13",
    isa="avx512vbmi",
    read_bytes_per_s=20e9,
    flops_per_s=1e12,
    cold_bytes=512 * 2**20,
    seed=0,
)


def timing(
    case: str, seconds: tuple[float, ...], *, weight_bytes: int = 2 * 1024 * 1024, **labels: int
) -> KernelTiming:
    return KernelTiming(
        case=case,
        in_features=1024,
        out_features=1024,
        batch=1,
        labels=labels,
        weight_bytes=weight_bytes,
        error=0.001,
        seconds=seconds,
    )


def a_run() -> KernelRun:
    labels = {"main_centroids": 4096, "residual_centroids": 256, "activation_bits": 8}
    wrong = KernelTiming(
        case="torch-int8",
        in_features=1024,
        out_features=1024,
        batch=1,
        weight_bytes=2**20,
        error=0.5,
        cause="wrong: relative error 0.5, at most 0.01 is allowed",
    )
    timings = (
        timing("torch-linear", (1e-4,) * 9),
        timing("torch-mv", (8e-5,) * 9),
        timing("vptq-4096-256", (2e-5,) * 9, weight_bytes=362_496, **labels),
        wrong,
    )
    return KernelRun(machine=MACHINE, timings=timings)


def no_model(name: str) -> Path:
    raise AssertionError(name)


def test_the_seed_has_thirty_shapes_and_a_quick_look_fewer() -> None:
    assert len(parse_kernel_shapes("kernel-table", no_model, quick=False)) == 30
    assert len(parse_kernel_shapes("kernel-table", no_model, quick=True)) == 2


def test_shapes_are_in_by_out_each_once() -> None:
    assert parse_kernel_shapes("64x128, 128x64,64x128", no_model, quick=True) == (
        KernelShape(64, 128),
        KernelShape(128, 64),
    )


@pytest.mark.parametrize("text", ["", "64", "64x", "64x0", "64x64x64", "model:", "seeds"])
def test_what_is_no_shape_is_named(text: str) -> None:
    with pytest.raises(KernelError, match="is not a set of shapes"):
        parse_kernel_shapes(text, no_model, quick=False)


def test_a_model_gives_the_shapes_of_its_linear_layers(tmp_path: Path) -> None:
    shapes = {
        "model.embed_tokens.weight": (100, 8),
        "model.layers.0.mlp.up_proj.weight": (32, 8),
        "model.layers.1.mlp.up_proj.weight": (32, 8),
        "model.norm.weight": (8,),
        "lm_head.weight": (100, 8),
    }
    write_tensors(
        tmp_path / "model.safetensors", {name: ("BF16", shape) for name, shape in shapes.items()}
    )
    assert parse_kernel_shapes("model:x", lambda _: tmp_path, quick=False) == (
        KernelShape(8, 32),
        KernelShape(8, 100),
    )


def test_a_case_that_nobody_offers_is_named() -> None:
    with pytest.raises(KernelError, match="Unknown kernel case warp-drive"):
        runner.list_case_targets(["warp-drive"])


def test_the_interval_of_a_median_encloses_it_and_needs_enough_rounds() -> None:
    few, many = (
        compute_median([3.0, 1.0, 2.0]),
        compute_median([float(value) for value in range(100)]),
    )
    assert (few.value, few.low, few.high) == (2.0, None, None)
    assert many.low is not None
    assert many.high is not None
    assert 35 <= many.low < many.value == 49.5 < many.high <= 64


def test_the_interval_holds_what_each_pass_says() -> None:
    quiet, busy = [1.0 + 0.001 * i for i in range(20)], [2.0 + 0.001 * i for i in range(20)]
    both = compute_median_of_passes(quiet + busy, (20, 20))
    first, second = compute_median(quiet), compute_median(busy)
    assert (both.low, both.high) == (first.low, second.high)
    assert both.value == pytest.approx(1.5, rel=0.01)
    assert compute_median_of_passes(quiet, ()) == first
    assert (
        compute_median_of_passes([*quiet, 3.0], (20, 1)).low is None
    )  # a pass of one round has no interval


def test_a_speedup_is_taken_within_rounds() -> None:
    """A round that is ten times slower for both changes neither the ratio nor its interval."""
    base = tuple(1.0 * (10.0 if turn % 3 == 0 else 1.0) for turn in range(30))
    found = compute_speedup(timing("a", tuple(0.5 * value for value in base)), timing("b", base))
    assert found is not None
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)


def test_figures_say_bytes_speed_and_the_share_of_the_roof() -> None:
    summary = summarize_kernels(a_run(), ["torch-linear", "torch-mv"])
    row = next(one for one in summary.figures if one.timing.case == "vptq-4096-256")
    size = 362_496 + 2 * 2048
    assert row.timing.size_bytes == size
    assert row.bytes_per_s == pytest.approx(size / 2e-5)
    assert row.roof_share == pytest.approx(size / 20e9 / 2e-5)
    assert {name: value.value for name, value in row.speedups.items()} == pytest.approx(
        {"torch-linear": 5.0, "torch-mv": 4.0}
    )


def test_the_table_has_the_columns_of_such_tables_and_says_what_was_wrong() -> None:
    text = render_markdown(
        build_kernel_document(summarize_kernels(a_run(), ["torch-linear", "torch-mv"]))
    )
    header = next(line for line in text.splitlines() if "batch_size" in line)
    columns = [point.strip() for point in header.strip("|").split("|")]
    assert columns[:10] == [
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
    ]
    assert "5.00× [5.00, 5.00]" in text
    assert "`torch-int8` was not timed: wrong: relative error 0.5" in text


def test_the_overview_comes_first() -> None:
    text = render_markdown(
        build_kernel_document(summarize_kernels(a_run(), ["torch-linear", "torch-mv"]))
    )
    overview = [line for line in text.split("batch_size")[0].splitlines() if line.startswith("|")]
    points = [[point.strip() for point in line.strip("|").split("|")] for line in overview]
    assert points[0] == [
        "case",
        "speed-up to `torch-linear`",
        "speed-up to `torch-mv`",
        "bandwidth (GB/s)",
        "of roofline (%)",
    ]
    assert points[4] == ["`vptq-4096-256`", "5.00×", "4.00×", "18.3", "92"]
    assert points[2] == ["`torch-linear`", "–", "0.80×", "21.0", "105"]


def test_on_a_gpu_the_page_names_it() -> None:
    gpu = {
        "device": KernelDevice.CUDA,
        "device_name": "NVIDIA A100-SXM4-80GB",
        "cuda": "13.0",
        "isa": None,
    }
    run = a_run().model_copy(update={"machine": MACHINE.model_copy(update=gpu)})
    text = render_markdown(build_kernel_document(summarize_kernels(run, ["torch-linear"])))
    assert (
        "\n\nNVIDIA A100-SXM4-80GB in a machine with A processor, torch 2.13 for CUDA 13.0; cold"
        in text
    )


def test_a_gpu_that_is_not_there_is_one_sentence_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "survey_gpus", GpuSurvey)
    answer = bitbench(capsys, "kernels", "--device", "cuda")
    assert (answer.exit_code, answer.out) == (ExitCode.UNAVAILABLE, "")
    assert answer.err == (
        "error: This machine has no CUDA device (no NVIDIA driver is loaded). Run the command on one that has, "
        "or drop --device to measure the CPU.\n"
    )


def test_the_gpus_cases_cover_the_codebooks_of_the_seed() -> None:
    names = {name for _, name in runner.list_case_targets()}
    assert {f"T{main}_{residual}" for main in (4096, 8192) for residual in (256, 512)} <= names


def test_a_case_that_is_wrong_in_one_pass_is_wrong_and_spoils_no_ratio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = [1024, 1024]
    about = {
        "event": "case",
        "shape": shape,
        "batch": 1,
        "labels": {},
        "weight_bytes": 2**20,
        "error": 0.0,
    }
    point = {"event": "point", "shape": shape, "batch": 1}
    right, now_and_then = about | {"name": "right", "cause": None}, about | {"name": "now-and-then"}
    events = [
        right,
        now_and_then | {"cause": None},
        point | {"seconds": {"right": [1.0, 2.0], "now-and-then": [1.0, 2.0]}},
        right,
        now_and_then | {"cause": "wrong: relative error 0.5"},
        point | {"seconds": {"right": [3.0]}},
        {"event": "machine", **MACHINE.model_dump()},
    ]
    monkeypatch.setattr(runner, "run_short_job", lambda *_, **__: iter(events))
    job = runner.KernelJob(runner.KernelOptions(), shapes=(KernelShape(1024, 1024),), cases=())
    run = runner.run_kernels(job, Path("python"), "A processor", lambda *_: None)
    assert [(one.case, one.cause, one.seconds, one.pass_rounds) for one in run.timings] == [
        ("right", None, (1.0, 2.0, 3.0), (2, 1)),
        ("now-and-then", "wrong: relative error 0.5", (), ()),
    ]
    assert all(row.speedups == {} for row in summarize_kernels(run, ["right"]).figures)
