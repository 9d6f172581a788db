"""The GPU kernel of VPTQ without a GPU: right under Triton's interpreter, and compiled for sm_80.

Needs: bitbench env create triton.
"""

import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest

import bitbench
from bitbench.engines import environments
from bitbench.lab import Lab
from bitbench.vptq.layout import VptqLayer, dequantize, multiply
from tests.unit.vptq_layers import make_layer

CHILD = Path(__file__).with_name("triton_child.py")


def run_child(*arguments: str | Path, interpret: bool, cache: Path) -> str:
    environment = os.environ | {
        "PYTHONPATH": str(Path(bitbench.__file__).parent.parent),
        "TRITON_INTERPRET": "1" if interpret else "0",
        "TRITON_CACHE_DIR": str(cache),  # its own, so that it really compiles
    }
    python = environments.python_of("triton", Lab().home)
    done = subprocess.run([python, CHILD, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def layers() -> dict[str, VptqLayer]:
    rng = np.random.default_rng(5)
    return {
        "12 + 8 bits": make_layer(rng, out_features=64, columns_per_group=128),
        "13 + 9 bits, odd sizes": make_layer(rng, out_features=45, columns_per_group=131, sizes=(8192, 512)),
        "16 + 8 bits, as in public models": make_layer(rng, out_features=24, columns_per_group=70, sizes=(65536, 256)),
        "one codebook, of no power of two": make_layer(rng, out_features=17, columns_per_group=65, sizes=(300, 0)),
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


@pytest.mark.parametrize("batch", [1, 3])
def test_the_interpreter_gives_the_references_result(batch: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(batch)
    cases = [(layer, rng.normal(size=(batch, layer.in_features)).astype(np.float32)) for layer in layers().values()]
    (tmp_path / "cases").write_bytes(pickle.dumps(cases))
    run_child("multiply", tmp_path / "cases", tmp_path / "out.npz", interpret=True, cache=tmp_path / "cache")
    results = np.load(tmp_path / "out.npz")
    for name, (layer, x), key in zip(layers(), cases, results.files, strict=True):
        wanted = multiply(dequantize(layer), x, layer.bias)
        error = np.linalg.norm(results[key] - wanted) / np.linalg.norm(wanted)
        assert error < 1e-6, f"{name}: {error}"


def test_it_compiles_for_an_a100(tmp_path: Path) -> None:
    lines = run_child("compile", interpret=False, cache=tmp_path).splitlines()
    assert len(lines) == 4
    assert all(".target sm_80" in line for line in lines)
