"""Profiles by vLLM's own profiler hook, for each kind of weights that its CPU backend runs."""

from pathlib import Path

import pytest

from bitbench.machine.host import find_processor_level
from bitbench.records.profile import Phase, ProfileGroup
from bitbench.records.trial import KernelPath
from bitbench.study.hardware import Level
from tests.busy_machine import run_study

pytestmark = pytest.mark.timeout(900)

STUDY = """
name: profile
models: [smollm2-135m]
recipes: [RECIPE]
engines: [{engine: vllm, args: {enforce-eager: true}}]
workloads: [{name: one, concurrency: 1, input_tokens: 128, output_tokens: 32}]
measure: {starts: 1, trials: 1}
profile: {batch: 1}
"""
ALLOWED = 0.05  # between the sum of the groups and the step that the client measured


HAS_AMX = (
    find_processor_level() is Level.AMX
)  # vLLM has kernels of its own for it; those for others are from its source


@pytest.mark.parametrize(
    ("recipe", "path", "kernel"),
    [
        ("bf16", KernelPath.DENSE, "_C::onednn_mm"),
        (
            "w8a8-rtn",
            KernelPath.QUANTIZED,
            "_C::int8_scaled_mm_with_quant" if HAS_AMX else "_C::onednn_scaled_mm",
        ),
        (
            "w4a16-rtn",
            KernelPath.WEIGHT_ONLY,
            "_C::int4_scaled_mm_cpu" if HAS_AMX else "_C::cpu_gemm_wna16",
        ),
    ],
)
def test_the_products_are_what_the_kernel_says(
    recipe: str, path: KernelPath, kernel: str, tmp_path: Path
) -> None:
    (tmp_path / "profile.yaml").write_text(STUDY.replace("RECIPE", recipe), encoding="utf-8")
    profiles = run_study(tmp_path, "profile.yaml", timeout_s=900).profiles()
    assert [one.phase for one in profiles] == list(Phase)
    for one in profiles:
        assert abs(one.agreement) < ALLOWED, one.phase
        assert {
            choice.path for choice in one.facts.kernel_choices if choice.kind != "attention"
        } == {path}
        products = next(found for found in one.operators if found.name == kernel)
        expected = (
            ProfileGroup.DENSE_MATMUL if path is KernelPath.DENSE else ProfileGroup.QUANTIZED_MATMUL
        )
        assert products.group is expected
        assert products.calls >= 90 * one.steps  # most of the four products of each of 30 layers
        assert one.group_s(ProfileGroup.OTHER) is None
