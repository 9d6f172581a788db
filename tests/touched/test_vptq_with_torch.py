"""The VPTQ kernel in the environment that has torch: its tensors in place, its threads, published widths.

Needs: bitbench env create transformers.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import bitbench
from bitbench.engines.environments import environment_python
from bitbench.features.kernels.runner import SEED_INPUTS, find_native_module
from bitbench.machine.workplace import get_default_home

pytest.importorskip(
    "bitbench._native", reason="the native part was not built: no C++ compiler here"
)
pytestmark = pytest.mark.timeout(900)

LOAD = """
import importlib.util, json, sys
def load(name, path, folders=None):
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
load("bitbench", sys.argv[1] + "/__init__.py", [sys.argv[1]])
load("bitbench._native", sys.argv[2])
asked = json.loads(sys.argv[3])
import numpy as np
import torch
from bitbench import _native
from bitbench.features.vptq import packed
torch.set_num_threads(2)
rng = np.random.default_rng(1)
def matrix(columns, outputs, main=4096, residual=256):
    bits = packed.choose_index_bits(main, packed.MAIN_BITS), packed.choose_index_bits(residual, packed.RESIDUAL_BITS)
    books = [packed.pack_codebook(rng.normal(size=(size, 8)).astype("f4") * spread, width)
             for size, width, spread in zip((main, residual), bits, (1, 0.3))]
    form = (-(-outputs // 8), -(-columns // 64), packed.compute_strip_bytes(*bits))
    stream = rng.integers(0, 256, form, dtype=np.uint8)
    return packed.PackedMatrix(columns, outputs, (packed.PackedSegment(columns, *books, stream),))
def error(y, wanted):
    return float((y.double() - wanted).norm() / wanted.norm())
"""

ERRORS = """
worst = {8: 0.0, 16: 0.0}
for columns in asked:
    for sizes in ((4096, 256), (4096, 512), (8192, 256), (8192, 512), (65536, 256)):
        made = matrix(columns, 64, *sizes)
        x = torch.randn(1, columns)
        wanted = x.double() @ torch.from_numpy(packed.dequantize_packed(made)).T
        for bits in worst:
            y = torch.full((1, 64), torch.nan)
            packed.make_native_matrix(made).multiply(x, y, activation_bits=bits, threads=2)
            worst[bits] = max(worst[bits], error(y, wanted))
print(json.dumps(worst))
"""

IN_PLACE = """
made = matrix(1000, 203)
kernel = packed.make_native_matrix(made)
weight = torch.from_numpy(packed.dequantize_packed(made)).T
x = torch.randn(3, 5, 1000).bfloat16()
y = torch.full((3, 5, 203), torch.nan, dtype=torch.bfloat16)
before = x.data_ptr(), y.data_ptr(), x.clone()
kernel.multiply(x, y, activation_bits=16, threads=2)
untouched = (x.data_ptr(), y.data_ptr()) == before[:2] and torch.equal(x, before[2])
alone = torch.empty_like(y)
kernel.multiply(x, alone, activation_bits=16, threads=1)
large = torch.full((2, 203), torch.nan, dtype=torch.bfloat16)
kernel.multiply(x[1, 2:4], large, activation_bits=16, threads=2)  # a view that starts in the middle
try:
    kernel.multiply(x.transpose(0, 1), y, threads=2)
    refused = False
except TypeError:
    refused = True
print(json.dumps({
    "untouched": untouched, "error": error(y, x.double() @ weight), "same_alone": torch.equal(y, alone),
    "view": error(large, x[1, 2:4].double() @ weight), "refused": refused,
    "torch_dtype_kept": str(y.dtype), "openmp": _native.openmp_runtime(),
}))
"""

AT_ONCE = """
import threading
made = matrix(2048, 512)
kernel = packed.make_native_matrix(made)
inputs = [torch.randn(1, 2048) for _ in range(4)]
wanted = []
for x in inputs:
    wanted.append(torch.empty(1, 512))
    kernel.multiply(x, wanted[-1], threads=2)
wrong = []
def work(x, right):
    y = torch.empty(1, 512)
    for _ in range(200):
        y.fill_(torch.nan)
        kernel.multiply(x, y, threads=2)
        if not torch.equal(y, right):
            wrong.append(1)
workers = [threading.Thread(target=work, args=pair) for pair in zip(inputs, wanted)]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
print(json.dumps({"wrong": len(wrong)}))
"""


def in_torch(script: str, asked: object = None) -> Any:
    python = environment_python("transformers", get_default_home())
    folder, native = str(Path(bitbench.__file__).parent), find_native_module()
    assert native is not None
    done = subprocess.run(
        [python, "-I", "-c", LOAD + script, folder, native, json.dumps(asked)],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_error_is_below_the_promise_for_all_published_inputs_and_odd_ones() -> None:
    worst = in_torch(ERRORS, [*SEED_INPUTS, 1, 63, 1000, 3001])
    assert 0 < worst["16"] < 2e-4
    assert 0 < worst["8"] < 0.02


def test_tensors_are_read_and_written_where_they_are() -> None:
    found = in_torch(IN_PLACE)
    assert found["untouched"]
    assert found["same_alone"]
    assert found["refused"], "what is not contiguous would have to be copied"
    assert found["torch_dtype_kept"] == "torch.bfloat16"
    assert max(found["error"], found["view"]) < 0.004  # of the result's own rounding to 8 bits
    assert "gomp" in found["openmp"] or "omp" in found["openmp"], "torch brings the threads"


def test_calls_from_several_threads_do_not_touch_each_other() -> None:
    assert in_torch(AT_ONCE) == {"wrong": 0}
