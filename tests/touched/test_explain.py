"""A real kernel that makes dense weights before each product, really run and profiled: it must be named."""

from pathlib import Path

import pytest

from bitbench.features.explain.explanation import explain_variant
from bitbench.features.explain.types import Cause
from bitbench.features.explain.words import build_explanation_document
from bitbench.machine.workplace import get_default_home
from bitbench.records.trial import KernelPath
from bitbench.reports.document.markdown import render_markdown
from tests.busy_machine import run_study

pytestmark = pytest.mark.timeout(1800)  # seconds

STUDY = """
name: why
models: [smollm2-135m]
recipes: [bf16, torchao-int8wo]
# One thread: a busy machine makes two wait for each other. One type for both on every processor, and that which none
# emulates: with bf16 the products would be what takes longest on some.
engines: [{engine: transformers, args: {threads: 1, dtype: float32}}]
workloads: [{name: one, concurrency: 1, input_tokens: 32, output_tokens: 16}]
measure: {starts: 2, trials: 2}
profile: {batch: 1, input_tokens: 32, output_tokens: 16}
"""


def test_a_kernel_that_dequantizes_is_named_with_its_time(tmp_path: Path) -> None:
    (tmp_path / "why.yaml").write_text(STUDY, encoding="utf-8")
    folder = run_study(tmp_path, "why.yaml", timeout_s=1500)
    found = explain_variant(
        folder, get_default_home(), variant="torchao-int8wo", workload=None, against=None
    )
    assert found.own.path is KernelPath.DEQUANTIZED
    decode = next(one for one in found.phases if one.phase.value == "decode")
    assert decode.is_profiled
    # What is in no operator is also the time that a machine gave to others.
    largest = next(part for part in decode.parts if part.cause is not Cause.FRAMEWORK)
    assert largest.cause is Cause.DEQUANTIZATION
    assert largest.own_s is not None
    assert largest.baseline_s is not None
    assert largest.own_s > 2 * largest.baseline_s
    page = render_markdown(build_explanation_document(found))
    assert "its kernel expands the weights to dense ones before each product" in page
    if found.roof is None:  # only a busy machine has an excuse
        assert "not measured: other work keeps" in page
    else:
        assert found.roof.read_bytes_per_s.best > 1e9
        assert decode.baseline.roof_share is not None
        assert 0 < decode.baseline.roof_share < 1
