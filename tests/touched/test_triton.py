"""The GPU kernel of VPTQ without a GPU: right under Triton's interpreter, also in the kernel bench and in a model's
layer, and compiled for sm_80.

Needs: bitbench env create triton.
"""

import os
import pickle
import subprocess
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import bitbench
from bitbench.engines.environments import environment_python
from bitbench.features.kernels import runner
from bitbench.features.kernels.case import KernelShape
from bitbench.features.kernels.computing import KernelRun, summarize_kernels
from bitbench.features.kernels.words import build_kernel_document
from bitbench.features.vptq.layout import Doubles, Floats, VptqLayer, dequantize_layout
from bitbench.machine.workplace import get_default_home
from bitbench.reports.document.markdown import render_markdown
from bitbench.study.hardware import KernelDevice
from bitbench.util.errors import KernelError
from tests.features.vptq.vptq_layers import make_layer, multiply

CHILD = Path(__file__).with_name("triton_child.py")


def run_child(*arguments: str | Path, interpret: bool, cache: Path) -> str:
    environment = os.environ | {
        "PYTHONPATH": str(Path(bitbench.__file__).parent.parent),
        "TRITON_INTERPRET": "1" if interpret else "0",
        "TRITON_CACHE_DIR": str(cache),  # its own, so that it really compiles
    }
    python = environment_python("triton", get_default_home())
    done = subprocess.run(
        [python, CHILD, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def layers() -> dict[str, VptqLayer]:
    rng = np.random.default_rng(5)
    made = {
        "12 + 8 bits": make_layer(rng, out_features=64, columns_per_group=128),
        "13 + 9 bits, odd sizes": make_layer(
            rng, out_features=45, columns_per_group=131, sizes=(8192, 512)
        ),
        "16 + 8 bits, as in public models": make_layer(
            rng, out_features=24, columns_per_group=70, sizes=(65536, 256)
        ),
        "one codebook, of no power of two": make_layer(
            rng, out_features=17, columns_per_group=65, sizes=(300, 0)
        ),
        "outliers, groups, permutation, scale and bias": make_layer(
            rng,
            out_features=43,
            columns_per_group=66,
            groups=2,
            outlier_columns=5,
            permuted=True,
            scaled=True,
            biased=True,
        ),
    }
    return {name: as_stored(layer) for name, layer in made.items()}


def as_stored(layer: VptqLayer) -> VptqLayer:
    """With codebooks in half precision, as they are in a checkpoint."""

    def half(values: Floats) -> Floats:
        return values.astype(np.float16).astype(np.float32)

    residual, outliers = layer.residual_centroids, layer.outliers
    return replace(
        layer,
        centroids=half(layer.centroids),
        residual_centroids=None if residual is None else half(residual),
        outliers=None
        if outliers is None
        else replace(outliers, centroids=half(outliers.centroids)),
    )


def relative_error(found: Floats, wanted: Doubles) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("batch", [1, 3])
def test_the_interpreter_gives_the_references_result(batch: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(batch)
    cases = [
        (layer, rng.normal(size=(batch, layer.in_features)).astype(np.float32))
        for layer in layers().values()
    ]
    (tmp_path / "cases").write_bytes(pickle.dumps(cases))
    run_child(
        "multiply",
        tmp_path / "cases",
        tmp_path / "out.npz",
        interpret=True,
        cache=tmp_path / "cache",
    )
    results = np.load(tmp_path / "out.npz")
    for name, (layer, x), key in zip(layers(), cases, results.files, strict=True):
        wanted = multiply(dequantize_layout(layer), x, layer.bias)
        assert relative_error(results[key], wanted) < 1e-6, name


def test_a_models_layer_runs_few_rows_by_the_kernel_and_many_by_a_dense_matrix(
    tmp_path: Path,
) -> None:
    odd = layers()["outliers, groups, permutation, scale and bias"]
    indices = odd.indices[:1]
    sixes = VptqLayer(
        in_features=66, out_features=36, centroids=odd.centroids[:1, :, :6], indices=indices
    )
    rng = np.random.default_rng(2)
    cases = [
        (layer, rng.normal(size=(1, layer.in_features)).astype(np.float32))
        for layer in (odd, sixes)
    ]
    (tmp_path / "cases").write_bytes(pickle.dumps(cases))
    run_child(
        "layer", tmp_path / "cases", tmp_path / "out.npz", interpret=True, cache=tmp_path / "cache"
    )
    found = np.load(tmp_path / "out.npz")
    for number, (layer, x) in enumerate(cases):
        wanted = multiply(dequantize_layout(layer), x, layer.bias)
        assert relative_error(found[f"few{number}"], wanted) < 1e-6
        assert relative_error(found[f"many{number}"], wanted) < 1e-6
    assert str(found["kind0"]) == "VPTQ 4096/256, Triton kernel up to 8 rows, dense above"
    codebooks = 2 * 8 * 2 * (4096 + 256) + 2 * 64 * 4
    assert codebooks < int(found["bytes0"]) < codebooks + 43 * 137 + 4 * 137 * 5, (
        "indices, not weights"
    )
    assert "expanded to dense at load (vectors of 6)" in str(found["kind1"])


def test_the_kernel_bench_checks_and_times_it_like_any_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the processor, where only the interpreter lets it run; the CPU's own case stands beside it."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = bench(
        ["torch-linear", "torch-mv", "vptq-triton-4096-256", "vptq-triton-8192-512"], batches=(1, 9)
    )
    assert found.machine.device is KernelDevice.CPU
    timings = {(timing.case, timing.batch): timing for timing in found.timings}
    for name in ("vptq-triton-4096-256", "vptq-triton-8192-512"):
        once = timings[name, 1]
        assert once.error is not None
        assert once.error < 1e-5
        assert len(once.seconds) == len(timings["torch-mv", 1].seconds) == 2
        assert timings[name, 9].cause == "takes batches from 1 to 8"
    small = timings["vptq-triton-4096-256", 1]
    assert small.weight_bytes == 25 * 4 * (20 * 72 // 32) + 2 * 8 * (4096 + 256)
    assert "vptq-triton-4096-256" in render_markdown(
        build_kernel_document(summarize_kernels(found, ["torch-linear", "torch-mv"]))
    )


def test_without_the_interpreter_it_is_left_out_on_a_processor_and_says_why_where_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    (timing,) = bench(["vptq-triton-4096-256"]).timings
    assert (timing.cause, timing.seconds) == ("runs on cuda, not on cpu", ())
    assert bench(["vptq-triton-4096-256"], named=False).timings == ()


def test_an_environment_whose_torch_sees_no_gpu_says_what_to_do() -> None:
    with pytest.raises(
        KernelError, match=r"torch 2\.\S+ sees no CUDA device; .*bitbench env create transformers"
    ):
        bench(["torch-mv"], device=KernelDevice.CUDA)


def bench(
    names: list[str],
    *,
    batches: tuple[int, ...] = (1,),
    named: bool = True,
    device: KernelDevice = KernelDevice.CPU,
) -> KernelRun:
    job = runner.KernelJob(
        runner.KernelOptions(batches=batches, cases=tuple(names) if named else None, device=device),
        shapes=(KernelShape(72, 200),),
        cases=runner.list_case_targets(names),
        effort=runner.Effort(passes=1, point_s=0.0, least_rounds=2, most_rounds=2),
    )
    python = environment_python("triton", get_default_home())
    with patch.object(runner, "COLD_BYTES", 1):  # one copy of the weights: the interpreter is slow
        return runner.run_kernels(job, python, "a processor", lambda *_: None)


def test_it_compiles_for_an_a100(tmp_path: Path) -> None:
    lines = run_child("compile", interpret=False, cache=tmp_path).splitlines()
    assert len(lines) == 4
    assert all(".target sm_80" in line for line in lines)
