"""A real kernel that makes dense weights before each product, really run and profiled: it must be named."""

import subprocess
import sys
from pathlib import Path

import pytest

from bitbench.core.found.explanation import Cause
from bitbench.core.recorded.trial import KernelPath
from bitbench.lab.explain import explain_variant
from bitbench.lab.study import default_home
from bitbench.report.answers.explain import explanation_document
from bitbench.report.document.markdown import markdown
from bitbench.store.folder import StudyFolder

pytestmark = pytest.mark.timeout(600)  # seconds

STUDY = """
name: why
models: [smollm2-135m]
recipes: [bf16, torchao-int8wo]
# One thread: a busy machine makes two wait for each other. One type on every processor: where bf16 is emulated the
# dense model would be in float32, and the products of the other be what takes longest.
engines: [{engine: transformers, args: {threads: 1, dtype: bfloat16}}]
workloads: [{name: one, concurrency: 1, input_tokens: 64, output_tokens: 16}]
measure: {instances: 2, trials: 2}
profile: {batch: 1, input_tokens: 64, output_tokens: 16}
"""


def test_a_kernel_that_dequantizes_is_named_with_its_time(tmp_path: Path) -> None:
    (tmp_path / "why.yaml").write_text(STUDY, encoding="utf-8")
    command = [sys.executable, "-m", "bitbench", "run", "why.yaml", "--into", "why"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=500)
    folder = StudyFolder.existing(tmp_path / "why")
    found = explain_variant(folder, default_home(), variant="torchao-int8wo", workload=None, against=None)
    assert found.own.path is KernelPath.DEQUANTIZED
    decode = next(one for one in found.phases if one.phase.value == "decode")
    assert decode.is_profiled
    largest = decode.parts[0]
    assert largest.cause is Cause.DEQUANTIZATION
    assert largest.own_s is not None
    assert largest.baseline_s is not None
    assert largest.own_s > 2 * largest.baseline_s
    page = markdown(explanation_document(found))
    assert "its kernel expands the weights to dense ones before each product" in page
    if found.roof is None:  # only a busy machine has an excuse
        assert "not measured: other work keeps" in page
    else:
        assert found.roof.read_bytes_per_s.best > 1e9
        assert decode.baseline.roof_share is not None
        assert 0 < decode.baseline.roof_share < 1
        assert "roof.json" in page
